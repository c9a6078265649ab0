"""What the simulator raises.

`SimulationError` is the root. Errors of the program text (`PtxSyntaxError`, `UnknownInstruction`) come before anything
runs; the others carry the place in the launch where the program went wrong.
"""

from dataclasses import dataclass, field


class SimulationError(Exception):
    """Root of everything `machete.sim` raises about a program."""


class PtxSyntaxError(SimulationError):
    """Text that is not PTX, or PTX outside of what the front end accepts."""

    def __init__(self, message: str, line: int, text: str) -> None:
        super().__init__(f"PTX line {line}: {message}\n    {text.strip()}")
        self.message = message
        self.line = line
        self.text = text


class UnknownInstruction(SimulationError):
    """An opcode, modifier, type or operand shape that the simulator does not execute exactly.

    `text` is the instruction, `line` its line in the PTX, `source` the author's `file:line` if the PTX says so.
    """

    def __init__(self, message: str, text: str, line: int, source: str | None = None) -> None:
        place = f"PTX line {line}" + (f", from {source}" if source else "")
        super().__init__(f"{message}\n    {text}\n    ({place})")
        self.message = message
        self.text = text
        self.line = line
        self.source = source


class UnsupportedLaunch(SimulationError):
    """A launch configuration that cannot run: a cluster that does not fit, too many threads, …"""


@dataclass(frozen=True)
class Place:
    """Where a warp is: instruction, source line, and the last mark it passed."""

    pc: int
    text: str
    ptx_line: int
    source: str | None
    mark: str | None

    def __str__(self) -> str:
        lines = [f"at {self.text}", f"   PTX line {self.ptx_line}" + (f", {self.source}" if self.source else "")]
        if self.mark:
            lines.append(f"   mark: {self.mark}")
        return "\n".join(lines)


@dataclass(frozen=True)
class WaitingWarp:
    """One line of a deadlock report."""

    cta: int
    warp: int
    what: str
    place: Place

    def __str__(self) -> str:
        mark = f" [{self.place.mark}]" if self.place.mark else ""
        source = f" ({self.place.source})" if self.place.source else ""
        return f"CTA {self.cta} warp {self.warp}{mark}: {self.what}, at PTX line {self.place.ptx_line}{source}"


@dataclass(eq=False)
class ExecutionError(SimulationError):
    """The program did something wrong while it ran.

    cta: block index (x, y, z); warp: in the CTA; lanes: those at fault. Any of them may be unknown (None).
    """

    message: str
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] = ()
    place: Place | None = None
    waiting: list[WaitingWarp] = field(default_factory=list)
    kind = "execution"

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def mark(self) -> str | None:
        return self.place.mark if self.place else None

    def __str__(self) -> str:
        where = []
        if self.cta is not None:
            where.append(f"CTA {self.cta}")
        if self.warp is not None:
            where.append(f"warp {self.warp}")
        if self.lanes:
            where.append(f"lanes {_ranges(self.lanes)}")
        lines = [f"{self.kind}: {self.message}"]
        if where:
            lines.append("   in " + ", ".join(where))
        if self.place is not None:
            lines += ["   " + line for line in str(self.place).splitlines()]
        lines += ["   " + text for text in _summary(self.waiting)]
        return "\n".join(lines)


class OutOfBounds(ExecutionError):
    kind = "out of bounds"


class Misaligned(ExecutionError):
    kind = "misaligned"


class Uninitialised(ExecutionError):
    kind = "uninitialised"


class MbarrierMisuse(ExecutionError):
    kind = "mbarrier misuse"


class BarrierMisuse(ExecutionError):
    kind = "barrier misuse"


class Divergence(ExecutionError):
    kind = "divergence"


class Race(ExecutionError):
    kind = "race"


class Deadlock(ExecutionError):
    kind = "deadlock"


class Livelock(ExecutionError):
    kind = "livelock"


class Trap(ExecutionError):
    kind = "trap"


class Unsupported(ExecutionError):
    kind = "unsupported"


class BadDescriptor(ExecutionError):
    kind = "bad descriptor"


class MissingProxyFence(ExecutionError):
    """Memory was written through the generic proxy and is used by an asynchronous one without a proxy fence."""

    kind = "missing proxy fence"


class PendingRegisters(ExecutionError):
    """A register is used while an asynchronous product (wgmma) may still read or write it."""

    kind = "pending registers"


class TensorMemoryMisuse(ExecutionError):
    kind = "tensor memory misuse"


# In the order of FaultKind in native/fault.hpp.
FAULTS: tuple[type[ExecutionError], ...] = (
    OutOfBounds,
    Misaligned,
    Uninitialised,
    MbarrierMisuse,
    BarrierMisuse,
    Divergence,
    Race,
    Deadlock,
    Livelock,
    Trap,
    Unsupported,
    BadDescriptor,
    MissingProxyFence,
    PendingRegisters,
    TensorMemoryMisuse,
)


def _ranges(lanes: tuple[int, ...]) -> str:
    out: list[str] = []
    start = previous = lanes[0]
    for lane in (*lanes[1:], None):
        if lane is not None and lane == previous + 1:
            previous = lane
            continue
        out.append(str(start) if start == previous else f"{start}-{previous}")
        if lane is not None:
            start = previous = lane
    return ", ".join(out)


def _summary(waiting: list[WaitingWarp], limit: int = 40) -> list[str]:
    lines = [str(warp) for warp in waiting[:limit]]
    if len(waiting) > limit:
        lines.append(f"and {len(waiting) - limit} more warps")
    return lines
