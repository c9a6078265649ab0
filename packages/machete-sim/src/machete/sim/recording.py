"""Launches that can be repeated: with another seed, or another program.

with record_launches() as launches:
    kernel.run()                       # whatever ends in machete.sim.run
launches[0].replay(seed=7)             # from the same memory, in another order
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .image import Image

if TYPE_CHECKING:
    from .launch import LaunchConfig, Region, Report


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch, and what was in its memory before. The memory itself must stay alive, where it was."""

    image: Image
    params: bytes
    config: "LaunchConfig"
    memory: tuple["Region", ...]
    before: tuple[bytes, ...]  # contents of writable memory, in order

    def replay(
        self,
        *,
        image: Image | None = None,
        seed: int | None = None,
        max_instructions: int | None = None,
    ) -> "Report":
        """Put the memory back and run again, or run another image. Raises what `run` raises."""
        from .launch import run

        for region, data in zip(self._writable(), self.before, strict=True):
            ctypes.memmove(region.address, data, len(data))
        image = image or self.image
        image.reset()
        config = replace(
            self.config,
            seed=self.config.seed if seed is None else seed,
            max_instructions=max_instructions or self.config.max_instructions,
        )
        return run(image, self.params, config, self.memory)

    def contents(self) -> tuple[bytes, ...]:
        """What is in writable memory now, in the order of `memory`."""
        return tuple(ctypes.string_at(region.address, region.nbytes) for region in self._writable())

    def _writable(self) -> list["Region"]:
        return [region for region in self.memory if region.writable and region.nbytes]


_recorder: ContextVar[list[RecordedLaunch] | None] = ContextVar("machete_sim_recorder", default=None)


@contextmanager
def record_launches() -> Iterator[list[RecordedLaunch]]:
    """Collect the launches that this thread runs, before they run."""
    launches: list[RecordedLaunch] = []
    token = _recorder.set(launches)
    try:
        yield launches
    finally:
        _recorder.reset(token)


def note(image: Image, params: bytes, config: "LaunchConfig", memory: Sequence["Region"]) -> None:
    """Called by `run` for each launch."""
    launches = _recorder.get()
    if launches is None:
        return
    recorded = RecordedLaunch(image, bytes(params), config, tuple(memory), ())
    launches.append(replace(recorded, before=recorded.contents()))
