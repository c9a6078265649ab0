"""How far the loader is ahead of compute: stages of the ring that it has taken, and compute has not yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.tooling import OP

from .events import tag
from .spans import rows_of_sm

if TYPE_CHECKING:
    from .trace import Trace


def bytes_ahead(trace: Trace, sm: int) -> tuple[np.ndarray, np.ndarray]:
    """(float64[n], int64[n]): times, and the bytes that are asked for or there, and not in use, from then on.

    A stage counts with what its op copies into it, as its pipeline declares.
    """
    ops = trace.plan.queues.rows[rows_of_sm(trace, sm), OP]
    per_op = np.array([_stage_bytes(trace, op) for op in range(len(trace.plan.ops))], dtype=np.int64)
    sides = []
    for role in ("loader", "compute"):
        events = trace.events_of(sm, role)
        kind = trace.type[events]
        number = np.cumsum(kind == tag("instruction")) - 1
        stages = kind == tag("stage")
        sides.append((trace.time[events][stages], per_op[ops[number[stages]]]))
    (taken, sizes), (used, used_sizes) = sides
    time = np.concatenate([taken, used])
    change = np.concatenate([sizes, -used_sizes])
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


@dataclass(frozen=True)
class Ring:
    """How full the ring was: bytes that were asked for or there, and not in use.

    Attributes:
        mean_bytes: over time, and over the SMs.
        most_bytes: on any SM at any time.
        capacity_bytes: of the ring; a stage counts with what is copied into it, so it may never be reached.
    """

    mean_bytes: float
    most_bytes: int
    capacity_bytes: int


def ring_of(trace: Trace) -> Ring:
    """The ring over a whole launch."""
    area, most = 0.0, 0
    for sm in range(trace.plan.num_sms):
        time, ahead = bytes_ahead(trace, sm)
        if len(time):
            area += float((np.diff(np.append(time, trace.total_us)) * ahead).sum())
            most = max(most, int(ahead.max()))
    shared = trace.plan.shared
    return Ring(area / (trace.total_us * trace.plan.num_sms), most, shared.ring_pages * shared.page_bytes)


def _stage_bytes(trace: Trace, op: int) -> int:
    kind = trace.plan.kinds[trace.plan.ops[op].kind]
    return kind.stage_pages * kind.pipeline.copied_per_page if kind.pipeline and kind.stage_pages else 0
