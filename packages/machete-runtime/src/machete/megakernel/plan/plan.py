"""A plan: everything that is decided before code is compiled, as a plain value."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import networkx
import numpy as np

from machete.megakernel.abi.errors import DeviceError, MacheteError, PlanError, closest
from machete.megakernel.abi.op import check_claimed
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import Target
from machete.megakernel.plan import serial, verification
from machete.megakernel.plan.cost import RATES, Profile, tile_times
from machete.megakernel.plan.dependencies import Dependency, find_hazards, needs_fence, reads_loaded, reduce_hazards
from machete.megakernel.plan.grouping import Grouping
from machete.megakernel.plan.kinds import Kind, kinds_of
from machete.megakernel.plan.memory import Access, accesses_of
from machete.megakernel.plan.ordering import Wait, assign_waits, blocks_of, cuts_of, needs_of
from machete.megakernel.plan.placement import Panel, affordable_rows, place, place_in_one_queue
from machete.megakernel.plan.queues import SIGNAL, TOTAL, WAITS, Queues, joined
from machete.megakernel.plan.relation import TiledAccess
from machete.megakernel.plan.shared import SharedLayout

#: How instructions come to SMs: each has a queue of its own, or all fetch from one; "auto" chooses.
SCHEDULES = ("static", "dynamic")
#: "auto" is dynamic if ops whose tiles are irregular take this part of the time.
IRREGULAR_SHARE = 0.5


MOST_SMS = 4096


@dataclass(frozen=True)
class PlannedOp:
    """One op of a plan.

    Attributes:
        kind: index of its kind.
        extents: (dim, extent).
        tiles: number of tiles along each tiled dim.
        block: tiles of one group along each tiled dim (`plan.grouping`).
        tile_us: what a tile costs, as the cost model sees it.
        accesses: the memory that it touches.
        tile_bytes, tile_flops: what the op says of one tile (`Op.cost`).
    """

    kind: int
    extents: tuple[tuple[str, int], ...]
    tiles: tuple[int, ...]
    block: tuple[int, ...]
    tile_us: float
    accesses: tuple[Access, ...]
    tile_bytes: float = 0.0
    tile_flops: float = 0.0

    @property
    def grouping(self) -> Grouping:
        """Its tiles in groups."""
        return Grouping(self.tiles, self.block)

    @property
    def num_tiles(self) -> int:
        """Number of tiles, 1 if nothing is tiled."""
        return math.prod(self.tiles)


@dataclass(frozen=True)
class Plan:
    """Printable, comparable, serialisable; `verify` proves that it is sound.

    Attributes:
        target, num_sms: what it was made for.
        schedule: "static": each SM has its own queue; "dynamic": SMs fetch instructions from one queue, in its order.
        kinds: the bodies to compile.
        ops: in list order; indices of ops count here.
        dependencies: between whole ops, the transitive reduction of all hazards; what is waited for is in `waits`.
        queues: instructions, with the waits and the signals of each.
        waits: lists of waits that instructions name; the first one is empty.
        loader_waits: for each op whether something that `load` reads is written by an earlier op.
        fences: for each op whether copies of a later op read or overwrite what it writes: they need a fence between.
        shared: the shared memory of each CTA.
    """

    target: Target
    num_sms: int
    schedule: str
    kinds: tuple[Kind, ...]
    ops: tuple[PlannedOp, ...]
    dependencies: tuple[Dependency, ...]
    queues: Queues
    waits: tuple[tuple[Wait, ...], ...]
    loader_waits: tuple[bool, ...]
    fences: tuple[bool, ...]
    shared: SharedLayout

    @classmethod
    def build(
        cls,
        ops: Sequence[ScheduledOp],
        target: Target,
        num_sms: int,
        *,
        schedule: str = "auto",
        profile: Profile = MappingProxyType({}),
    ) -> Plan:
        """Plan lowered ops (`Op.lower`) for `num_sms` SMs.

        Args:
            schedule: "static", "dynamic", or "auto": dynamic if irregular ops (`Op.irregular`) take half of the time.
            profile: measured µs of one tile, by op index or the kind's name, instead of what the cost model expects.

        Raises:
            PlanError: no ops, not ops, no SMs, an unknown schedule, or a profile that is none.
            DeviceError: ops on several devices.
            TargetError: an op does not claim the target.
            PipelineError: the page ring does not fit the target.
        """
        ops = list(ops)
        _check_ops(ops, target)
        if not 1 <= num_sms <= MOST_SMS:
            raise PlanError(
                what=f"num_sms={num_sms}",
                where="Plan.build",
                why=f"tiles are spread over at least one SM, and no card has more than {MOST_SMS}",
                fix=f"num_sms=1 to {MOST_SMS}",
            )
        kinds, kind_of_op = kinds_of(ops)
        tile_us = tile_times(ops, kinds, kind_of_op, target, profile)
        schedule = _chosen(schedule, ops, tile_us)
        rates = RATES[target.name]
        accesses = accesses_of(ops)
        hazards = find_hazards(accesses)
        tiled = [
            {access.tensor: TiledAccess.of(access, kinds[kind], op.tiles) for access in op_accesses}
            for op, kind, op_accesses in zip(ops, kind_of_op, accesses, strict=True)
        ]
        groupings = [
            grouping.bounded(num_sms, affordable_rows(grouping.num_tiles, time, rates, num_sms))
            for grouping, time in zip(
                blocks_of(hazards, cuts_of(hazards, tiled), [op.tiles for op in ops]), tile_us, strict=True
            )
        ]
        needs = needs_of(hazards, tiled, groupings)
        if schedule == "static":
            keeps_state = [any("tiles" in names for names in op.op.declaration.phases.values()) for op in ops]
            ranges = place(groupings, needs, tile_us, keeps_state, list(map(_panel, ops)), rates, num_sms)
            queues, groups = joined(ranges, num_sms)
        else:
            queues, groups = joined(place_in_one_queue(groupings, num_sms), 1)
        queues, waits = assign_waits(
            queues,
            groups,
            needs,
            groupings,
            [kinds[kind].signals_per_range for kind in kind_of_op],
            ordered=schedule == "static",
        )
        # Of all hazards, not the reduced ones: an edge that others imply is still a reason to wait, and to fence.
        edges = [
            (producer, consumer, pairs) for consumer, found in hazards.items() for producer, pairs in found.items()
        ]
        loads_from = {consumer for _, consumer, pairs in edges if reads_loaded(accesses[consumer], pairs)}
        fencing = {producer for producer, consumer, pairs in edges if needs_fence(accesses[consumer], pairs)}
        shared = SharedLayout.build(kinds, target)
        return cls(
            target=target,
            num_sms=num_sms,
            schedule=schedule,
            kinds=kinds,
            ops=tuple(
                PlannedOp(kind, tuple(op.extents.items()), op.tiles, grouping.block, time, op_accesses, *op.op.cost(op))
                for op, kind, grouping, time, op_accesses in zip(
                    ops, kind_of_op, groupings, tile_us, accesses, strict=True
                )
            ),
            dependencies=reduce_hazards(hazards),
            queues=queues,
            waits=waits,
            loader_waits=tuple(op in loads_from for op in range(len(ops))),
            fences=tuple(op in fencing for op in range(len(ops))),
            shared=shared.fetched() if schedule == "dynamic" else shared,
        )

    @property
    def kind_of_op(self) -> tuple[int, ...]:
        """For each op the index of its kind."""
        return tuple(op.kind for op in self.ops)

    @property
    def num_dependency_counters(self) -> int:
        """Number of counters that instructions signal and wait for."""
        rows = self.queues.rows
        return 1 + int(rows[:, [SIGNAL, TOTAL]].max(initial=-1))

    @property
    def num_counters(self) -> int:
        """Number of counters; where SMs share a queue, the last one hands out its instructions."""
        return self.num_dependency_counters + (self.schedule == "dynamic")

    @property
    def tiles_per_sm(self) -> np.ndarray | None:
        """int64[SMs]: number of tiles that each SM runs; None if that is decided while the kernel runs."""
        return self.queues.tiles_per_queue() if self.schedule == "static" else None

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
        """The plan that `to_json` wrote. Imports no op package, so its kinds know their classes by name only.

        Raises:
            AbiMismatchError: another ABI wrote it.
            PlanError: the text describes no plan, or one of another version.
        """
        try:
            return serial.plan_from_dict(json.loads(text))
        except MacheteError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            raise PlanError(
                what=f"the text describes no plan: {reason}",
                where="Plan.from_json",
                why="it is read as what `to_json` of this version writes",
                fix="Plan.build again, with this version",
            ) from error

    def __str__(self) -> str:
        shared, per_sm = self.shared, self.tiles_per_sm
        spread = "fetched from one queue" if per_sm is None else f"{per_sm.min()} to {per_sm.max()} tiles per SM"
        waits = np.array([len(waits) for waits in self.waits])[self.queues.rows[:, WAITS]].sum()
        lines = [
            (
                f"plan for {self.target.name}, {self.num_sms} SMs, {self.schedule}: {len(self.ops)} ops of "
                f"{len(self.kinds)} kinds, {len(self.dependencies)} dependencies, {len(self.queues.rows)} "
                f"instructions, {spread}; {waits} waits for {self.num_dependency_counters} counters"
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
            groups = f" in {op.grouping.count} groups" if op.grouping.count > 1 else ""
            edges = [d for d in self.dependencies if d.consumer == index]
            after = "; ".join(f"after {d.producer} ({_hazards(d)})" for d in edges)
            loader = ", loader waits" if self.loader_waits[index] else ""
            name = kind.name.rpartition(".")[2]
            what = f"{name} [kind {op.kind}]  {tiles} tiles{groups}, {op.tile_us:.2f} µs each"
            lines.append(f"  {index:>4}  {what}  {after}{loader}".rstrip())
        return "\n".join(lines)


def _hazards(dependency: Dependency) -> str:
    return ", ".join(f"{kind} {tensor}" for kind, _, tensor in sorted(dependency.hazards))


def _chosen(schedule: str, ops: Sequence[ScheduledOp], tile_us: Sequence[float]) -> str:
    if schedule in SCHEDULES:
        return schedule
    if schedule != "auto":
        raise PlanError(
            what=f"schedule={schedule!r}{closest(str(schedule), (*SCHEDULES, 'auto'))}",
            where="Plan.build",
            why="SMs have queues of their own, or share one",
            fix="one of: static, dynamic, auto",
        )
    times = [op.num_tiles * time for op, time in zip(ops, tile_us, strict=True)]
    irregular = sum(time for op, time in zip(ops, times, strict=True) if op.op.irregular)
    return "dynamic" if irregular and irregular >= IRREGULAR_SHARE * sum(times) else "static"


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


def _panel(op: ScheduledOp) -> Panel | None:
    """How the op hands out its tiles, if in panels."""
    return next(((op.op.tile.index(dim), tiles) for dim, tiles in op.op.panels.items()), None)
