"""Whole programs on a simulated GPU: scripts, tests, and `with` blocks."""

from .context import Launched, MissingPackage, Simulation, simulated_gpu
from .device import Device

__all__ = ["Device", "Launched", "MissingPackage", "Simulation", "simulated_gpu"]
