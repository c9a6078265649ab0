"""Which warp did what when, in simulated time.

with trace_launches() as timelines:
    kernel.run()                          # whatever ends in machete.sim.run
print(timelines[0].text())
Path("trace.json").write_text(chrome_trace(timelines))    # for ui.perfetto.dev
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import Place
from .image import Image

if TYPE_CHECKING:
    from .launch import LaunchConfig

KINDS = ("runs", "waits", "copy", "product")
MAX_SLICES = 1_000_000  # of a launch; a slice is 50 bytes of memory and 200 of JSON
WIDTH = 72  # characters of a warp's bar


@dataclass(frozen=True)
class Slice:
    """Something that a warp did from `begin` to `end`, in ns of simulated time.

    kind: "runs" instructions of one line; "waits" in one instruction for a barrier, an mbarrier, a copy, a product or
    memory; a "copy" or "product" that it issued was in flight. count: instructions of the slice.
    """

    cta: int
    warp: int
    kind: str
    begin: int
    end: int
    count: int
    place: Place

    @property
    def where(self) -> str:
        """The author's line, or else that of the PTX."""
        source = self.place.source
        return Path(source).name if source else f"PTX line {self.place.ptx_line}"

    @property
    def opcode(self) -> str:
        words = self.place.text.rstrip(";").split()
        return words[1] if words[0].startswith("@") else words[0]


