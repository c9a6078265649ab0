"""A plan: everything that is decided before code is compiled, as a plain value."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx
import numpy as np

from machete.megakernel.abi.errors import DeviceError, PlanError
from machete.megakernel.abi.op import check_claimed
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import Target
from machete.megakernel.plan import serial, verification
from machete.megakernel.plan.dependencies import Dependency, find_hazards, reads_loaded, reduce_hazards
from machete.megakernel.plan.kinds import Kind, kinds_of
from machete.megakernel.plan.memory import Access, accesses_of
from machete.megakernel.plan.queues import Queues, build_queues
from machete.megakernel.plan.shared import SharedLayout

#: (counter, value that it has to reach)
Wait = tuple[int, int]


@dataclass(frozen=True)
class PlannedOp:
    """One op of a plan.

    Attributes:
        kind: index of its kind.
        extents: (dim, extent).
        tiles: number of tiles along each tiled dim.
        accesses: the memory that it touches.
    """

    kind: int
    extents: tuple[tuple[str, int], ...]
    tiles: tuple[int, ...]
    accesses: tuple[Access, ...]

    @property
    def num_tiles(self) -> int:
        """Number of tiles, 1 if nothing is tiled."""
        return math.prod(self.tiles)


@dataclass(frozen=True)
class Plan:
    """Printable, comparable, serialisable; `verify` proves that it is sound.

    Attributes:
        target, num_sms: what it was made for.
        kinds: the bodies to compile.
        ops: in list order; indices of ops count here.
        dependencies: the transitive reduction of all hazards.
        queues: each SM's instructions.
        counters: for each op the counter that its finished ranges add to, or -1 if nobody waits for it.
        waits: for each op what it waits for.
        loader_waits: for each op whether something that `load` reads is written by an earlier op.
        fences: for each op whether a later op loads what it writes, by copies that need a proxy fence before them.
        shared: the shared memory of each CTA.
    """

    target: Target
    num_sms: int
    kinds: tuple[Kind, ...]
    ops: tuple[PlannedOp, ...]
    dependencies: tuple[Dependency, ...]
    queues: Queues
    counters: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    loader_waits: tuple[bool, ...]
    fences: tuple[bool, ...]
    shared: SharedLayout

    @classmethod
    def build(cls, ops: Sequence[ScheduledOp], target: Target, num_sms: int) -> Plan:
        """Plan lowered ops (`Op.lower`) for `num_sms` SMs.

        Raises:
            PlanError: no ops, not ops, or no SMs.
            DeviceError: ops on several devices.
            TargetError: an op does not claim the target.
            PipelineError: the page ring does not fit the target.
        """
        ops = list(ops)
        _check_ops(ops, target)
        if num_sms < 1:
            raise PlanError(
                what=f"num_sms={num_sms}",
                where="Plan.build",
                why="tiles are spread over at least one SM",
                fix="num_sms=1 or more",
            )
        kinds, kind_of_op = kinds_of(ops)
        accesses = accesses_of(ops)
        hazards = find_hazards(accesses)
        dependencies = reduce_hazards(hazards)
        queues = build_queues([op.num_tiles for op in ops], num_sms)
        ranges = queues.ranges_per_op(len(ops))
        producers = sorted({dependency.producer for dependency in dependencies})
        counter_of = {op: counter for counter, op in enumerate(producers)}
        waits: list[list[Wait]] = [[] for _ in ops]
        for dependency in dependencies:
            producer = dependency.producer
            signals = kinds[kind_of_op[producer]].signals_per_range
            waits[dependency.consumer].append((counter_of[producer], int(ranges[producer]) * signals))
        # Of all hazards, not the reduced ones: an edge that others imply is still a reason to wait, and to fence.
        loads = [
            (producer, consumer)
            for consumer, found in hazards.items()
            for producer, pairs in found.items()
            if reads_loaded(accesses[consumer], pairs)
        ]
        loaded_by, loads_from = {producer for producer, _ in loads}, {consumer for _, consumer in loads}
        return cls(
            target=target,
            num_sms=num_sms,
            kinds=kinds,
            ops=tuple(
                PlannedOp(kind, tuple(op.extents.items()), op.tiles, op_accesses)
                for op, kind, op_accesses in zip(ops, kind_of_op, accesses, strict=True)
            ),
            dependencies=dependencies,
            queues=queues,
            counters=tuple(counter_of.get(op, -1) for op in range(len(ops))),
            waits=tuple(map(tuple, waits)),
            loader_waits=tuple(op in loads_from for op in range(len(ops))),
            fences=tuple(op in loaded_by for op in range(len(ops))),
            shared=SharedLayout.build(kinds, target),
        )

    @property
    def kind_of_op(self) -> tuple[int, ...]:
        """For each op the index of its kind."""
        return tuple(op.kind for op in self.ops)

    @property
    def num_counters(self) -> int:
        """Number of counters in global memory."""
        return 1 + max(self.counters)

    @property
    def tiles_per_sm(self) -> np.ndarray:
        """int64[SMs]: number of tiles that each SM runs."""
        return self.queues.tiles_per_sm()

    def verify(self) -> None:
        """Prove the plan sound, or raise `PlanError` with the reason (see `plan.verification`)."""
        verification.verify(self)

    def graph(self) -> networkx.DiGraph:
        """Ops and dependencies, to draw or to analyse: nodes carry `label`, edges `hazards`."""
        graph = networkx.DiGraph()
        for index, op in enumerate(self.ops):
            graph.add_node(index, label=f"{index}: {self.kinds[op.kind].name.rpartition('.')[2]}")
        for dependency in self.dependencies:
            graph.add_edge(dependency.producer, dependency.consumer, hazards=sorted(dependency.hazards))
        return graph

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings."""
        return serial.plan_to_dict(self)

    def to_json(self) -> str:
        """The plan as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote. Imports no op package, so its kinds know their classes by name only."""
        return serial.plan_from_dict(json.loads(text))

    def __str__(self) -> str:
        shared, per_sm = self.shared, self.tiles_per_sm
        lines = [
            (
                f"plan for {self.target.name}, {self.num_sms} SMs: {len(self.ops)} ops of {len(self.kinds)} kinds, "
                f"{len(self.dependencies)} dependencies, {len(self.queues.rows)} instructions, "
                f"{per_sm.min()} to {per_sm.max()} tiles per SM"
            ),
            (
                f"shared memory: {shared.total_bytes} of {self.target.shared_bytes} bytes; ring of "
                f"{shared.ring_pages} pages of {shared.page_bytes} bytes, {shared.output_slots} output slots, "
                f"{shared.resident_bytes} resident bytes, records of {shared.record_bytes} bytes"
            ),
        ]
        for index, op in enumerate(self.ops):
            kind = self.kinds[op.kind]
            tiles = " × ".join(map(str, op.tiles)) or "1"
            edges = [d for d in self.dependencies if d.consumer == index]
            after = "; ".join(f"after {d.producer} ({_hazards(d)})" for d in edges)
            loader = ", loader waits" if self.loader_waits[index] else ""
            name = kind.name.rpartition(".")[2]
            lines.append(f"  {index:>4}  {name} [kind {op.kind}]  {tiles} tiles  {after}{loader}".rstrip())
        return "\n".join(lines)


