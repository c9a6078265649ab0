"""Prologues and epilogues that dense ops accept: norm on load, GLU pair, bias, activation, scale, residual add.

`fuse` finds where a list of ops can use them.
"""

from .epilogues import Activation, Bias, ResidualAdd, Scale
from .glu import GluPair
from .norm import RmsNormOnLoad
from .rewrite import fuse

__all__ = ["Activation", "Bias", "GluPair", "ResidualAdd", "RmsNormOnLoad", "Scale", "fuse"]
