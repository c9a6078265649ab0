"""Plans as JSON: plain values only, and no op package is imported to read them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from machete.megakernel.abi import version
from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.abi.pipeline import PipelineSpec
from machete.megakernel.abi.target import Target
from machete.megakernel.abi.tensor import dtype_name
from machete.megakernel.abi.tma import TmaBox
from machete.megakernel.plan.dependencies import Dependency
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.memory import Access
from machete.megakernel.plan.queues import COLUMNS, Queues
from machete.megakernel.plan.record import TensorLayout
from machete.megakernel.plan.shared import SharedLayout

if TYPE_CHECKING:
    from machete.megakernel.plan.plan import Plan, PlannedOp


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as dicts, lists, numbers and strings."""
    return {
        "abi": list(version.ABI),
        "target": plan.target.name,
        "num_sms": plan.num_sms,
        "schedule": plan.schedule,
        "kinds": [_kind_to_dict(kind) for kind in plan.kinds],
        "ops": [_plain(asdict(op)) for op in plan.ops],
        "dependencies": [
            [edge.producer, edge.consumer, sorted(list(hazard) for hazard in edge.hazards)]
            for edge in plan.dependencies
        ],
        "queues": {"begin": plan.queues.begin.tolist(), "rows": plan.queues.rows.tolist()},
        "waits": [[list(wait) for wait in waits] for waits in plan.waits],
        "loader_waits": list(plan.loader_waits),
        "fences": list(plan.fences),
        "shared": asdict(plan.shared),
    }


def plan_from_dict(data: dict[str, Any]) -> Plan:
    """The plan that `plan_to_dict` described; `AbiMismatchError` if another ABI wrote it."""
    from machete.megakernel.plan.plan import Plan

    major, minor = data["abi"]
    version.check((major, minor), "this plan")
    return Plan(
        target=Target.named(data["target"]),
        num_sms=data["num_sms"],
        schedule=data["schedule"],
        kinds=tuple(_kind_from_dict(kind) for kind in data["kinds"]),
        ops=tuple(_op_from_dict(op) for op in data["ops"]),
        dependencies=tuple(
            Dependency(producer, consumer, frozenset((kind, theirs, mine) for kind, theirs, mine in hazards))
            for producer, consumer, hazards in data["dependencies"]
        ),
        queues=Queues(
            np.array(data["queues"]["begin"], dtype=np.int32),
            np.array(data["queues"]["rows"], dtype=np.int32).reshape(-1, COLUMNS),
        ),
        waits=tuple(tuple((counter, least) for counter, least in waits) for waits in data["waits"]),
        loader_waits=tuple(data["loader_waits"]),
        fences=tuple(data["fences"]),
        shared=SharedLayout(**data["shared"]),
    )


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _kind_to_dict(kind: Kind) -> dict[str, Any]:
    return {
        "index": kind.index,
        "name": kind.name,
        "extent_dims": list(kind.extent_dims),
        "tile": list(kind.tile),
        "tensors": {
            name: _plain({**asdict(tensor), "dtype": dtype_name(tensor.dtype)}) for name, tensor in kind.tensors.items()
        },
        "tile_sizes": dict(kind.tile_sizes),
        "config_texts": dict(kind.config_texts),
        "scalars": {name: dtype_name(dtype) for name, dtype in kind.scalars.items()},
        "descriptors": {name: _plain(asdict(box)) for name, box in kind.descriptors.items()},
        "pipeline": asdict(kind.pipeline) if kind.pipeline else None,
        "signals_per_range": kind.signals_per_range,
        "phases": list(kind.phases),
    }


def _kind_from_dict(data: dict[str, Any]) -> Kind:
    return Kind(
        index=data["index"],
        name=data["name"],
        extent_dims=tuple(data["extent_dims"]),
        tile=tuple(data["tile"]),
        tensors={
            name: TensorLayout(
                getattr(torch, tensor["dtype"]), tuple(tensor["dims"]), tensor["unit_inner"], tensor["alignment"]
            )
            for name, tensor in data["tensors"].items()
        },
        tile_sizes=data["tile_sizes"],
        config_texts=data["config_texts"],
        scalars={name: getattr(torch, dtype) for name, dtype in data["scalars"].items()},
        descriptors={name: TmaBox(**box) for name, box in data["descriptors"].items()},
        pipeline=PipelineSpec(**data["pipeline"]) if data["pipeline"] else None,
        signals_per_range=data["signals_per_range"],
        phases=tuple(data["phases"]),
    )


def _op_from_dict(data: dict[str, Any]) -> PlannedOp:
    from machete.megakernel.plan.plan import PlannedOp

    return PlannedOp(
        kind=data["kind"],
        extents=tuple((dim, extent) for dim, extent in data["extents"]),
        tiles=tuple(data["tiles"]),
        block=tuple(data["block"]),
        tile_us=data["tile_us"],
        accesses=tuple(
            Access(**{**access, "footprint": _footprint_from_dict(access["footprint"])}) for access in data["accesses"]
        ),
        tile_bytes=data["tile_bytes"],
        tile_flops=data["tile_flops"],
    )


def _footprint_from_dict(data: dict[str, Any]) -> Footprint:
    return Footprint(data["address"], tuple(data["shape"]), tuple(data["strides"]), data["itemsize"])
