"""`tune`: which tile and how many slices of K are fastest for a product, measured on the card and kept for later."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from machete.megakernel import Fusion, Megakernel
from machete.megakernel.errors import DeviceError
from machete.megakernel.tuning import Choices

from .op import GemmOp, product_times, tuned_choices, tuned_problem

#: Of operands that the timed launches rotate over: several times the L2 cache.
ROTATED_BYTES = 400 << 20
MOST_SETS = 32
#: How many of the choices that are expected to be fastest are measured.
CANDIDATES = 8
ROUNDS = 9


@dataclass(frozen=True)
class Tuning:
    """What `tune` measured.

    Attributes:
        problem, device: what for, and where.
        us: median time of a launch in µs, by (tile_n, slices).
        estimated: the choice that `GemmOp` would make by itself.
    """

    problem: str
    device: str
    us: dict[tuple[int, int], float]
    estimated: tuple[int, int]

    @property
    def best(self) -> tuple[int, int]:
        """The fastest choice; the estimated one if it is as fast."""
        fastest = min(self.us.values())
        return self.estimated if self.us[self.estimated] <= fastest else min(self.us, key=self.us.__getitem__)

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device}"]
        for (tile_n, slices), us in sorted(self.us.items(), key=lambda item: item[1]):
            marks = [
                word
                for word, choice in (("best", self.best), ("estimated", self.estimated))
                if choice == (tile_n, slices)
            ]
            lines.append(f"  tile_n {tile_n:3}, slices {slices}: {us:8.1f} µs  {', '.join(marks)}".rstrip())
        return "\n".join(lines)


def tune(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, epilogue: Sequence[Fusion] = ()) -> Tuning:
    """Measure the product on its card, and have `GemmOp.schedule` choose what was fastest, now and in later processes.

    The choice holds for products of these types and extents on cards of this name. It is kept beside the kernel cache
    (`machete.megakernel.tuning`), unless the cache is off. Launches are timed in CUDA graphs that rotate over copies of
    the operands, so that weights come from memory; the candidates take turns. c is left as it was.

    Args:
        a, b, c: as for `GemmOp.schedule`, on a GPU.
        epilogue: applied in the timed launches; the choice does not depend on it.

    Raises `DeviceError` for tensors of the CPU, where times mean nothing, and what `GemmOp.schedule` raises.
    """
    GemmOp.schedule(a=a, b=b, c=c, epilogue=epilogue)  # whatever is wrong with them
    if not a.is_cuda:
        raise DeviceError(
            what="the tensors are on the CPU",
            where="machete.kernels.gemm.tune",
            why="the simulator computes what a card would, but not in which time",
            fix="tune on the card that the product will run on",
        )
    choices = candidates(a, b, c)
    device = torch.cuda.get_device_name(a.device)
    tuning = Tuning(tuned_problem(a, b, c), device, _measured(a, b, c, epilogue, choices), choices[0])
    kept = tuned_choices(a.device)
    if kept is not None:
        keep(kept, tuning)
    return tuning


def keep(kept: Choices, tuning: Tuning) -> None:
    """Have `GemmOp` choose the best from now on."""
    tile_n, slices = tuning.best
    kept.keep(tuning.problem, {"tile_n": tile_n, "slices": slices})


def candidates(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[tuple[int, int]]:
    """(tile_n, slices) of the choices to measure, the one that is expected to be fastest first."""
    times = product_times(a, b, c)
    return sorted(times, key=times.__getitem__)[:CANDIDATES]


def _measured(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    epilogue: Sequence[Fusion],
    choices: Sequence[tuple[int, int]],
) -> dict[tuple[int, int], float]:
    """Median µs of a launch for each choice."""
    nbytes = sum(x.numel() * x.element_size() for x in (a, b, c))
    sets = max(2, min(MOST_SETS, ROTATED_BYTES // max(nbytes, 1)))
    with torch.cuda.device(a.device):
        operands = [(a.clone(), b.clone(), c.clone()) for _ in range(sets)]
        graphs = {}
        for tile_n, slices in choices:
            kernels = [
                Megakernel(GemmOp.schedule(a=x, b=w, c=y, epilogue=epilogue, tile_n=tile_n, slices=slices))
                for x, w, y in operands
            ]
            for kernel in kernels:
                kernel.run(sync=False)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for kernel in kernels:
                    kernel.run(sync=False)
            graphs[tile_n, slices] = graph
        samples: dict[tuple[int, int], list[float]] = {choice: [] for choice in graphs}
        for _ in range(ROUNDS):
            for choice, graph in graphs.items():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                graph.replay()
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples[choice].append(start.elapsed_time(end) * 1e3 / sets)
    return {choice: statistics.median(values) for choice, values in samples.items()}
