"""The trace buffer: for each SM a header, and room for the events of each role, as many as the plan lets expect."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .events import EVENT_BYTES

if TYPE_CHECKING:
    from machete.megakernel import Plan

ROLES = ("controller", "watcher", "loader", "compute", "storer", "multiplier")


def roles_of(plan: Plan) -> tuple[str, ...]:
    """The roles that a plan's kernel has, storer and loader also where they have nothing to do."""
    return ROLES if plan.shared.accumulators else ROLES[:-1]


#: Header of an SM, in 8-byte words: for each role how many events it had, then two pairs of times, see `SAMPLES`.
COUNT_WORD, SAMPLE_WORD, HEADER_WORDS = 0, 8, 24
#: When the watcher begins, and when it ends: global time, the SM's clock just after, clock reads until it changed, and
#: the step by which it changed.
SAMPLES = 2
SAMPLE_WORDS = 4
SM_WORD = 16
HEADER_BYTES = 8 * HEADER_WORDS

#: Events that a role has whatever the plan is.
_FIXED = 16
#: How many more SMs may fetch of a shared queue than their even share.
_UNEVEN = 4


@dataclass(frozen=True)
class BufferLayout:
    """Where things are in the buffer.

    Attributes:
        num_sms: SMs of the plan.
        capacity: for each of `ROLES`, events of an SM that fit.
    """

    num_sms: int
    capacity: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan) -> BufferLayout:
        """Room for what the plan's instructions record if every wait has to wait, twice over."""
        per_op = np.array([_events(plan, index) for index in range(len(plan.ops))], dtype=np.float64)
        rows = plan.queues.rows.astype(np.int64)
        ops, counts = rows[:, 0], rows[:, 2]
        of_row = per_op[ops, 0] + per_op[ops, 1] * counts[:, None]  # [instructions, roles]
        totals = np.vstack([np.zeros(len(ROLES)), np.cumsum(of_row, axis=0)])
        per_queue = totals[plan.queues.begin[1:]] - totals[plan.queues.begin[:-1]]
        if plan.schedule == "static":
            most = per_queue.max(axis=0)
        else:
            most = np.minimum(totals[-1], _UNEVEN * totals[-1] / plan.num_sms + of_row.max(axis=0, initial=0))
        return cls(plan.num_sms, tuple(math.ceil(events) + _FIXED for events in most))

    @property
    def sm_bytes(self) -> int:
        """From one SM to the next; a multiple of 128."""
        return -(-(HEADER_BYTES + EVENT_BYTES * sum(self.capacity)) // 128) * 128

    @property
    def nbytes(self) -> int:
        """The whole buffer."""
        return self.num_sms * self.sm_bytes

    def offset(self, role: str) -> int:
        """Byte offset of a role's events in an SM's part."""
        return HEADER_BYTES + EVENT_BYTES * sum(self.capacity[: ROLES.index(role)])


def _events(plan: Plan, index: int) -> tuple[list[float], list[float]]:
    """(for each instruction, for each tile) of an op: events of each role."""
    op = plan.ops[index]
    kind = plan.kinds[op.kind]
    each, tile = dict.fromkeys(ROLES, 0.0), dict.fromkeys(ROLES, 0.0)
    each |= dict.fromkeys(roles_of(plan), 8.0 if plan.shared.accumulators else 6.0)
    tile |= {"loader": 2.0, "compute": 4.0, "storer": 4.0, "multiplier": 4.0}
    if kind.stage_pages and kind.pipeline is not None:
        stages = 2 + 2 * math.ceil(op.tile_bytes / (kind.stage_pages * kind.pipeline.copied_per_page))
        tile["loader"] += stages * (1 + 4 * kind.stage_pages)  # a wait for each page, and for each landing
        tile["multiplier" if kind.multiplies else "compute"] += 3 * stages
        if kind.has_store:
            tile["compute"] += 2 * stages
            tile["storer"] += 4 * stages
    return [each[role] for role in ROLES], [tile[role] for role in ROLES]
