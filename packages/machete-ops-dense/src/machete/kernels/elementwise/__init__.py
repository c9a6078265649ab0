"""Elementwise ops: `AddOp.schedule(a=x, b=z, y=y)` computes `y = a + b`."""

from .add import AddOp

__all__ = ["AddOp"]