@dataclass(frozen=True)
class Timeline:
    """One launch. truncated: it did more than is kept; what is missing came last in the order of execution."""

    image: Image
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    seed: int
    rows: np.ndarray
    truncated: bool

    @cached_property
    def slices(self) -> list[Slice]:
        """By CTA and warp, each warp's in order; then copies and products."""
        place = cache(self.image.place)
        return [
            Slice(cta, warp, KINDS[kind], begin, end, count, place(pc))
            for cta, warp, kind, pc, begin, end, count in self.rows.tolist()
        ]

    @property
    def nanoseconds(self) -> int:
        """When the last warp ended, and the last copy landed."""
        return int(self.rows[:, 5].max()) if len(self.rows) else 0

    def coordinates(self, cta: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return cta % x, cta // x % y, cta // x // y

    def text(self, ctas: int = 4, events: bool = False) -> str:
        """A bar for each warp of the first CTAs, what was in flight below them, and where warps waited longest.

        events: every slice as a line too.
        """
        shown = [s for s in self.slices if s.cta < ctas]
        total = max(self.nanoseconds, 1)
        launch = f"{self.image.kernel.name[:48]}: grid {self.grid}, seed {self.seed}"
        lines = [f"{launch}, {total:,} ns, {total / WIDTH:,.0f} ns a character"]
        for cta in sorted({s.cta for s in shown}):
            own = [s for s in shown if s.cta == cta]
            lines.append(f"CTA {self.coordinates(cta)}")
            for warp in sorted({s.warp for s in own if s.kind in ("runs", "waits")}):
                lines.append(f"  warp {warp:2} |{_bar([s for s in own if s.warp == warp], total)}|")
            for kind, title in (("copy", "copies"), ("product", "MMAs")):
                operations = [s for s in own if s.kind == kind]
                if operations:
                    lines.append(f"  {title:7} |{_flight(operations, total)}|")
        lines.append("# runs, . waits; copies and MMAs: how many are in flight")
        lines += self._longest_waits()
        if events:
            lines += [_event(self, s) for s in sorted(shown, key=lambda s: (s.cta, s.warp, s.begin))]
        if self.truncated:
            lines.append(f"only the first {len(self.rows):,} slices were kept")
        return "\n".join(lines)

    def _longest_waits(self, count: int = 8) -> list[str]:
        waited: Counter[tuple[str, str]] = Counter()
        times: Counter[tuple[str, str]] = Counter()
        for s in self.slices:
            if s.kind == "waits":
                waited[s.opcode, s.where] += s.end - s.begin
                times[s.opcode, s.where] += 1
        if not waited:
            return []
        table = [f"{ns:12,} ns {times[key]:6,} x  {key[0]}  {key[1]}" for key, ns in waited.most_common(count)]
        return ["longest waits, all warps together", *table]


def _bar(slices: list[Slice], total: int) -> str:
    """What a warp did most of in each of WIDTH equal parts of the time."""
    shares = {kind: np.zeros(WIDTH) for kind in ("runs", "waits")}
    for s in slices:
        if s.kind in shares:
            edges = np.clip(np.array([s.begin, s.end]) * WIDTH / total - np.arange(WIDTH)[:, None], 0, 1)
            shares[s.kind] += edges[:, 1] - edges[:, 0]
    runs, waits = shares["runs"], shares["waits"]
    return "".join("#" if r > 0 and r >= w else "." if w > 0 else " " for r, w in zip(runs, waits, strict=True))


def _flight(slices: list[Slice], total: int) -> str:
    """How many operations are in flight at most in each part of the time."""
    starts, ends = sorted(s.begin for s in slices), sorted(s.end for s in slices)
    text = ""
    for part in range(WIDTH):
        begin, end = part * total / WIDTH, (part + 1) * total / WIDTH
        moments = [begin, *(t for t in starts if begin < t < end)]
        most = max(bisect_right(starts, t) - bisect_right(ends, t) for t in moments)
        text += " " if most <= 0 else str(most) if most < 10 else "+"
    return text


def _event(timeline: Timeline, s: Slice) -> str:
    what = f"{s.count} instructions" if s.kind == "runs" else s.place.text
    place = f"CTA {timeline.coordinates(s.cta)} warp {s.warp}"
    return f"{s.begin:9,} {s.end:9,} ns  {place}  {s.kind:7}  {s.where}  {what}"


def chrome_trace(timelines: list[Timeline]) -> str:
    """Launches, one after the other, as a Chrome JSON trace: a process a CTA, a thread a warp."""
    events: list[dict[str, Any]] = []
    start = process = 0
    for number, timeline in enumerate(timelines):
        processes: dict[int, int] = {}
        warps: set[tuple[int, int]] = set()
        for index, s in enumerate(timeline.slices):
            if s.cta not in processes:
                processes[s.cta] = process = process + 1
                name = f"launch {number} {timeline.image.kernel.name[:40]} CTA {timeline.coordinates(s.cta)}"
                events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
            if (s.cta, s.warp) not in warps:
                warps.add((s.cta, s.warp))
                thread = {"pid": processes[s.cta], "tid": s.warp, "args": {"name": f"warp {s.warp}"}}
                events.append({"ph": "M", "name": "thread_name"} | thread)
            events += _chrome_events(s, processes[s.cta], f"{number}.{index}", start)
        start += timeline.nanoseconds
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def _chrome_events(s: Slice, process: int, identity: str, start: int) -> list[dict[str, Any]]:
    """Times are in µs there."""
    begin, end = (start + s.begin) / 1000, (start + s.end) / 1000
    common: dict[str, Any] = {"cat": s.kind, "pid": process, "tid": s.warp}
    args = {"line": s.where, "instruction": s.place.text, "PTX line": s.place.ptx_line}
    if s.kind == "runs":
        return [
            common
            | {"ph": "X", "name": s.where, "ts": begin, "dur": end - begin, "args": args | {"instructions": s.count}}
        ]
    if s.kind == "waits":
        return [common | {"ph": "X", "name": f"waits: {s.opcode}", "ts": begin, "dur": end - begin, "args": args}]
    operation = common | {"name": s.opcode, "id": identity}
    return [operation | {"ph": "b", "ts": begin, "args": args | {"warp": s.warp}}, operation | {"ph": "e", "ts": end}]


# ---- collecting them: for all threads, since autograd launches from its own


_collected: list[list[Timeline]] = []


@contextmanager
def trace_launches() -> Iterator[list[Timeline]]:
    """Collect the timelines of all launches, also of one that fails. Launches take about twice the time."""
    timelines: list[Timeline] = []
    _collected.append(timelines)
    try:
        yield timelines
    finally:
        _collected.remove(timelines)


def traced() -> bool:
    return bool(_collected)


def note_timeline(image: Image, config: "LaunchConfig", cluster: tuple[int, int, int], result: dict[str, Any]) -> None:
    """Called by `run` for each launch."""
    timeline = Timeline(image, config.grid, cluster, config.seed, result["slices"], result["truncated"])
    for timelines in _collected:
        timelines.append(timeline)


def source_lines(image: Image) -> np.ndarray:
    """For each record of the program a number of the author's line that it is of."""
    numbers: dict[str | None, int] = {}
    kernel, places = image.kernel, image.code.places
    by_instruction = [
        numbers.setdefault(image.module.source(kernel, ins.offset), len(numbers)) for ins in kernel.instructions
    ]
    return np.array([by_instruction[place] for place in places], np.uint32)
