"""Measured times for the planner: what a tile of each kind took, as `Megakernel(ops, profile=…)` takes it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from .attribution import CATEGORIES

if TYPE_CHECKING:
    from .trace import Trace

#: What a tile costs its SM, wherever it runs. Waits for other SMs are the plan's doing, and none of the tile's.
_OWN = ("streaming", "math", "page", "barrier", "signal", "unattributed")


def profile_of(trace: Trace) -> dict[int, float]:
    """Index of each op that was run to µs of one tile. Ops of one kind and the same extents share their mean."""
    attribution = trace.attribution
    own = np.isin(attribution.category, [CATEGORIES.index(name) for name in _OWN]) & (attribution.op >= 0)
    by_op = np.bincount(attribution.op[own], attribution.duration[own], minlength=len(trace.plan.ops))
    same: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, op in enumerate(trace.plan.ops):
        same[op.kind, op.extents].append(index)
    times: dict[int, float] = {}
    for ops in same.values():
        tiles = sum(trace.plan.ops[op].num_tiles for op in ops)
        us = float(by_op[ops].sum())
        if us > 0 and tiles:
            times |= dict.fromkeys(ops, us / tiles)
    return dict(sorted(times.items()))
