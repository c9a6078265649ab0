"""Measured times for the planner: what a tile of each kind took, as `Megakernel(ops, profile=…)` takes it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from .attribution import CATEGORIES

if TYPE_CHECKING:
    from .trace import Trace

#: What a tile costs its SM, wherever it runs. Waits for other SMs are the plan's doing, and none of the tile's.
_OWN = ("streaming", "math", "page", "barrier", "unattributed")


def profile_of(trace: Trace) -> dict[str, float]:
    """Kind name to µs of one tile. Kinds of one name are averaged over their tiles, as the planner has it."""
    attribution = trace.attribution
    own = np.isin(attribution.category, [CATEGORIES.index(name) for name in _OWN]) & (attribution.op >= 0)
    by_op = np.bincount(attribution.op[own], attribution.duration[own], minlength=len(trace.plan.ops))
    times: dict[str, float] = defaultdict(float)
    tiles: dict[str, int] = defaultdict(int)
    for op, us in zip(trace.plan.ops, by_op.tolist(), strict=True):
        name = trace.plan.kinds[op.kind].name
        times[name] += us
        tiles[name] += op.num_tiles
    return {name: us / tiles[name] for name, us in times.items() if us > 0 and tiles[name]}
