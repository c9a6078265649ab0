"""Which lowering of a list of ops is fastest, measured on the machine at hand, and whether all compute the same."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.abi.scheduled import ScheduledOp

from .lowering import LOWERINGS, Lowered, lower
from .megakernel import checked_ops
from .temporaries import Temporary

if TYPE_CHECKING:
    from rich.table import Table

#: Read between timed runs so that nothing of the operands is left in the L2 cache (H200: 60 MB).
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Measured:
    """One lowering.

    Attributes:
        lowering, kernels: its name, and how many kernels one run launches.
        difference: largest ‖output − persistent's‖ / ‖persistent's‖ among the outputs.
        samples_us: time of single runs on the device, in µs; None on the simulator, where times mean nothing.
    """

    lowering: str
    kernels: int
    difference: float
    samples_us: tuple[float, ...] | None

    @property
    def us(self) -> float | None:
        """The median, in µs."""
        return None if self.samples_us is None else statistics.median(self.samples_us)

    @property
    def spread_us(self) -> float:
        """Half of the range of the middle half of the samples, in µs."""
        if self.samples_us is None or len(self.samples_us) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_us, n=4)
        return (high - low) / 2


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; prints as a table and a sentence.

    Attributes:
        where: the device, in words.
        rows: one for each lowering.
    """

    where: str
    rows: tuple[Measured, ...]

    def __getitem__(self, lowering: str) -> Measured:
        """The row of a lowering."""
        return next(row for row in self.rows if row.lowering == lowering)

    @property
    def fastest(self) -> str | None:
        """The lowering with the smallest median; None on the simulator."""
        timed = [(row.us, row.lowering) for row in self.rows if row.us is not None]
        return min(timed)[1] if timed else None

    @property
    def verdict(self) -> str:
        """Which one wins, and by how much."""
        largest = max(row.difference for row in self.rows)
        same = "all compute the same" if largest == 0 else f"results differ by at most {largest:.1e}"
        if self.fastest is None:
            return f"{same}; which is faster only a GPU can tell: times on the simulator mean nothing"
        best = self[self.fastest]
        assert best.us is not None
        others = []
        for row in self.rows:
            if row is not best and row.us is not None:
                close = row.us - best.us <= row.spread_us + best.spread_us
                factor = "as fast, within the spread," if close else f"{row.us / best.us:.2f} times as fast"
                others.append(f"{factor} as {row.lowering}")
        return f"{best.lowering} wins: {' and '.join(others)}; {same}"

    def table(self) -> "Table":
        """The rows, for rich."""
        from rich.table import Table

        table = Table(title=self.where)
        for heading in ("lowering", "kernels", "µs a run", "of persistent", "difference"):
            table.add_column(heading, justify="left" if heading == "lowering" else "right")
        reference = self["persistent"].us
        for row in self.rows:
            times = ("-", "-")
            if row.us is not None and reference is not None:
                times = (f"{row.us:.1f} ± {row.spread_us:.1f}", f"{row.us / reference:.2f}")
            style = "bold" if row.lowering == self.fastest else None
            table.add_row(row.lowering, str(row.kernels), *times, f"{row.difference:.1e}", style=style)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return f"{capture.get()}{self.verdict}"


def compare(
    ops: Iterable[ScheduledOp], *, arch: str | None = None, num_sms: int | None = None, samples: int = 51
) -> Comparison:
    """Run the ops in all three lowerings, compare what they compute, and measure them.

    On a GPU each sample is one run: launched from the host, between two events, with cold L2; the lowerings take turns.
    So what the host adds where it is slower than the device counts. On the simulator each runs once, for its results.
    Tensors have their contents back when this returns.

    Args:
        ops, arch, num_sms: as for `Megakernel`.
        samples: timed runs of each lowering.
    """
    checked = checked_ops(ops)
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise PlanError(
            what=f"samples={samples!r}",
            where="compare(ops, samples=…)",
            why="the median of so many timed runs is shown",
            fix="use 1 or more, or leave it out",
        )
    device = checked[0].device
    lowered = [lower(checked, lowering, arch=arch, num_sms=num_sms) for lowering in LOWERINGS]
    written = _written(checked)
    before = [tensor.clone() for tensor in written]
    results: list[list[torch.Tensor]] = []
    try:
        for one in lowered:
            _restore(written, before)
            one.run()
            results.append([tensor.clone() for tensor in written])
        times = _timed(lowered, device, samples) if device.type == "cuda" else [None] * len(lowered)
    finally:
        _restore(written, before)
    rows = [
        Measured(one.name, one.kernels, _difference(result, results[0]), sampled)
        for one, result, sampled in zip(lowered, results, times, strict=True)
    ]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the simulator, where times mean nothing"
    return Comparison(f"{len(checked)} ops on {name}", tuple(rows))


def _written(ops: Sequence[ScheduledOp]) -> list[torch.Tensor]:
    """Tensors that ops write, which have contents outside of the kernel; each memory once."""
    found: dict[tuple, torch.Tensor] = {}
    for op in ops:
        for name in op.op.declaration.writes:
            tensor = op.tensors[name].detach()
            if not isinstance(op.tensors[name], Temporary):
                found.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), tensor)
    return list(found.values())


def _restore(tensors: Sequence[torch.Tensor], contents: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, content in zip(tensors, contents, strict=True):
            tensor.copy_(content)


def _difference(result: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    largest = 0.0
    for one, other in zip(result, reference, strict=True):
        if not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
            exact = other.double()
            error = ((one.double() - exact).norm() / exact.norm()).item()
            largest = max(largest, math.inf if math.isnan(error) else error)
    return largest


def _timed(lowered: Sequence[Lowered], device: torch.device, samples: int) -> list[tuple[float, ...]]:
    """Device time of single runs, in µs."""
    times: list[list[float]] = [[] for _ in lowered]
    with torch.cuda.device(device):
        flush = torch.ones(FLUSH_BYTES // 4, device=device)
        for _ in range(samples):
            for one, found in zip(lowered, times, strict=True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                flush.sum()  # reading leaves no dirty lines whose write-back would be billed to what comes next
                begin.record()
                one.run(sync=False)
                end.record()
                end.synchronize()
                found.append(1000 * begin.elapsed_time(end))
    return [tuple(found) for found in times]
