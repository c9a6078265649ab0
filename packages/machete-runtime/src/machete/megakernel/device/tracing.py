"""Where a tracer may add code of its own to the persistent kernel."""

from typing import Any, Protocol


class Hooks(Protocol):
    """Called while the kernel is traced, around every phase; what they emit runs there.

    All threads of the role execute it: 256 for "compute", one warp for "loader" and for "storer". It may diverge, if
    the threads meet again.

    Args:
        buffer: Int64, address of the trace buffer in global memory.
        role: "loader", "compute" or "storer".
        phase: the method of the op: "load", "compute" or "store".
        op: Int32, index of the op in the list.
        tile: Int32, number of the tile in the op; None where the phase runs once for a whole range of tiles.
    """

    def begin(self, buffer: Any, role: str, phase: str, op: Any, tile: Any) -> None:
        """Before the phase."""

    def end(self, buffer: Any, role: str, phase: str, op: Any, tile: Any) -> None:
        """After the phase; asynchronous copies that it started may still be on their way."""


#: Who runs which phase.
ROLES = {"load": "loader", "compute": "compute", "store": "storer"}
