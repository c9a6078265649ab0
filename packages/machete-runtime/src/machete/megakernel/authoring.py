"""What the author of an op calls in device code, beside the DSL itself."""

from .device.kernel import COMPUTE_THREADS, COMPUTE_WARPS, sync_compute_threads
from .device.ptx import global_pointer, lane_index, shared_pointer, store_tagged

__all__ = [
    "COMPUTE_THREADS",
    "COMPUTE_WARPS",
    "global_pointer",
    "lane_index",
    "shared_pointer",
    "store_tagged",
    "sync_compute_threads",
]
