"""Fault injection: every synchronisation instruction of a kernel removed, one at a time.

A checker is worth what it finds. Each mutant of a kernel is run in several orders, in one recorded launch or in several
that use the kernel differently, and must be *named* by a report. One that nothing makes fail is *equivalent*: every
conflicting pair of accesses stays ordered without it, which the checker itself has then established in each run. One
that no launch executes is *not reached*, and one with another result and no report is *missed*.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import ExecutionError, Trap
from .image import Image
from .ptx import Instruction
from .recording import RecordedLaunch

SYNCHRONISATION = re.compile(
    r"mbarrier\.(init|inval|arrive|arrive_drop|test_wait|try_wait|expect_tx|complete_tx)\b.*"
    r"|cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all)\b.*|cp\.async\.mbarrier\.arrive\b.*"
    r"|(bar|barrier)\b.*|fence\b.*|membar\b.*|wgmma\.(fence|commit_group|wait_group)\b.*"
    r"|tcgen05\.(alloc|dealloc|relinquish_alloc_permit|commit|wait|fence)\b.*|(ld\.acquire|st\.release|(red|atom)\.(acquire|release|acq_rel))\b.*"
)
NO_FAULT = re.compile(r"fence\.proxy\.(alias|tensormap::generic\.release)\b.*")  # has no effect in the simulator
WAIT = re.compile(r"mbarrier\.(test_wait|try_wait)\b.*")
ORDERED = re.compile(r"(ld|st|red|atom)\.(acquire|release|acq_rel)\b")


@dataclass(frozen=True)
class Mutant:
    """One removed instruction: its text, its line in the PTX, the author's line, and the program without it."""

    instruction: str
    line: int
    source: str | None
    text: str
    unreachable: str  # the same program with a trap in its place


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. outcome: "named", "equivalent", "not reached" or "missed"; by: the report's kind."""

    mutant: Mutant
    outcome: str
    by: str
    detail: str


def mutants(launch: RecordedLaunch) -> Iterator[Mutant]:
    """All mutants of a launch's kernel, in the order of its text."""
    module, kernel = launch.image.module, launch.image.kernel
    for ins in kernel.instructions:
        if not SYNCHRONISATION.fullmatch(ins.opcode) or NO_FAULT.fullmatch(ins.opcode):
            continue
        end = module.text.index(";", ins.offset) + 1
        for replacement in _replacements(ins):
            before, after = module.text[: ins.offset], module.text[end:]
            guard = f"@{'!' if ins.negated else ''}{ins.guard} " if ins.guard else ""
            change = "" if replacement in (NOTHING, _passed(ins)) else f" -> {replacement}"
            yield Mutant(
                f"{guard}{ins.opcode} {' '.join(ins.operands.split())}{change}",
                module.line(ins.offset),
                module.source(kernel, ins.offset),
                before + replacement + after,
                before + "trap;" + after,
            )


NOTHING = "fence.proxy.alias;"  # does nothing, and takes a guard


def _replacements(ins: Instruction) -> Iterator[str]:
    """What is left of an instruction without its synchronisation. Where it yields a value, it still does."""
    operands = " ".join(ins.operands.split())
    if WAIT.fullmatch(ins.opcode):
        yield _passed(ins)
    elif ORDERED.match(ins.opcode):
        relaxed = ORDERED.sub(r"\1.relaxed", ins.opcode)
        yield f"{relaxed} {operands};"
        if ins.opcode.startswith(("red", "st")):
            yield NOTHING
    elif re.match(r"mbarrier\.arrive.*\.expect_tx", ins.opcode):
        yield NOTHING
        yield f"{ins.opcode.replace('.expect_tx', '')} {operands.rpartition(',')[0]};"
    else:
        yield NOTHING


def _passed(ins: Instruction) -> str:
    """A wait that does not wait."""
    return f"setp.eq.u32 {ins.operands.partition(',')[0].strip()}, 0, 0;" if WAIT.fullmatch(ins.opcode) else ""


@dataclass(frozen=True)
class _Trial:
    """A launch of the kernel, and after how many instructions it is a livelock.

    expected: what its memory holds when it ends; None if that depends on the order, or if nobody asks whether it does:
    a launch of which only the accesses to memory are checked may end with anything.
    """

    launch: RecordedLaunch
    expected: tuple[bytes, ...] | None
    budget: int

    @classmethod
    def of(cls, launch: RecordedLaunch, seeds: Sequence[int]) -> "_Trial":
        """Run it in each of the orders: raises what the kernel does wrong by itself."""
        instructions, contents = [], set()
        for seed in seeds:
            instructions.append(launch.replay(seed=seed).instructions)
            contents.add(launch.contents())
        same = len(contents) == 1 and launch.config.check != "memory"
        expected = contents.pop() if same else None
        return cls(launch, expected, max(20 * max(instructions), 1_000_000))

    def run(self, image: Image, seed: int) -> bool:
        """Run a mutant; whether the result is as it should be."""
        self.launch.replay(image=image, seed=seed, max_instructions=self.budget)
        return self.expected is None or self.launch.contents() == self.expected


def _judge(trials: Sequence[_Trial], mutant: Mutant, seeds: Sequence[int]) -> Verdict:
    """Run a mutant: each launch, in several orders, short launches first."""
    original = trials[0].launch.image
    by_length = sorted(enumerate(trials), key=lambda entry: entry[1].budget)
    runs = [(seed, number, trial) for number, trial in by_length for seed in seeds]
    image = Image.from_ptx(mutant.text, original.kernel.name, original.arch)
    differs = False
    for seed, number, trial in runs:
        try:
            differs |= not trial.run(image, seed)
        except ExecutionError as error:
            return Verdict(mutant, "named", error.kind, f"launch {number}, seed {seed}: {error}")
    if differs:
        return Verdict(mutant, "missed", "another result, and no report", "")
    image = Image.from_ptx(mutant.unreachable, original.kernel.name, original.arch)
    for seed, _, trial in runs:
        try:
            trial.run(image, seed)
        except Trap:
            return Verdict(mutant, "equivalent", "every conflicting access stays ordered without it", "")
    return Verdict(mutant, "not reached", "never executed by these launches", "")


def inject(
    launches: RecordedLaunch | Sequence[RecordedLaunch],
    seeds: Sequence[int] = range(4),
    *,
    every: int = 1,
) -> Iterator[Verdict]:
    """Judge each mutant (or each n-th) of a kernel, by one launch of it or by several.

    What one launch has no use for another may need: a mutant that any of them names is named. The launches themselves
    must run without a report in each of the orders. Those with check="memory" may have any result.
    """
    launches = [launches] if isinstance(launches, RecordedLaunch) else launches
    text = launches[0].image.module.text
    for number, launch in enumerate(launches):
        if launch.image.module.text != text:
            raise ValueError(f"launch {number} is of another kernel than launch 0: judge them one after the other")
    trials = [_Trial.of(launch, seeds) for launch in launches]
    for number, mutant in enumerate(mutants(launches[0])):
        if number % every == 0:
            yield _judge(trials, mutant, seeds)
