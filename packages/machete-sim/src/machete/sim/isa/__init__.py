"""The instruction table: one module per family, each form with its pattern, operands and section of the PTX ISA."""

from . import (
    barriers,
    cluster_launch,
    comparison,
    control,
    conversion,
    copies,
    floating,
    integer,
    matrix,
    memory,
    move,
    tensor,
)
from .form import Form, all_forms, lookup

__all__ = [
    "Form",
    "all_forms",
    "barriers",
    "cluster_launch",
    "comparison",
    "control",
    "conversion",
    "copies",
    "floating",
    "integer",
    "lookup",
    "matrix",
    "memory",
    "move",
    "tensor",
]
