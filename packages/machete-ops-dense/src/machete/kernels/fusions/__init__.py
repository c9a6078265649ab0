"""Prologues and epilogues that dense ops accept: norm on load, GLU pair, bias, activation, scale, residual add."""

from .epilogues import Activation, Bias, ResidualAdd, Scale
from .glu import GluPair
from .norm import RmsNormOnLoad

__all__ = ["Activation", "Bias", "GluPair", "ResidualAdd", "RmsNormOnLoad", "Scale"]
