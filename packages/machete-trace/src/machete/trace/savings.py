"""Which changes would save most, each with the µs by which a launch would be shorter if its cause were gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .attribution import CATEGORIES, Attribution
from .floors import Floor

if TYPE_CHECKING:
    from machete.megakernel import Plan

_ADVICE = {
    "streaming": "{who} waits for memory longer than its bytes need: keep more of them in flight (throttle=), or "
    "give its ring more stages",
    "math": "{who} computes longer than its bytes and FLOPs need: a faster compute phase",
    "dependency": "{who} waits for {whom}: fuse the two, read ahead what does not depend, or depend on fewer tiles",
    "page": "{who} waits for pages: smaller stages, more of them, or results that leave earlier",
    "barrier": "{who} waits inside of its SMs: the same work for every warp, fewer and longer instructions",
    "imbalance": "SMs wait for stragglers of {whom}: smaller tiles, or a plan from measured times (trace.profile())",
    "signal": "{who} waits until others can see its results before it says so: fewer and longer instructions",
    "tail": "the kernel ends late: what is stored last is waited for",
    "launch": "SMs begin late: fewer instructions before the first tile",
    "unattributed": "{who} spends time between phases: fewer and longer instructions",
}


@dataclass(frozen=True)
class Saving:
    """One change: what it is about, what to do, and µs of the launch that it would save at most."""

    category: str
    ops: tuple[int, ...]
    advice: str
    us: float


def savings_of(
    plan: Plan, attribution: Attribution, floors: list[Floor], name_of: Callable[[int], str]
) -> list[Saving]:
    """All of them, the largest first. Ops of one kind are changed together, so they count together."""
    duration = attribution.duration / plan.num_sms
    kinds = np.append([op.kind for op in plan.ops], -1)
    kind, blamed = kinds[attribution.op], kinds[attribution.blamed]
    found: dict[tuple[str, int, int], float] = defaultdict(float)
    for number, category in enumerate(CATEGORIES):
        of_category = attribution.category == number
        by_op = np.bincount(
            attribution.op[of_category & (attribution.op >= 0)],
            duration[of_category & (attribution.op >= 0)],
            minlength=len(plan.ops),
        )
        if category in ("streaming", "math"):
            for op, floor in enumerate(floors):
                least = floor.us if category == "math" else max(0.0, floor.us - _math(attribution, duration, op))
                found[category, plan.ops[op].kind, -1] += max(0.0, float(by_op[op]) - least)
        elif category == "imbalance":
            for whom in np.unique(blamed[of_category]).tolist():
                found[category, -1, whom] += float(duration[of_category & (blamed == whom)].sum())
        else:
            pairs = {(a, b) for a, b in zip(kind[of_category].tolist(), blamed[of_category].tolist(), strict=True)}
            for who, whom in pairs:
                found[category, who, whom] += float(duration[of_category & (kind == who) & (blamed == whom)].sum())
    savings = []
    for (category, who, whom), us in found.items():
        changed = whom if category == "imbalance" else who
        advice = _ADVICE[category].format(who=_named(plan, who, name_of), whom=_named(plan, whom, name_of))
        ops = tuple(index for index, op in enumerate(plan.ops) if op.kind == changed)
        savings.append(Saving(category, ops, advice, us))
    return sorted(savings, key=lambda saving: -saving.us)


def _math(attribution: Attribution, duration: np.ndarray, op: int) -> float:
    mask = (attribution.op == op) & (attribution.category == CATEGORIES.index("math"))
    return float(duration[mask].sum())


def _named(plan: Plan, kind: int, name_of: Callable[[int], str]) -> str:
    """The ops of a kind: one by its number, many by their count."""
    ops = [index for index, op in enumerate(plan.ops) if op.kind == kind]
    if not ops:
        return "no op"
    return f"op {ops[0]} ({name_of(ops[0])})" if len(ops) == 1 else f"{name_of(ops[0])} ({len(ops)} ops)"
