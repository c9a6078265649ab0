"""Executes the PTX of CuTe DSL kernels on a CPU, and checks it.

image = Image.from_ptx(ptx_text, arch="sm_90a")
report = run(image, params, LaunchConfig(grid=(4, 1, 1), block=(128, 1, 1)), [Region(address, nbytes, "x")])

with simulated_gpu("sm_100a"):  # whole programs, written for device="cuda"
    ...
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
from .programs import MissingPackage, Simulation, simulated_gpu

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
    "MissingPackage",
    "OutOfBounds",
    "PtxSyntaxError",
    "Race",
    "Region",
    "Report",
    "Simulation",
    "SimulationError",
    "TensorMemoryMisuse",
    "Trap",
    "Uninitialised",
    "UnknownInstruction",
    "Unsupported",
    "UnsupportedLaunch",
    "run",
    "simulated_gpu",
]
