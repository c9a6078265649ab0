"""The tracer that the runtime finds in the entry-point group `machete.tracers`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from .buffer import BufferLayout

if TYPE_CHECKING:
    from machete.megakernel import Plan

    from .recorder import RecordingHooks


class Tracer:
    """What the runtime needs to trace one kernel: a buffer, and code that writes to it."""

    def __init__(self, plan: Plan) -> None:
        self.layout = BufferLayout.of(plan)
        self.buffer_bytes = self.layout.nbytes

    @cached_property
    def hooks(self) -> RecordingHooks:
        """Device code; the DSL is imported here, so that kernels from a cache do without it."""
        from .recorder import RecordingHooks

        return RecordingHooks(self.layout)
