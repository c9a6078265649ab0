"""Normalisation by the root mean square: `RMSNormOp.schedule(x=x, weight=w, y=y)`."""

from .op import RMSNormOp

__all__ = ["RMSNormOp"]
