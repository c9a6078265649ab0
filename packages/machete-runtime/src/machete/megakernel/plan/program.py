"""A plan as the tables that the device loop reads.

Nothing in them is an address: equal plans give equal bytes. Addresses come into the records, which launch packs
(`RecordLayout.pack`) whenever tensors are bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.queues import COUNT, FIRST, OP, STEP

MAX_WAITS = 0xFFFF
LOADER_WAITS = 1 << 16
FENCES = 1 << 17


@dataclass(frozen=True, eq=False)
class Program:
    """Tables in global memory.

    Attributes:
        queue_begin: int32[SMs + 1]; SM s runs rows queue_begin[s] to queue_begin[s + 1].
        rows: int32[instructions, 8]: kind, op, first tile, number of tiles, step, first wait, number of waits
            (plus LOADER_WAITS if the loader has to wait, too, and FENCES if somebody loads what it writes), counter to
            signal or -1.
        waits: int32[waits, 2]: counter, and the value that it has to reach.
        record_bytes: from one op's record to the next.
    """

    queue_begin: np.ndarray
    rows: np.ndarray
    waits: np.ndarray
    record_bytes: int

    @classmethod
    def of(cls, plan: Plan) -> Program:
        """The tables of a plan."""
        counts = np.array([len(waits) for waits in plan.waits], dtype=np.int64)
        if counts.max() > MAX_WAITS:
            op = int(counts.argmax())
            raise PlanError(
                what=f"op {op} waits for {counts[op]} ops",
                where=f"op {op} ({plan.kinds[plan.kind_of_op[op]].name})",
                why=f"an instruction has at most {MAX_WAITS} waits",
                fix="join the outputs that it reads in fewer ops",
            )
        begins = np.concatenate([[0], np.cumsum(counts)])[:-1]
        flags = np.array(plan.loader_waits, dtype=np.int64) * LOADER_WAITS
        flags += np.array(plan.fences, dtype=np.int64) * FENCES
        queue = plan.queues.rows
        ops = queue[:, OP]
        columns = [
            np.array(plan.kind_of_op)[ops],
            ops,
            queue[:, FIRST],
            queue[:, COUNT],
            queue[:, STEP],
            begins[ops],
            (counts | flags)[ops],
            np.array(plan.counters)[ops],
        ]
        return cls(
            queue_begin=plan.queues.begin,
            rows=np.stack(columns, axis=1).astype(np.int32),
            waits=np.array([wait for waits in plan.waits for wait in waits], dtype=np.int32).reshape(-1, 2),
            record_bytes=plan.shared.record_bytes,
        )
