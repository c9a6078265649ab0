"""Every moment of every SM, given to one category by what its compute role does.

What compute waits for decides, and where that is data, what kept the loader from fetching it earlier:

- `launch`: from the first event of any SM to the SM's first instruction.
- `math`: in a compute phase, not waiting. What an op does there is its own: its own loads and barriers count. And
  waiting for products of the multiplier, while that does not wait for copies.
- `streaming`: waiting for copies that are on their way, or that the loader holds back to keep few bytes in flight.
- `page`: waiting for copies that could not begin, since no page of the ring was free; or for a place on the way out.
- `dependency`: waiting for what other instructions write; or for copies that wait for that.
- `imbalance`: the same while those others are stragglers: most SMs had done their part of it by then. And at the end of
  a kernel, from the SM's last instruction until the last SM is done with its own.
- `barrier`: compute threads wait for one another between phases, or for the controller's next instruction.
- `signal`: from the last phase of an instruction until it has signalled, but for barriers. A signal says that others
  can see what this SM has written, and until they can, it waits.
- `tail`: from the end of the last instruction of all to the last event.
- `unattributed`: between phases: rows are read, slots are given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.tooling import SIGNAL, WAITS

from .buffer import ROLES
from .events import TYPES, tag
from .spans import rows_of_sm, signalled, signals

if TYPE_CHECKING:
    from .trace import Trace

CATEGORIES = (
    "streaming",
    "math",
    "dependency",
    "page",
    "barrier",
    "imbalance",
    "signal",
    "tail",
    "launch",
    "unattributed",
)

_STATES = {
    TYPES.index("compute"): "math",
    TYPES.index("barrier"): "barrier",
    TYPES.index("fetch"): "barrier",
    TYPES.index("output"): "page",
    TYPES.index("dependency"): "dependency",
    TYPES.index("position"): "barrier",
    TYPES.index("data"): "data",  # until it is known why the data is not there
    TYPES.index("products"): "products",  # until it is known what the multiplier does
}


@dataclass(frozen=True, eq=False)
class Attribution:
    """Pieces of time, by SM and then by time; those of an SM follow each other without a gap.

    Attributes:
        sm, category, op, row: int64; category is an index in `CATEGORIES`, op and row are -1 outside of instructions.
        begin, end: float64, µs.
        blamed: int64, the op that is waited for, where one is: the one whose signal came last.
    """

    sm: np.ndarray
    category: np.ndarray
    op: np.ndarray
    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    blamed: np.ndarray

    @property
    def duration(self) -> np.ndarray:
        """float64: µs of each piece."""
        return self.end - self.begin

    def totals(self, mask: np.ndarray | None = None) -> dict[str, float]:
        """SM-microseconds of each category."""
        chosen = slice(None) if mask is None else mask
        sums = np.bincount(self.category[chosen], self.duration[chosen], minlength=len(CATEGORIES))
        return dict(zip(CATEGORIES, sums.tolist(), strict=True))


@dataclass(frozen=True)
class _Awaited:
    """What instructions with one list of waits wait for.

    Attributes:
        half: when half of the SMs that take part had given their last signal.
        last: when the last one had.
        op: whose signal came last.
    """

    half: float
    last: float
    op: int


class _Pieces:
    """Collects pieces of time."""

    def __init__(self) -> None:
        self.columns: list[tuple[int, int, int, int, float, float, int]] = []

    def add(self, sm: int, category: str, row: int, op: int, begin: float, end: float, blamed: int = -1) -> None:
        if end > begin:
            self.columns.append((sm, CATEGORIES.index(category), op, row, begin, end, blamed))

    def done(self) -> Attribution:
        table = np.array(self.columns, dtype=np.float64).reshape(-1, 7)
        sm, category, op, row, begin, end, blamed = table.T
        return Attribution(
            sm.astype(np.int64),
            category.astype(np.int64),
            op.astype(np.int64),
            row.astype(np.int64),
            begin,
            end,
            blamed.astype(np.int64),
        )


def attribute(trace: Trace) -> Attribution:
    """Give every SM-microsecond of a trace to a category."""
    return _Attributing(trace).run()


class _Attributing:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._rows = trace.plan.queues.rows
        self._pieces = _Pieces()
        self._end = trace.total_us
        self._awaited = self._find_awaited()
        # Which instructions compute signals; of those with a store phase the storer does.
        stores = np.array([trace.plan.kinds[op.kind].has_store for op in trace.plan.ops], dtype=bool)
        self._signals = (self._rows[:, SIGNAL] >= 0) & ~stores[self._rows[:, 0]]

    def run(self) -> Attribution:
        instructions = self._trace.spans.of("instruction", role="compute")
        working = float(instructions.end.max(initial=0.0))
        latest = int(instructions.op[np.argmax(instructions.end)]) if len(instructions) else -1
        for sm in range(self._trace.plan.num_sms):
            mine = instructions.sm == sm
            first = float(instructions.begin[mine].min(initial=self._end))
            last = float(instructions.end[mine].max(initial=0.0)) if mine.any() else first
            if not mine.any():  # nothing to do here: others have all of it
                self._pieces.add(sm, "imbalance", -1, -1, 0.0, working, latest)
            else:
                self._pieces.add(sm, "launch", -1, -1, 0.0, first)
                self._instructions(sm, first, last)
                self._pieces.add(sm, "imbalance", -1, -1, last, working, latest)
            self._pieces.add(sm, "tail", -1, -1, working, self._end)
        return self._pieces.done()

    def _instructions(self, sm: int, first: float, last: float) -> None:
        """From the first instruction's begin to the last one's end."""
        events = self._trace.events_of(sm, "compute")
        rows = rows_of_sm(self._trace, sm).tolist()
        loader, multiplier = _Loader(self._trace, sm), _Multiplier(self._trace, sm)
        stack: list[int] = []
        number, stages, time = -1, 0, first
        over = _after_last_phase(self._trace.type[events]).tolist()
        times, kinds = self._trace.time[events].tolist(), self._trace.type[events].tolist()
        for now, kind, is_over in zip(times, kinds, over, strict=True):
            if now > last:
                break
            if number >= 0:
                state = _STATES.get(stack[-1], "unattributed") if stack else "unattributed"
                row = rows[min(number, len(rows) - 1)]
                if state == "unattributed" and is_over and self._signals[row]:
                    state = "signal"
                if state == "products":
                    for state, begin, end, stage in multiplier.during(number, time, now):
                        self._piece(sm, state, row, begin, end, loader.number(number, stage), loader)
                else:
                    self._piece(sm, state, row, time, now, loader.number(number, stages), loader)
                time = now
            if kind == _STAGE:
                stages += 1
            elif kind % 2 == 0:
                stack.append(kind // 2)
                if kind == _INSTRUCTION:
                    number, stages = number + 1, 0
            elif stack:
                stack.pop()
        self._pieces.add(sm, "unattributed", -1, -1, time, last)  # what a full buffer has lost

    def _piece(self, sm: int, state: str, row: int, begin: float, end: float, stage: int, loader: _Loader) -> None:
        op = int(self._rows[row, 0])
        if state == "dependency":
            self._dependency(sm, row, op, begin, end)
        elif state == "data":
            self._data(sm, row, op, begin, end, stage, loader)
        else:
            self._pieces.add(sm, state, row, op, begin, end)

    def _dependency(self, sm: int, row: int, op: int, begin: float, end: float) -> None:
        """Waiting for stragglers is imbalance: half of the SMs were done, and the last one was not."""
        awaited = self._awaited.get(int(self._rows[row, WAITS]))
        if awaited is None:
            self._pieces.add(sm, "dependency", row, op, begin, end)
            return
        half, last = (min(max(moment, begin), end) for moment in (awaited.half, awaited.last))
        self._pieces.add(sm, "dependency", row, op, begin, half, awaited.op)
        self._pieces.add(sm, "imbalance", row, op, half, last, awaited.op)
        self._pieces.add(sm, "dependency", row, op, last, end, awaited.op)

    def _data(self, sm: int, row: int, op: int, begin: float, end: float, stage: int, loader: _Loader) -> None:
        """Until the loader had the stage in hand, what kept it; from then on the copies are on their way."""
        taken = min(max(loader.taken(stage), begin), end)
        for cause, first, after in loader.waits_between(begin, taken):
            if cause == "dependency":
                self._dependency(sm, row, op, first, after)
            else:
                self._pieces.add(sm, cause, row, op, first, after)
        self._pieces.add(sm, "streaming", row, op, taken, end)

    def _find_awaited(self) -> dict[int, _Awaited]:
        """For each list of waits that is not empty what it waits for, as far as the trace knows it."""
        done, sources = signalled(self._trace), signals(self._trace)
        instructions = self._trace.spans.of("instruction", role="compute")
        sm_of = np.full(len(self._rows), -1)
        sm_of[instructions.row[instructions.row >= 0]] = instructions.sm[instructions.row >= 0]
        found: dict[int, _Awaited] = {}
        for number, waits in enumerate(self._trace.plan.waits):
            rows = [sources[counter] for counter, _ in waits if counter in sources]
            if not rows:
                continue
            row = np.concatenate(rows)
            row = row[~np.isnan(done[row])]
            if not len(row):
                continue
            last_row = int(row[np.argmax(done[row])])
            op = int(self._rows[last_row, 0])
            # Of several ops that are waited for, the SMs' balance in the one that came last is what counts.
            same = row[self._rows[row, 0] == op]
            per_sm = np.sort([done[same[sm_of[same] == sm]].max() for sm in np.unique(sm_of[same])])
            found[number] = _Awaited(float(per_sm[(len(per_sm) - 1) // 2]), float(done[last_row]), op)
        return found


_STAGE, _INSTRUCTION = tag("stage"), tag("instruction")


def _after_last_phase(kind: np.ndarray) -> np.ndarray:
    """bool: for each event of a compute role whether its instruction has had its last phase, and not ended before."""
    number = np.cumsum(kind == _INSTRUCTION)
    count, index = int(number[-1]) + 1 if len(number) else 1, np.arange(len(kind))
    last, ended = np.full(count, len(kind)), np.full(count, len(kind))
    phases, ends = kind == tag("compute", ends=True), kind == tag("instruction", ends=True)
    last[number[phases]] = index[phases]  # of several the last one stays
    ended[number[ends]] = index[ends]
    return (index > last[number]) & (index <= ended[number])


class _Loader:
    """What the loader of an SM did."""

    _CAUSES = {
        TYPES.index("page"): "page",
        TYPES.index("dependency"): "dependency",
        TYPES.index("throttle"): "streaming",
        TYPES.index("fetch"): "barrier",
    }

    def __init__(self, trace: Trace, sm: int) -> None:
        events = trace.events_of(sm, "loader")
        time, kind = trace.time[events], trace.type[events]
        self._taken = time[kind == _STAGE]
        self._before = np.cumsum(kind == _STAGE)[kind == _INSTRUCTION].tolist()
        spans = trace.spans
        mask = (spans.sm == sm) & (spans.role == ROLES.index("loader")) & np.isin(spans.type, list(self._CAUSES))
        self._waits = spans.where(mask)

    def number(self, instruction: int, stage: int) -> int:
        """The number in the kernel of a stage of an instruction of this SM."""
        return stage + (self._before[instruction] if instruction < len(self._before) else len(self._taken))

    def taken(self, stage: int) -> float:
        """When it had a free stage to fill, the one with this number; at once if the trace does not say."""
        return float(self._taken[stage]) if stage < len(self._taken) else -np.inf

    def waits_between(self, begin: float, end: float) -> list[tuple[str, float, float]]:
        """(category, begin, end) of what it waited for, and of what it did in between, without gaps."""
        first = int(np.searchsorted(self._waits.end, begin, side="right"))
        pieces: list[tuple[str, float, float]] = []
        while begin < end:
            if first >= len(self._waits) or self._waits.begin[first] >= end:
                pieces.append(("streaming", begin, end))
                break
            starts, stops = max(begin, float(self._waits.begin[first])), min(end, float(self._waits.end[first]))
            pieces.append(("streaming", begin, starts))
            pieces.append((self._CAUSES[int(self._waits.type[first])], starts, stops))
            begin, first = stops, first + 1
        return pieces


class _Multiplier:
    """What the multiplier of an SM did."""

    def __init__(self, trace: Trace, sm: int) -> None:
        events = trace.events_of(sm, "multiplier")
        time, kind = trace.time[events], trace.type[events]
        number = np.cumsum(kind == _INSTRUCTION) - 1
        stages = np.cumsum(kind == _STAGE)
        first = np.append(stages[kind == _INSTRUCTION], 0)
        waits = np.flatnonzero(kind == tag("data"))
        ends = np.flatnonzero(kind == tag("data", ends=True))
        count = min(len(waits), len(ends))
        waits, ends = waits[:count], ends[:count]
        self._begin, self._end = time[waits], time[ends]
        self._instruction = number[waits]
        self._stage = stages[waits] - first[number[waits]]

    def during(self, instruction: int, begin: float, end: float) -> list[tuple[str, float, float, int]]:
        """(state, begin, end, stage of the instruction) of what compute waits for meanwhile, without gaps.

        That is data where the multiplier waits for the same instruction's; else products that are being made.
        """
        pieces: list[tuple[str, float, float, int]] = []
        first = int(np.searchsorted(self._end, begin, side="right"))
        while begin < end and first < len(self._begin) and self._begin[first] < end:
            if self._instruction[first] == instruction:
                starts, stops = max(begin, float(self._begin[first])), min(end, float(self._end[first]))
                pieces.append(("math", begin, starts, 0))
                pieces.append(("data", starts, stops, int(self._stage[first])))
                begin = stops
            first += 1
        pieces.append(("math", begin, end, 0))
        return pieces
