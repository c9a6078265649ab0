"""A plan as the tables that the device loop reads.

Nothing in them is an address: equal plans give equal bytes. Addresses come into the records, which launch packs
(`RecordLayout.pack`) whenever tensors are bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.queues import COUNT, FIRST, OP, SIGNAL, STEP, TOTAL, WAITS

MAX_WAITS = 0xFFFF
LOADER_WAITS = 1 << 16
FENCES = 1 << 17
TOTAL_SHIFT = 18
#: In place of a kind: the queue ends here.
END = -1


@dataclass(frozen=True, eq=False)
class Program:
    """Tables in global memory.

    Attributes:
        queue_begin: int32[queues + 1]; queue q is rows queue_begin[q] to queue_begin[q + 1]. There is one for each SM,
            or one for all.
        rows: int32[instructions, 8]: kind, op, first tile, number of tiles, step, first wait, flags, counter to signal
            or -1. Flags are the number of waits, plus LOADER_WAITS if the loader has to wait, too, FENCES if somebody
            loads what it writes, and, from bit TOTAL_SHIFT on, how far before its counter that of the whole op is, if
            it signals both.
        waits: int32[waits, 2]: counter, and the value that it has to reach.
        record_bytes: from one op's record to the next.
        num_counters: counters in memory; where SMs share a queue, the last one hands out its rows.
    """

    queue_begin: np.ndarray
    rows: np.ndarray
    waits: np.ndarray
    record_bytes: int
    num_counters: int

    @classmethod
    def of(cls, plan: Plan) -> Program:
        """The tables of a plan."""
        counts = np.array([len(waits) for waits in plan.waits], dtype=np.int64)
        queue = plan.queues.rows.astype(np.int64)
        ops, lists = queue[:, OP], queue[:, WAITS]
        if counts.max() > MAX_WAITS:
            op = int(ops[lists == counts.argmax()][0])
            raise PlanError(
                what=f"an instruction of op {op} waits for {counts.max()} counters",
                where=f"op {op} ({plan.kinds[plan.kind_of_op[op]].name})",
                why=f"an instruction has at most {MAX_WAITS} waits",
                fix="join the outputs that it reads in fewer ops",
            )
        begins = np.cumsum(counts) - counts
        flags = counts[lists] + np.array(plan.loader_waits, dtype=np.int64)[ops] * LOADER_WAITS
        flags += np.array(plan.fences, dtype=np.int64)[ops] * FENCES
        flags += np.where(queue[:, TOTAL] >= 0, queue[:, SIGNAL] - queue[:, TOTAL], 0) << TOTAL_SHIFT
        columns = [
            np.array(plan.kind_of_op)[ops],
            ops,
            queue[:, FIRST],
            queue[:, COUNT],
            queue[:, STEP],
            begins[lists],
            flags,
            queue[:, SIGNAL],
        ]
        return cls(
            queue_begin=plan.queues.begin,
            rows=np.stack(columns, axis=1).astype(np.int32),
            waits=np.array([wait for waits in plan.waits for wait in waits], dtype=np.int32).reshape(-1, 2),
            record_bytes=plan.shared.record_bytes,
            num_counters=plan.num_counters,
        )
