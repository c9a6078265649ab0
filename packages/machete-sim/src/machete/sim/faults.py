"""Fault injection: every synchronisation instruction of a kernel removed, one at a time.

A checker is worth what it finds. Each mutant of a recorded launch is run in several orders and must be *named* by a
report. One that no order makes fail is *equivalent*: every conflicting pair of accesses stays ordered without it, which
the checker itself has then established in each of the orders. One that this launch never executes is *not reached*, and
one with another result and no report is *missed*.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .errors import ExecutionError, Trap
from .ptx import Instruction
from .recording import RecordedLaunch

SYNCHRONISATION = re.compile(
    r"mbarrier\.(init|inval|arrive|arrive_drop|test_wait|try_wait|expect_tx|complete_tx)\b.*"
    r"|cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all)\b.*|cp\.async\.mbarrier\.arrive\b.*"
    r"|(bar|barrier)\b.*|fence\b.*|membar\b.*|wgmma\.(fence|commit_group|wait_group)\b.*"
    r"|tcgen05\.(alloc|dealloc|relinquish_alloc_permit|commit|wait|fence)\b.*|(ld\.acquire|st\.release|(red|atom)\.(acquire|release|acq_rel))\b.*"
)
NO_FAULT = re.compile(r"fence\.proxy\.(alias|tensormap)\b.*")  # has no effect in the simulator
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


def judge(launch: RecordedLaunch, mutant: Mutant, expected: tuple[bytes, ...], seeds: Sequence[int]) -> Verdict:
    """Run a mutant in several orders."""
    budget = max(20 * launch.replay(seed=seeds[0]).instructions, 1_000_000)
    differs = False
    for seed in seeds:
        try:
            launch.replay(text=mutant.text, seed=seed, max_instructions=budget)
        except ExecutionError as error:
            return Verdict(mutant, "named", error.kind, f"seed {seed}: {error}")
        differs |= launch.contents() != expected
    if differs:
        return Verdict(mutant, "missed", "another result, and no report", "")
    for seed in seeds:
        try:
            launch.replay(text=mutant.unreachable, seed=seed, max_instructions=budget)
        except Trap:
            return Verdict(mutant, "equivalent", "every conflicting access stays ordered without it", "")
    return Verdict(mutant, "not reached", "never executed by this launch", "")


def inject(launch: RecordedLaunch, seeds: Sequence[int] = range(4), *, every: int = 1) -> Iterator[Verdict]:
    """Judge each mutant (or each n-th). The launch itself must run without a report in each of the orders."""
    for seed in seeds:
        launch.replay(seed=seed)
    expected = launch.contents()
    for number, mutant in enumerate(mutants(launch)):
        if number % every == 0:
            yield judge(launch, mutant, expected, seeds)
