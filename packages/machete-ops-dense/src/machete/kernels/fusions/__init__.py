"""Prologues and epilogues that dense ops accept: norm on load, GLU pair, bias, activation, scales, residual add.

`fuse` finds where a list of ops can use them.
"""

from .epilogues import Activation, Bias, ColumnScale, ResidualAdd, RowScale, Scale
from .glu import GluPair
from .norm import RmsNormOnLoad
from .rewrite import fuse

__all__ = [
    "Activation",
    "Bias",
    "ColumnScale",
    "GluPair",
    "ResidualAdd",
    "RmsNormOnLoad",
    "RowScale",
    "Scale",
    "fuse",
]
