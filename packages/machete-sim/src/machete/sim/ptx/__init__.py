"""PTX front end: text to a Module of kernels and instructions."""

from .operands import OperandError, parse_operands
from .parser import parse
from .syntax import (
    Address,
    Displaced,
    Immediate,
    Instruction,
    Kernel,
    Mark,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Scope,
    Vector,
)

__all__ = [
    "Address",
    "Displaced",
    "Immediate",
    "Instruction",
    "Kernel",
    "Mark",
    "Module",
    "Name",
    "Negated",
    "Operand",
    "OperandError",
    "Pair",
    "Scope",
    "Vector",
    "parse",
    "parse_operands",
]
