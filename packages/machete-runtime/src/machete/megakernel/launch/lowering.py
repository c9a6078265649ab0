"""The same list of ops in three ways: one persistent kernel, a CUDA graph of a kernel for each op, or one by one.

Single kernels are made of the same op code as the persistent one; what differs is who orders the ops. Between single
kernels it is the stream: each begins when the one before has ended, or, in a graph, sets itself up meanwhile
(programmatic dependent launch). On the simulator there are no graphs: their kernels run one after another.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from machete.megakernel.abi.errors import PlanError, closest, listing
from machete.megakernel.abi.scheduled import ScheduledOp

from .megakernel import Megakernel, checked_ops, chosen_target
from .state import empty
from .temporaries import ARENA, placed

LOWERINGS = ("persistent", "graph", "standalone")


class Lowered(Protocol):
    """Ops that are ready to run.

    Attributes:
        name: the lowering.
        kernels: how many kernels one run launches.
    """

    name: str
    kernels: int

    def run(self, *, sync: bool = True) -> None:
        """Run all ops once, on the current stream of their device; `sync`: wait for the end."""


def lower(
    ops: Iterable[ScheduledOp], lowering: str = "persistent", *, arch: str | None = None, num_sms: int | None = None
) -> Lowered:
    """The ops in one of the `LOWERINGS`; arguments as for `Megakernel`.

    A graph keeps the tensors that it was captured with; to rebind, use "persistent", which is a `Megakernel`. Raises
    what `Megakernel` raises, and `PlanError` for an unknown lowering.
    """
    ops = list(ops) if isinstance(ops, Iterable) else ops
    if lowering == "persistent":
        return Persistent(Megakernel(ops, arch=arch, num_sms=num_sms))
    if lowering == "graph":
        return Graph(_singles(ops, arch, num_sms, programmatic=True))
    if lowering == "standalone":
        return Standalone(_singles(ops, arch, num_sms, programmatic=False))
    raise PlanError(
        what=f"lowering {lowering!r}{closest(str(lowering), LOWERINGS)}",
        where="lower(ops, lowering)",
        why="ops run in one kernel, in a graph of kernels, or as kernels one after another",
        fix=f"one of: {listing(LOWERINGS)}",
    )


class Persistent:
    """One kernel for all ops."""

    name, kernels = "persistent", 1

    def __init__(self, kernel: Megakernel) -> None:
        self.kernel = kernel

    def run(self, *, sync: bool = True) -> None:
        """Run all ops once."""
        self.kernel.run(sync=sync)


class Standalone:
    """A kernel for each op, launched one after another."""

    name = "standalone"

    def __init__(self, singles: Sequence[Megakernel]) -> None:
        self.singles, self.kernels = singles, len(singles)

    def run(self, *, sync: bool = True) -> None:
        """Run all ops once."""
        for single in self.singles:
            single.run(sync=False)
        _wait(self.singles, sync)


class Graph:
    """A kernel for each op, launched as one CUDA graph."""

    name = "graph"

    def __init__(self, singles: Sequence[Megakernel]) -> None:
        self.singles, self.kernels = singles, len(singles)

    @functools.cached_property
    def _launch(self) -> Callable[[], None]:
        """Launches the graph, which is captured first; on the simulator, runs its kernels."""
        if self.singles[0].simulated:
            return Standalone(self.singles).run
        for single in self.singles:
            single.compile()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.singles[0].device), torch.cuda.graph(graph):
            for single in self.singles:
                single.run(sync=False)
        return graph.replay

    def run(self, *, sync: bool = True) -> None:
        """Run all ops once."""
        device = self.singles[0].device
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                self._launch()
        else:
            self._launch()
        _wait(self.singles, sync)


def _wait(singles: Sequence[Megakernel], sync: bool) -> None:
    """Wait for the kernels, and raise the `HangError` of one that was stopped."""
    device = singles[0].device
    if sync and device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
        for single in singles:
            single.check()


def _singles(
    ops: Iterable[ScheduledOp], arch: str | None, num_sms: int | None, *, programmatic: bool
) -> list[Megakernel]:
    """A kernel for each op. Temporaries between them have memory that the kernels keep alive."""
    checked = checked_ops(ops)
    target = chosen_target(checked[0].device, arch)
    ordered, arena_bytes = placed(checked)
    arena = empty(arena_bytes, checked[0].device).zero_()  # some temporaries start with zeros
    singles = []
    for op in ordered:
        alone = programmatic and not op.op.lower(target, op).op.hands_over
        singles.append(Megakernel([_at(op, arena)], arch=arch, num_sms=num_sms, programmatic=alone))
    return singles


def _at(op: ScheduledOp, arena: torch.Tensor) -> ScheduledOp:
    """The op with its temporaries in this memory."""
    placed_there = {name for name, info in op.infos.items() if info.address >= ARENA}
    moved = arena.data_ptr() - ARENA
    infos = {
        name: replace(info, address=info.address + moved) if name in placed_there else info
        for name, info in op.infos.items()
    }
    tensors = {name: arena if name in placed_there else tensor for name, tensor in op.tensors.items()}
    return replace(op, infos=infos, tensors=tensors)
