"""Ops of an outside package: one that computes from registers, one that streams through the page ring."""

from .clamp import ClampOp
from .mix import MixOp

__all__ = ["ClampOp", "MixOp"]
