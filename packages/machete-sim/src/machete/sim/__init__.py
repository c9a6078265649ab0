"""Executes the PTX of CuTe DSL kernels on a CPU, and checks it.

image = Image.from_ptx(ptx_text, arch="sm_90a")
report = run(image, params, LaunchConfig(grid=(4, 1, 1), block=(128, 1, 1)), [Region(address, nbytes, "x")])
"""

from .errors import (
    BadDescriptor,
    BarrierMisuse,
    Deadlock,
    Divergence,
    ExecutionError,
    Livelock,
    MbarrierMisuse,
    Misaligned,
    OutOfBounds,
    PtxSyntaxError,
    Race,
    SimulationError,
    TensorMemoryMisuse,
    Trap,
    Uninitialised,
    UnknownInstruction,
    Unsupported,
    UnsupportedLaunch,
)
from .image import Image
from .launch import LaunchConfig, Region, Report, run

__all__ = [
    "BadDescriptor",
    "BarrierMisuse",
    "Deadlock",
    "Divergence",
    "ExecutionError",
    "Image",
    "LaunchConfig",
    "Livelock",
    "MbarrierMisuse",
    "Misaligned",
    "OutOfBounds",
    "PtxSyntaxError",
    "Race",
    "Region",
    "Report",
    "SimulationError",
    "TensorMemoryMisuse",
    "Trap",
    "Uninitialised",
    "UnknownInstruction",
    "Unsupported",
    "UnsupportedLaunch",
    "run",
]
