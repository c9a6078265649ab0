"""A trace: what every role of every SM did, with times in µs since the launch began."""

from __future__ import annotations

import dataclasses
import json
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from machete.megakernel import Plan
from machete.megakernel.tooling import replace_file

from . import clocks
from .ahead import Throttled, throttles_of
from .buffer import HEADER_BYTES, HEADER_WORDS, ROLES, SM_WORD, BufferLayout
from .clocks import Alignment
from .errors import NotTracedError, TraceFileError
from .events import EVENT_BYTES, TYPE_BITS, expanded
from .spans import Spans, latest_signals, spans_of

if TYPE_CHECKING:
    from machete.megakernel import Megakernel, RunReport

    from .attribution import Attribution
    from .report import Report

FORMAT = 2

#: What reading a file raises that is cut off, damaged, or something else.
_NO_TRACE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True, eq=False)
class Trace:
    """One launch of one kernel.

    Attributes:
        plan: what was run.
        where: "simulator", or the device.
        time, type, value: float64, uint8 and int32[events], in the order in which each role of each SM had them: µs
            since the launch began, tag (`events.tag`), and what belongs to it.
        begin: int64[SMs * roles + 1]; the events of role r of SM s begin at begin[s * len(ROLES) + r].
        lost: int64[SMs, roles]: events for which there was no room.
        wall_us: how long the launch took, measured without the trace; None if nobody did.
        sm_ids: hardware numbers of the SMs.
        alignment: of the SMs' clocks.
        throttles: for each op how many stages may be on their way (`ahead.Throttled`), if it is throttled.
    """

    plan: Plan
    where: str
    time: np.ndarray
    type: np.ndarray
    value: np.ndarray
    begin: np.ndarray
    lost: np.ndarray
    wall_us: float | None
    sm_ids: np.ndarray
    alignment: Alignment
    throttles: tuple[Throttled | None, ...]

    @classmethod
    def of(cls, kernel: Megakernel, report: RunReport | None = None, *, wall_us: float | None = None) -> Trace:
        """The last launch of a kernel that was made with `trace=True`, and has ended.

        Args:
            report: what `run` returned; on the simulator it knows the wall time.
            wall_us: the wall time, where it was measured otherwise.

        Raises:
            NotTracedError: the kernel has no trace, or was not run.
        """
        buffer = kernel.trace_buffer
        if buffer is None:
            raise NotTracedError(
                what="the kernel is not traced",
                where="Trace.of",
                why="code that records is part of a kernel only if it was asked for",
                fix="Megakernel(ops, trace=True)",
            )
        if wall_us is None and report is not None:
            wall_us = report.simulated_us
        return decoded(kernel.plan, buffer.cpu().numpy(), str(kernel.device), wall_us)

    @cached_property
    def spans(self) -> Spans:
        """What lasted for a while: instructions, phases, waits."""
        return spans_of(self)

    @cached_property
    def attribution(self) -> Attribution:
        """Every moment of every SM, given to one category."""
        from .attribution import attribute

        return attribute(self)

    @property
    def total_us(self) -> float:
        """From the first event of any SM to the last one."""
        return float(self.time.max(initial=0.0))

    def events_of(self, sm: int, role: str) -> slice:
        """Where the events of a role of an SM are."""
        index = sm * len(ROLES) + ROLES.index(role)
        return slice(int(self.begin[index]), int(self.begin[index + 1]))

    def report(self) -> Report:
        """Where every SM-microsecond went."""
        from .report import Report

        return Report.of(self)

    def profile(self) -> dict[int, float]:
        """Measured µs of one tile of each op, for `Megakernel(ops, profile=…)` of the same list."""
        from .profile import profile_of

        return profile_of(self)

    def save(self, path: Path) -> None:
        """Write everything to one file, which `load` reads; it appears when it is whole."""
        meta = {
            "format": FORMAT,
            "plan": self.plan.to_dict(),
            "where": self.where,
            "wall_us": self.wall_us,
            "alignment": dataclasses.asdict(self.alignment),
            "throttles": self.throttles,
        }
        arrays: dict[str, Any] = {
            name: getattr(self, name) for name in ("time", "type", "value", "begin", "lost", "sm_ids")
        }
        file = BytesIO()
        np.savez_compressed(file, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
        replace_file(path, file.getvalue(), 0o666)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """What `save` wrote. Needs neither the ops nor a GPU. Raises `TraceFileError` if the file is something else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in ("time", "type", "value", "begin", "lost", "sm_ids")}
                meta = json.loads(file["meta"].tobytes())
            if meta["format"] != FORMAT:
                raise ValueError(f"its format is {meta['format']}, not {FORMAT}")
            alignment = meta["alignment"]
            return cls(
                plan=Plan.from_json(json.dumps(meta["plan"])),
                where=meta["where"],
                wall_us=meta["wall_us"],
                alignment=Alignment(**{**alignment, "ns_per_cycle": tuple(alignment["ns_per_cycle"])}),
                throttles=tuple(throttle and (*throttle,) for throttle in meta["throttles"]),
                **arrays,
            )
        except _NO_TRACE as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            raise TraceFileError(
                what=f"{path} is no trace: {reason}",
                where="Trace.load",
                why="a trace is what Trace.save, or `machete trace run`, has written",
                fix="machete trace run graph.py --out FOLDER",
            ) from None


def decoded(plan: Plan, buffer: np.ndarray, where: str, wall_us: float | None) -> Trace:
    """A trace from the bytes of the buffer, uint8."""
    layout = BufferLayout.of(plan)
    parts = buffer[: layout.nbytes].reshape(layout.num_sms, layout.sm_bytes)
    headers = np.ascontiguousarray(parts[:, :HEADER_BYTES]).view(np.int64).reshape(-1, HEADER_WORDS)
    counts, capacity = headers[:, : len(ROLES)], np.array(layout.capacity)
    if not headers[:, SM_WORD].all():
        raise NotTracedError(
            what="the trace buffer is empty",
            where="Trace.of",
            why="no launch of the kernel has ended since it was made",
            fix="kernel.run()",
        )
    kept = np.minimum(counts, capacity)
    first_clock, first_time, rate, alignment = clocks.aligned(headers)
    words, times, lengths = [], [], []
    for sm in range(layout.num_sms):
        for role, name in enumerate(ROLES):
            offset = layout.offset(name)
            events = parts[sm, offset : offset + EVENT_BYTES * int(kept[sm, role])].copy().view(np.uint32)
            cycles, tagged = expanded(name, _since(events[::2], first_clock[sm]), events[1::2])
            words.append(tagged)
            times.append(first_time[sm] + rate[sm] * cycles)
            lengths.append(len(tagged))
    time = np.concatenate(times)
    tags = np.concatenate(words)
    trace = Trace(
        plan=plan,
        where=where,
        time=(time - time.min(initial=np.inf)) / 1000,
        type=(tags & ((1 << TYPE_BITS) - 1)).astype(np.uint8),
        value=(tags.view(np.int32) >> TYPE_BITS),
        begin=np.concatenate([[0], np.cumsum(lengths)]),
        lost=counts - kept,
        wall_us=wall_us,
        sm_ids=headers[:, SM_WORD] & 0xFFFFFFFF,
        alignment=alignment,
        throttles=throttles_of(plan),
    )
    early = 1000 * latest_signals(trace)
    return dataclasses.replace(trace, alignment=dataclasses.replace(alignment, early_ns=early))


def _since(clock: np.ndarray, first: np.uint32) -> np.ndarray:
    """Cycles since the first sample: int64, negative before it. The clock wraps."""
    if not len(clock):
        return np.zeros(0, dtype=np.int64)
    start = int(np.int32(np.uint32((int(clock[0]) - int(first)) & 0xFFFFFFFF).astype(np.int32)))
    steps = np.diff(clock).astype(np.uint32).astype(np.int64)
    return start + np.concatenate([[0], np.cumsum(steps)])
