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
#: Cache lines over which a counter is spread that gets at least this many signals.
SHARDS = 4
SHARDED_FROM = 16
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
        shards = _Shards(plan)
        tables = [[entry for wait in waits for entry in shards.waits(*wait)] for waits in plan.waits]
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        begins = np.cumsum(counts) - counts
        signals = shards.signals(queue[:, SIGNAL])
        flags = counts[lists] + np.array(plan.loader_waits, dtype=np.int64)[ops] * LOADER_WAITS
        flags += np.array(plan.fences, dtype=np.int64)[ops] * FENCES
        flags += np.where(queue[:, TOTAL] >= 0, signals - shards.signals(queue[:, TOTAL]), 0) << TOTAL_SHIFT
        columns = [
            np.array(plan.kind_of_op)[ops],
            ops,
            queue[:, FIRST],
            queue[:, COUNT],
            queue[:, STEP],
            begins[lists],
            flags,
            signals,
        ]
        return cls(
            queue_begin=plan.queues.begin,
            rows=np.stack(columns, axis=1).astype(np.int32),
            waits=np.array([entry for table in tables for entry in table], dtype=np.int32).reshape(-1, 2),
            record_bytes=plan.shared.record_bytes,
            num_counters=shards.total + (plan.schedule == "dynamic"),
        )


class _Shards:
    """Counters of a plan as counters in memory: one that many SMs signal is spread over several cache lines.

    Signals to one address queue up at the L2 cache; whoever waits polls the shards side by side.
    """

    def __init__(self, plan: Plan) -> None:
        rows = plan.queues.rows.astype(np.int64)
        self._queue = np.repeat(np.arange(plan.queues.count), np.diff(plan.queues.begin))
        num = plan.num_dependency_counters
        per_range = np.array([plan.kinds[kind].signals_per_range for kind in plan.kind_of_op], dtype=np.int64)
        reach = np.zeros((num, SHARDS), dtype=np.int64)
        for column in (SIGNAL, TOTAL):
            signals = rows[:, column] >= 0
            where = rows[signals, column], self._queue[signals] % SHARDS
            np.add.at(reach, where, per_range[rows[signals, OP]])
        self._width = np.where(reach.sum(axis=1) >= SHARDED_FROM, SHARDS, 1)
        self._reach = reach.tolist()
        self._begin = np.cumsum(self._width) - self._width
        self.total = int(self._width.sum())

    def signals(self, counters: np.ndarray) -> np.ndarray:
        """int64[instructions]: the counter in memory that each one signals instead of one of the plan; -1 stays."""
        if not self.total:
            return counters
        known = np.maximum(counters, 0)
        return np.where(counters >= 0, self._begin[known] + self._queue % self._width[known], -1)

    def waits(self, counter: int, least: int) -> list[tuple[int, int]]:
        """A wait of the plan as waits in memory."""
        begin, reach = int(self._begin[counter]), self._reach[counter]
        if self._width[counter] == 1:
            return [(begin, least)]
        assert least == sum(reach)  # verified plans wait for all of a group
        return [(begin + shard, value) for shard, value in enumerate(reach) if value]
