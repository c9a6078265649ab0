"""A plan's run, as the cost model sees it: when each SM begins and ends each of its instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.plan.cost import RATES
from machete.megakernel.plan.queues import COUNT, OP, SIGNAL, TOTAL, WAITS

if TYPE_CHECKING:
    from machete.megakernel.plan.plan import Plan


@dataclass(frozen=True)
class Timeline:
    """One entry for each row of `plan.queues`; times in µs.

    Attributes:
        sm: int64, who runs it. Where SMs fetch instructions, the one that is free first does.
        turned: float64, when the SM has nothing else to do any more.
        begin: float64, when what it waits for is there.
        end: float64, when its tiles are done.
    """

    sm: np.ndarray
    turned: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @property
    def total_us(self) -> float:
        """When the last tile is done."""
        return float(self.end.max(initial=0.0))

    @property
    def waiting_us(self) -> np.ndarray:
        """float64: how long each instruction keeps its SM waiting."""
        return self.begin - self.turned


def timeline(plan: Plan) -> Timeline:
    """Walk through the queues. Loads that run ahead of their instruction are not in the model."""
    rates, rows = RATES[plan.target.name], plan.queues.rows
    queue = np.repeat(np.arange(plan.queues.count), np.diff(plan.queues.begin))
    free = [0.0] * plan.num_sms
    reached = [0.0] * plan.num_dependency_counters
    sms, turned, begin, end = (np.zeros(len(rows)) for _ in range(4))
    # Queues keep list order, and waits are for earlier ops only: op by op, everything that is waited for has a time.
    order = np.argsort(rows[:, OP], kind="stable")
    for row in order.tolist():
        op, count, waits, signal, total = rows[row, [OP, COUNT, WAITS, SIGNAL, TOTAL]].tolist()
        sm = int(queue[row]) if plan.schedule == "static" else min(range(len(free)), key=free.__getitem__)
        ready = max((reached[counter] + rates.dependency_us for counter, _ in plan.waits[waits]), default=0.0)
        sms[row], turned[row], begin[row] = sm, free[sm], max(free[sm], ready)
        end[row] = free[sm] = begin[row] + rates.instruction_us + count * plan.ops[op].tile_us
        for counter in (signal, total):
            if counter >= 0:
                reached[counter] = max(reached[counter], free[sm])
    return Timeline(sms.astype(np.int64), turned, begin, end)
