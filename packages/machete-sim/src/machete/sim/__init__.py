"""Executes the PTX of CuTe DSL kernels on a CPU, and checks it.

image = Image.from_ptx(ptx_text, arch="sm_90a")
report = run(image, params, LaunchConfig(grid=(4, 1, 1), block=(128, 1, 1)), [Region(address, nbytes, "x")])

with simulated_gpu("sm_100a"):  # whole programs, written for device="cuda"
    ...
"""

try:
    from . import _core  # noqa: F401 - found now, or said why not
except ModuleNotFoundError as error:
    raise ImportError(
        "machete-sim's native core is not built for this Python: it is imported from a source tree, or from an "
        "installation for another version. pip install machete-sim, or in a clone: pip install packages/machete-sim "
        "(which needs g++ 11 or clang 14, or newer)"
    ) from error

from .errors import (
    BadDescriptor,
    BarrierMisuse,
    Deadlock,
    Divergence,
    ExecutionError,
    Livelock,
    MbarrierMisuse,
    Misaligned,
    MissingProxyFence,
    OutOfBounds,
    PendingRegisters,
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
from .recording import RecordedLaunch, record_launches
from .timeline import Timeline, chrome_trace, trace_launches

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
    "MissingProxyFence",
    "OutOfBounds",
    "PendingRegisters",
    "PtxSyntaxError",
    "Race",
    "RecordedLaunch",
    "Region",
    "Report",
    "Simulation",
    "SimulationError",
    "TensorMemoryMisuse",
    "Timeline",
    "Trap",
    "Uninitialised",
    "UnknownInstruction",
    "Unsupported",
    "UnsupportedLaunch",
    "chrome_trace",
    "record_launches",
    "run",
    "simulated_gpu",
    "trace_launches",
]
