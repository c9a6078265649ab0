"""How far the loader is ahead of compute, and how many bytes are on their way: the ring over time.

The loader takes a stage and issues its copies. That they have landed is seen by whoever looks: compute, when it takes
the stage; or the loader itself, where a throttle has it wait for the stage so far back before it takes another. So a
stage is on its way from when it is taken until it is first seen there, at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.tooling import OP

from .events import tag
from .spans import rows_of_sm

if TYPE_CHECKING:
    from machete.megakernel import Plan

    from .trace import Trace

#: Of an op that streams under a throttle: stages on their way at first, for how many stages, and from then on.
Throttled = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of the ring of one SM, in the order in which they were taken.

    Attributes:
        nbytes: int64, what is copied into each, as its op's pipeline declares.
        taken, seen, used: float64, µs: the loader had it; it was first seen to have landed; compute had it.
    """

    nbytes: np.ndarray
    taken: np.ndarray
    seen: np.ndarray
    used: np.ndarray

    def ahead(self) -> tuple[np.ndarray, np.ndarray]:
        """(times, bytes from then on) that are asked for or there, and not in use."""
        return _over_time(self.nbytes, self.taken, self.used)

    def in_flight(self) -> tuple[np.ndarray, np.ndarray]:
        """(times, bytes from then on) that are on their way, at most."""
        return _over_time(self.nbytes, self.taken, self.seen)


def throttles_of(plan: Plan) -> tuple[Throttled | None, ...]:
    """For each op of a plan that was built here, how it is throttled."""
    found: list[Throttled | None] = []
    for op in plan.ops:
        kind = plan.kinds[op.kind]
        if kind.key is None or not kind.op.throttled or kind.pipeline is None or not kind.stage_pages:
            found.append(None)
            continue
        pages = plan.target.throttle.pages(kind.pipeline.copied_per_page, kind.stage_pages, plan.shared.ring_pages)
        first, ramp, steady = (-(-count // kind.stage_pages) for count in pages)
        found.append((first, ramp, steady))
    return tuple(found)


def stages_of(trace: Trace, sm: int) -> Stages:
    """The stages of an SM. Those that compute has not taken, since the trace was full, are used at the end."""
    ops = trace.plan.queues.rows[rows_of_sm(trace, sm), OP]
    taken, instruction = _of_role(trace, sm, "loader")
    # Each instruction's stages are used by compute, or by the multiplier.
    used, number = (
        np.concatenate(both)
        for both in zip(_of_role(trace, sm, "compute"), _of_role(trace, sm, "multiplier"), strict=True)
    )
    used = used[np.lexsort((used, number))]
    count = len(taken)
    used = np.append(used[:count], np.full(max(0, count - len(used)), trace.total_us))
    op = ops[instruction]
    nbytes = np.array([_stage_bytes(trace.plan, index) for index in range(len(trace.plan.ops))], dtype=np.int64)[op]
    return Stages(nbytes, taken, _seen(trace, taken, used, instruction, op), used)


def _of_role(trace: Trace, sm: int, role: str) -> tuple[np.ndarray, np.ndarray]:
    """(float64 µs, int64 instruction of the SM) of the stages that a role has taken, in order."""
    events = trace.events_of(sm, role)
    kind = trace.type[events]
    number = np.cumsum(kind == tag("instruction")) - 1
    stages = kind == tag("stage")
    return trace.time[events][stages], number[stages]


def _seen(trace: Trace, taken: np.ndarray, used: np.ndarray, instruction: np.ndarray, op: np.ndarray) -> np.ndarray:
    """float64[stages]: when each was first seen to have landed."""
    # Under a throttle of n, whoever takes stage k has seen stage k - n.
    none = (len(taken) + 1, 0, len(taken) + 1)
    limits = np.array([throttle or none for throttle in trace.throttles]).reshape(-1, 3)[op]
    since = np.arange(len(taken)) - np.searchsorted(instruction, instruction)
    back = np.arange(len(taken)) - np.where(since < limits[:, 1], limits[:, 0], limits[:, 2])
    seen = used.copy()
    np.minimum.at(seen, back[back >= 0], taken[back >= 0])
    return np.maximum(seen, taken)


def _over_time(nbytes: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lasts = end > begin
    nbytes, begin, end = nbytes[lasts], begin[lasts], end[lasts]
    time = np.concatenate([end, begin])  # a stage that is taken when another one ends takes its place
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(np.concatenate([-nbytes, nbytes])[order])


@dataclass(frozen=True)
class Ring:
    """How full the ring was, in bytes; means are over time, and over the SMs.

    Attributes:
        ahead_mean, ahead_most: asked for or there, and not in use.
        in_flight_mean, in_flight_most: on their way, at most.
        capacity: of the ring. A stage counts with what is copied into it, so it may never be reached.
    """

    ahead_mean: float
    ahead_most: int
    in_flight_mean: float
    in_flight_most: int
    capacity: int


def ring_of(trace: Trace) -> Ring:
    """The ring over a whole launch."""
    areas, most = [0.0, 0.0], [0, 0]
    for sm in range(trace.plan.num_sms):
        stages = stages_of(trace, sm)
        for which, (time, nbytes) in enumerate((stages.ahead(), stages.in_flight())):
            if len(time):
                areas[which] += float((np.diff(np.append(time, trace.total_us)) * nbytes).sum())
                most[which] = max(most[which], int(nbytes.max()))
    whole = trace.total_us * trace.plan.num_sms
    shared = trace.plan.shared
    return Ring(areas[0] / whole, most[0], areas[1] / whole, most[1], shared.ring_pages * shared.page_bytes)


def _stage_bytes(plan: Plan, op: int) -> int:
    kind = plan.kinds[plan.ops[op].kind]
    return kind.stage_pages * kind.pipeline.copied_per_page if kind.pipeline and kind.stage_pages else 0
