"""Gated linear units: `GluOp.schedule(gate=g, up=u, y=y)` computes `y = silu(gate) * up`."""

from .op import GluOp

__all__ = ["GluOp"]