def _hazards(dependency: Dependency) -> str:
    return ", ".join(f"{kind} {tensor}" for kind, _, tensor in sorted(dependency.hazards))


def _check_ops(ops: Sequence[ScheduledOp], target: Target) -> None:
    if not ops:
        raise PlanError(
            what="no ops",
            where="Plan.build",
            why="a kernel runs at least one op",
            fix="pass a list of ops: ScaleOp.schedule(x=x, y=y)",
        )
    for index, op in enumerate(ops):
        if not isinstance(op, ScheduledOp):
            raise PlanError(
                what=f"ops[{index}] is a {type(op).__name__}, no ScheduledOp",
                where="Plan.build",
                why="`schedule` returns a list, and lists of ops concatenate",
                fix="First.schedule(…) + Second.schedule(…)",
            )
        if op.device != ops[0].device:
            raise DeviceError(
                what=f"ops[0] ({ops[0].op.__name__}) is on {ops[0].device}, "
                f"but ops[{index}] ({op.op.__name__}) is on {op.device}",
                where="Plan.build",
                why="one kernel runs on one device",
                fix=f"move the tensors of ops[{index}] to {ops[0].device}, or make two kernels",
            )
        check_claimed(op, target)
        if not op.op.declaration.phases:
            raise PlanError(
                what=f"ops[{index}] ({op.op.__name__}) is not lowered",
                where="Plan.build",
                why="it has an implementation for each target, and none of its own",
                fix="op.op.lower(target, op)",
            )
