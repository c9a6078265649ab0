"""Why a mutant of the fault suite is equivalent, or not reached: a table that the suite checks.

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

MEETS = "the warp meets again, in ring, drain or row, between the two accesses; each meeting by itself would do"
LAST = "at the last row a role retires a slot that nobody uses again"
ROUND = "of a page or slot that this launch does not come round to"
ORDERED = "producer and consumer are on one SM in this plan, or the wait of another role orders them already"
PLAN = "compiled for every op and role; in this plan that role of the op has nothing to signal"
RETRY = "the second attempt of a wait whose first one succeeds, or the wait of an op that has no such pages"


@dataclass(frozen=True)
class Reason:
    """instruction: pattern of its beginning. function: pattern of the name, "" for any. outcome: the verdict's."""

    outcome: str
    instruction: str
    function: str
    why: str


REASONS = (
    # Stand-alone kernels.
    Reason("equivalent", r"fence\.mbarrier_init", "", "the next barrier.cluster publishes it too"),
    Reason("equivalent", r"tcgen05\.relinquish_alloc_permit", "", "others allocate later, when this CTA has ended"),
    # The persistent kernel.
    Reason("equivalent", r"bar\.warp\.sync", "_retire|_store_range|_watcher|commit|drain|release|_free_oldest", MEETS),
    Reason("equivalent", r"bar\.warp\.sync", "load_tile|load_bulk", MEETS),
    Reason("equivalent", r"bar\.warp\.sync", "_controller", LAST),
    Reason("equivalent", r"bar\.warp\.sync", "_acquire_descriptors", "nothing in the kernel writes what it reads"),
    Reason("equivalent", r"bar\.sync", "sync_compute_threads", "it precedes the signal of what one warp wrote"),
    Reason("equivalent", r"fence\.proxy\.async", "fence_async", "producer and loader both fence; either one suffices"),
    Reason("equivalent", r"mbarrier\.(init|arrive)", "mbarrier_init|mbarrier_arrive", ROUND),
    Reason("equivalent", r"mbarrier\.test_wait", "mbarrier_test", "the storer asks whether it may free pages early"),
    Reason("equivalent", r"mbarrier\.try_wait", "launch|until|mbarrier_wait", ORDERED),
    Reason("equivalent", r"red\.release.* -> red\.relaxed", "counter_signal", ORDERED),
    Reason("equivalent", r"wgmma\.fence", "", "nothing touches the registers between the two products"),
    Reason("not reached", r"fence\.proxy\.async", "fence_async|fence_async_shared", PLAN),
    Reason("not reached", r"red\.release", "counter_signal", PLAN),
    Reason("not reached", r"mbarrier\.try_wait", "launch|until|mbarrier_wait", RETRY),
    Reason("not reached", r"mbarrier\.try_wait", "mbarrier_settle", "the loader is not throttled"),
    Reason("not reached", r"mbarrier\.arrive", "mbarrier_arrive|mbarrier_arrive_many", ROUND),
    Reason("not reached", r"bar\.warp\.sync|cp\.async\.bulk\.wait_group", "commit|_free_oldest|bulk_wait_read", ROUND),
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
