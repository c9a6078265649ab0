"""Why a mutant of the fault suite is equivalent in all launches, or not reached: a table that the suite checks.

A reason is found by the instruction and by the function whose line it came from, so that it outlives edits elsewhere. A
mutant that is neither named nor in the table fails the suite: it is looked at, and gets a name or a reason.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from machete.sim.faults import Verdict

MEETS = "the warp meets again between the two accesses, in ring, barrier or signal; each meeting by itself would do"
DESCRIPTORS = "the warp meets again before it copies; or the loader has acquired the descriptors before the storer"
PASSED = "nobody has read the page that is passed over"
FENCED = "whoever writes and whoever copies both fence; either one suffices, and hardware is given both"
TAIL = "compute fences its shared memory before it hands on a stage, which comes between"
ARRIVED = "nothing refills the stage from which it waits for loads (decision 17) while they could be on their way"
ORDERED = "what it is for is ordered already, by the loader's wait or by the op's own; or it bounds bytes in flight"
STOPPED = "in a kernel that is being stopped, whose results are worthless; without it the CTA ends earlier"
SETTLED = "compute or the storer has waited for every copy, unless the kernel was stopped"
ASKED = "the storer asks whether to free pages early; compute does not need all of the ring at once here"
AHEAD = "what it waits for has come before, in all orders of these launches"
ELSEWHERE = "where the controller goes on after an alarm, which finds it in another of its waits here"
BUSY = "the storer frees its first page as soon as it is idle, which it always is before it has two"


@dataclass(frozen=True)
class Reason:
    """instruction: pattern of its beginning. function: pattern of the name, "" for any. outcome: the verdict's."""

    outcome: str
    instruction: str
    function: str
    why: str


WAIT = "launch"  # what the DSL says of waits that are written as inline PTX, and "()": of those after so many lines
REASONS = (
    # Stand-alone kernels.
    Reason("equivalent", r"fence\.mbarrier_init", "", "the next barrier.cluster publishes it too"),
    Reason("equivalent", r"tcgen05\.wait::ld", "tensor_load", "the next load of the same sums waits for this one, too"),
    Reason("equivalent", r"tcgen05\.relinquish_alloc_permit", "", "others allocate later, when this CTA has ended"),
    # The persistent kernel.
    Reason("equivalent", r"fence\.proxy\.tensormap", "fence_descriptor", DESCRIPTORS),
    Reason("equivalent", r"bar\.warp\.sync", "_acquire_descriptors", DESCRIPTORS),
    Reason("equivalent", r"bar\.warp\.sync", "align", PASSED),
    Reason("equivalent", r"bar\.warp\.sync", "_retire|_store_range|_finish|release|forward", MEETS),
    Reason("equivalent", r"bar\.sync", "sync_compute_threads", MEETS),
    Reason("equivalent", r"fence\.proxy\.async", "fence_async", FENCED),
    Reason("equivalent", r"fence\.proxy\.async", "fence_async_shared", f"{TAIL}; or {ARRIVED}"),
    Reason("equivalent", r"mbarrier\.test_wait", "mbarrier_test", ASKED),
    Reason("equivalent", r"mbarrier\.try_wait", "mbarrier_settle", SETTLED),
    Reason("equivalent", r"mbarrier\.try_wait", "()", STOPPED),
    Reason("equivalent", r"mbarrier\.try_wait", WAIT, ORDERED),
    Reason("equivalent", r"red\.release.* -> red\.relaxed", "counter_signal", ORDERED),
    Reason("equivalent", r"wgmma\.fence", "", "nothing touches the registers between the two products"),
    Reason("not reached", r"mbarrier\.try_wait", WAIT, AHEAD),
    Reason("not reached", r"mbarrier\.try_wait", "()", ELSEWHERE),
    Reason(
        "not reached", r"cp\.async\.bulk\.wait_group|mbarrier\.arrive", "bulk_wait_read|mbarrier_arrive(_many)?", BUSY
    ),
)


def reason(verdict: Verdict) -> str | None:
    """Why the verdict is not "named"; None if nobody has looked at it."""
    mutant = verdict.mutant
    name = _function(mutant.source) if mutant.source else ""
    for entry in REASONS:
        if entry.outcome != verdict.outcome or not re.match(entry.instruction, mutant.instruction):
            continue
        if not entry.function or re.fullmatch(entry.function, name):
            return entry.why
    return None


def _function(source: str) -> str:
    """The innermost function at file:line."""
    path, _, line = source.rpartition(":")
    best = ""
    for first, last, name in _functions(path):
        if first <= int(line) <= last:
            best = name
    return best


@cache
def _functions(path: str) -> list[tuple[int, int, str]]:
    """First and last line and name of a file's functions, outer ones before those in them."""
    nodes = [node for node in ast.walk(ast.parse(Path(path).read_text())) if isinstance(node, ast.FunctionDef)]
    return sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes)
