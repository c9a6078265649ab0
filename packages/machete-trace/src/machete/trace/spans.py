"""Spans: begins and ends of a trace's events, joined, and the instructions that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.tooling import OP, SIGNAL, TOTAL, WAITS

from .buffer import ROLES
from .events import PHASES, TYPES, tag

if TYPE_CHECKING:
    from .trace import Trace

_BEFORE_INSTRUCTION = ("fetch", "slot")  # waits for an instruction are those of the next one


@dataclass(frozen=True, eq=False)
class Spans:
    """One entry for each span, by SM, then role, then time of its begin.

    Attributes:
        sm, role, type: int64; role and type are indices in `ROLES` and `TYPES`.
        begin, end: float64, µs.
        value: int64, what the event says: op, tile or row.
        row: int64, the instruction's row in `plan.queues.rows`, -1 outside of instructions.
        op: int64, its op, -1 outside of instructions.
        tile: int64, for phases, and waits inside of them; -1 for a whole range, and outside of phases.
    """

    sm: np.ndarray
    role: np.ndarray
    type: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    value: np.ndarray
    row: np.ndarray
    op: np.ndarray
    tile: np.ndarray

    def where(self, mask: np.ndarray) -> Spans:
        """Those of them."""
        return Spans(**{name: getattr(self, name)[mask] for name in self.__dataclass_fields__})

    def of(self, *types: str, role: str | None = None) -> Spans:
        """Those of these types, and of one role."""
        mask = np.isin(self.type, [TYPES.index(name) for name in types])
        if role is not None:
            mask &= self.role == ROLES.index(role)
        return self.where(mask)

    def __len__(self) -> int:
        return len(self.sm)


def rows_of_sm(trace: Trace, sm: int) -> np.ndarray:
    """int64: rows of the instructions of an SM, in its order."""
    plan = trace.plan
    if plan.schedule == "static":
        return np.arange(plan.queues.begin[sm], plan.queues.begin[sm + 1])
    events = trace.events_of(sm, "controller")
    return trace.value[events][trace.type[events] == tag("instruction")].astype(np.int64)


def spans_of(trace: Trace) -> Spans:
    """Join begins with ends. Spans that the trace has no end of, since it was full, end with its last event."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in Spans.__dataclass_fields__}
    ops = trace.plan.queues.rows[:, OP].astype(np.int64)
    for sm in range(trace.plan.num_sms):
        rows = np.append(rows_of_sm(trace, sm), -1)
        for role, name in enumerate(ROLES):
            events = trace.events_of(sm, name)
            time, kind, value = trace.time[events], trace.type[events], trace.value[events]
            if not len(time):
                continue
            instruction = "polling" if name == "watcher" else "instruction"  # the watcher does nothing else
            number = np.cumsum(kind == tag(instruction)) - 1
            inside = number - np.cumsum(kind == tag(instruction, ends=True)) >= 0
            begins: list[np.ndarray] = []
            ends: list[np.ndarray] = []
            for index in range(len(TYPES) - 1):
                begin, end = np.flatnonzero(kind == 2 * index), np.flatnonzero(kind == 2 * index + 1)
                begins.append(begin)
                unended = np.full(len(begin) - len(end), len(kind) - 1)
                ends.append(np.concatenate([end, unended]))
            begin, end = np.concatenate(begins), np.concatenate(ends)
            order = np.argsort(begin, kind="stable")
            begin, end = begin[order], end[order]
            what = kind[begin].astype(np.int64) // 2
            ahead = np.isin(what, [TYPES.index(cause) for cause in _BEFORE_INSTRUCTION])
            place = np.where(ahead, number[begin] + 1, np.where(inside[begin], number[begin], -1))
            row = rows[np.clip(place, -1, len(rows) - 1)]
            columns["sm"].append(np.full(len(begin), sm))
            columns["role"].append(np.full(len(begin), role))
            columns["type"].append(what)
            columns["begin"].append(time[begin])
            columns["end"].append(time[end])
            columns["value"].append(value[begin].astype(np.int64))
            columns["row"].append(row)
            columns["op"].append(np.where(row >= 0, ops[row], -1) if len(ops) else row)
            columns["tile"].append(_tiles(kind, value)[begin])
    return Spans(**{name: np.concatenate(parts) for name, parts in columns.items()})


def _tiles(kind: np.ndarray, value: np.ndarray) -> np.ndarray:
    """int64: for each event the tile of the phase that it lies in, -1 outside."""
    phases = [TYPES.index(name) for name in PHASES]
    changes = np.isin(kind // 2, phases)
    latest = np.maximum.accumulate(np.where(changes, np.arange(len(kind)), -1))
    begun = (latest >= 0) & (kind[latest] % 2 == 0)
    return np.where(begun, value[latest], -1).astype(np.int64)


def signalled(trace: Trace) -> np.ndarray:
    """float64[rows]: when each instruction was done, as those that wait for it can know; nan if it is not traced.

    The last phase had ended by then, compute threads had waited for one another, and stores had been drained; the
    signal follows at once.
    """
    spans = trace.spans.of("compute", "barrier", "drain")
    stores = np.array([trace.plan.kinds[op.kind].has_store for op in trace.plan.ops])
    by = np.where(stores[spans.op], ROLES.index("storer"), ROLES.index("compute"))
    mine = spans.where((spans.role == by) & (spans.row >= 0))
    times = np.full(len(trace.plan.queues.rows), -np.inf)
    np.maximum.at(times, mine.row, mine.end)
    return np.where(np.isinf(times), np.nan, times)


def signals(trace: Trace) -> dict[int, np.ndarray]:
    """For each counter the rows of the instructions that signal it."""
    rows = trace.plan.queues.rows
    found: dict[int, list[int]] = {}
    for column in (SIGNAL, TOTAL):
        for row, counter in enumerate(rows[:, column].tolist()):
            if counter >= 0:
                found.setdefault(counter, []).append(row)
    return {counter: np.array(sources) for counter, sources in found.items()}


def latest_signals(trace: Trace) -> float:
    """By how much, in µs, the earliest poll ended before the last signal that it needed could be given; 0 if none."""
    done, sources = signalled(trace), signals(trace)
    polls = trace.spans.of("polling")
    early = 0.0
    needed: dict[int, float] = {}
    for row, end in zip(polls.row.tolist(), polls.end.tolist(), strict=True):
        waits = int(trace.plan.queues.rows[row, WAITS])
        if waits not in needed:
            # Only where all that signal a counter are needed is it known which signals a wait has seen.
            times = [
                done[sources[counter]] for counter, least in trace.plan.waits[waits] if least >= len(sources[counter])
            ]
            needed[waits] = max((float(np.max(each)) for each in times if not np.isnan(each).any()), default=-np.inf)
        early = max(early, needed[waits] - end)
    return early
