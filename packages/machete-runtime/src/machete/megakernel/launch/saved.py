"""Kernels in files: all that it takes to run one, and nothing of what it takes to make one.

A file has the code, the plan, what the ops' tensors are (not their contents), and what rebinding has to know about the
ops' classes. Reading it imports neither the DSL nor an op package. Loaded ops have stand-ins for their classes, and the
addresses that their tensors had where they were saved; before anything runs, those tensors are replaced by others with
the checks of any rebinding.

What host and device code agree on (`program`, `record`, parameters) is no part of the file. Its version, the hash of
the modules that define it, is: a file of a runtime that does it differently is refused.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from machete.megakernel.abi.declaration import RESERVED_NAMES, OpDeclaration, TensorDeclaration
from machete.megakernel.abi.errors import (
    DeviceError,
    PlanError,
    SavedKernelError,
    TargetError,
    TensorTypeError,
    UnknownArgumentError,
    listing,
)
from machete.megakernel.abi.op import Op
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo, dtype_name
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.plan import Plan

from .artefact import Artefact
from .binding import Binding
from .cache.store import replace_file
from .container import DamagedError, pack, unpack
from .image import value_of
from .slots import lies_in, same_memory
from .temporaries import ARENA

#: Modules, relative to the runtime, that define what is in the memory that host and device share, and in the file.
_PROTOCOL = (
    "plan/program.py",
    "plan/queues.py",
    "plan/record.py",
    "plan/serial.py",
    "plan/shared.py",
    "device/waiting.py",
    "launch/alarm.py",
    "launch/artefact.py",
    "launch/image.py",
    "launch/saved.py",
    "launch/state.py",
    "launch/temporaries.py",
    "launch/tensormap.py",
)

_ALIGNMENT = 256  # what allocations of CUDA have at least


@dataclass(frozen=True)
class SavedKernel:
    """What a file holds.

    Attributes:
        artefact, plan: the code, and what it runs.
        arena_bytes: memory of the temporaries.
        header: the rest, as JSON.
    """

    artefact: Artefact
    plan: Plan
    arena_bytes: int
    header: dict[str, Any]

    def ops(self, device: torch.device) -> list[ScheduledOp]:
        """The ops, with stand-ins for their classes and without tensors, for one device."""
        kinds = self.plan.kinds
        classes = [_class_from_dict(kind, data) for kind, data in zip(kinds, self.header["classes"], strict=True)]
        return [
            _op_from_dict(classes[planned.kind], kinds[planned.kind], dict(planned.extents), data, device)
            for planned, data in zip(self.plan.ops, self.header["ops"], strict=True)
        ]

    def tensors(self, device: torch.device) -> dict[str, TensorInfo]:
        """The memory outside of the kernel, by name: where it lay when the kernel was saved, as if on `device`."""
        return {name: _info_from_dict(name, info, device) for name, info in self.header["tensors"].items()}


def save(
    path: Path,
    artefact: Artefact,
    plan: Plan,
    binding: Binding,
    arena_bytes: int,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Write a kernel to a file, whole or not at all. Raises OSErrors, or `UnknownArgumentError` if names miss."""
    named = _named(binding, {name: TensorInfo.of(name, tensor) for name, tensor in tensors.items()})
    places = {use: binding.now(number) for number, view in enumerate(binding.views) for use in view.uses}
    ops = [
        {
            "tensors": {name: _info_to_dict(places[index, name]) for name in op.infos},
            "scalars": {
                name: value_of(int(binding.image.words[binding.image.field(index, f"scalar_{name}")]), dtype)
                for name, dtype in op.op.declaration.scalars.items()
            },
        }
        for index, op in enumerate(binding.ops)
    ]
    header = {
        "protocol": protocol(),
        "artefact": artefact.header(),
        "compile_seconds": artefact.compile_seconds,
        "arena_bytes": arena_bytes,
        "tensors": {name: _info_to_dict(info) for name, info in named.items()},
        "ops": ops,
        "classes": [_class_to_dict(kind) for kind in plan.kinds],
    }
    replace_file(path, pack(header, {**artefact.sections(), "plan": plan.to_json().encode()}), 0o666)


def read(path: Path) -> SavedKernel:
    """Read a file. Raises OSErrors, or `SavedKernelError` if it holds no kernel that this runtime can run."""
    try:
        header, sections = unpack(path.read_bytes())
    except DamagedError as error:
        raise _unusable(path, str(error), "save the kernel again") from None
    if "protocol" not in header:
        raise _unusable(path, "it is no saved kernel", "pass a file that `Megakernel.save` wrote")
    if header["protocol"] != protocol():
        reason = "a runtime saved it whose kernels expect other data in memory than this one provides"
        raise _unusable(path, reason, "save the kernel again with this version of machete-runtime")
    plan = Plan.from_json(sections.pop("plan").decode())
    artefact = Artefact.read(header["artefact"], sections, header["compile_seconds"])
    return SavedKernel(artefact, plan, header["arena_bytes"], header)


@functools.cache
def protocol() -> str:
    """Version of what host and device code, and files, agree on: a hash of the modules that define it."""
    runtime = Path(__file__).parents[1]
    return hashlib.sha256(b"".join((runtime / name).read_bytes() for name in _PROTOCOL)).hexdigest()


def _unusable(path: Path, reason: str, fix: str) -> SavedKernelError:
    return SavedKernelError(
        what=f"{path.name} cannot be loaded: {reason}",
        where=str(path),
        why="a saved kernel is run as it is: nothing is traced or compiled",
        fix=fix,
    )


# ---------------------------------------------------------------------- names of tensors


def _named(binding: Binding, given: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """A name for all memory outside of the kernel: those that are given, then what ops call it, where that is clear."""
    where = "Megakernel.save(tensors=…)"
    infos = [binding.now(number) for number in range(len(binding.views))]
    for name in given:
        if not (isinstance(name, str) and name.isidentifier()) or name in RESERVED_NAMES:
            raise UnknownArgumentError(
                what=f"{name!r} cannot be the name of a tensor",
                where=where,
                why="whoever loads the kernel passes tensors as keyword arguments of `run`, beside its own",
                fix="use another identifier",
            )
    for (one, info), (other, second) in itertools.combinations(given.items(), 2):
        if info.overlaps(second):
            raise UnknownArgumentError(
                what=f"{one!r} and {other!r} share memory",
                where=where,
                why="one name stands for all of a tensor, parts included",
                fix="name the larger one only, and pass that where the kernel is loaded",
            )
    for name, info in given.items():
        if not any(lies_in(view, info) for view in infos):
            raise UnknownArgumentError(
                what=f"{name!r} is no tensor of this kernel",
                where=where,
                why="no bound tensor is it, or a part of it",
                fix="pass tensors that ops were scheduled with, or that took their place",
            )
    named = dict(given)
    unnamed: list[str] = []
    # Large ones first: what is a part of a tensor that has a name needs none.
    for number in sorted(range(len(infos)), key=lambda number: -infos[number].nbytes):
        info = infos[number]
        if info.is_empty or info.address >= ARENA or any(lies_in(info, whole) for whole in named.values()):
            continue
        called = dict.fromkeys(name for _, name in binding.views[number].uses)
        clear = [name for name in called if name not in named and _stands_for(name, info, binding, infos)]
        if clear:
            named[clear[0]] = info
        else:
            index, name = binding.views[number].uses[0]
            unnamed.append(f"`{name}` of op {index} ({binding.ops[index].op.__name__})")
    if unnamed:
        raise UnknownArgumentError(
            what=f"tensors without a name of their own: {listing(unnamed[:4])}{', …' if len(unnamed) > 4 else ''}",
            where=where,
            why="whoever loads the kernel passes its tensors by name, and ops call different tensors by these names",
            fix='kernel.save(path, tensors={"first": x, …}) with a name for each, or for the tensor that it is part of',
        )
    return named


def _stands_for(name: str, info: TensorInfo, binding: Binding, infos: Sequence[TensorInfo]) -> bool:
    """Whether ops call nothing by this name but this memory, or parts of it."""
    same = [infos[number] for number, view in enumerate(binding.views) for _, called in view.uses if called == name]
    return all(other.is_empty or same_memory(other, info) or lies_in(other, info) for other in same)


# ---------------------------------------------------------------------- plain values


def _info_to_dict(info: TensorInfo) -> dict[str, Any]:
    return {
        "dtype": dtype_name(info.dtype),
        "shape": list(info.shape),
        "strides": list(info.strides),
        "address": info.address,
    }


def _info_from_dict(name: str, data: Mapping[str, Any], device: torch.device) -> TensorInfo:
    dtype = getattr(torch, data["dtype"])
    return TensorInfo(name, dtype, tuple(data["shape"]), tuple(data["strides"]), data["address"], device)


def _class_to_dict(kind: Kind) -> dict[str, Any]:
    declaration = kind.declaration
    return {
        "name": kind.op.__name__,
        "module": kind.op.__module__,
        "tensors": [
            [one.name, one.dtype and dtype_name(one.dtype), list(one.dims), one.is_read, one.is_written]
            for one in declaration.tensors.values()
        ],
        "phases": {phase: list(names) for phase, names in declaration.phases.items()},
        "early": list(declaration.early),
        "resizable": list(kind.op.resizable),
    }


def _class_from_dict(kind: Kind, data: Mapping[str, Any]) -> type[Op]:
    """A class that knows what the op's own class declares, and nothing else of it."""
    tensors = {
        name: TensorDeclaration(name, dtype and getattr(torch, dtype), tuple(dims), is_read, is_written)
        for name, dtype, dims, is_read, is_written in data["tensors"]
    }
    declaration = OpDeclaration(
        name=data["name"],
        tensors=types.MappingProxyType(tensors),
        dims=kind.extent_dims,
        tile=kind.tile,
        scalars=kind.scalars,
        phases={phase: tuple(names) for phase, names in data["phases"].items()},
        pipeline=kind.pipeline,
        early=tuple(data["early"]),
    )
    body = {
        "__module__": data["module"],
        "reads": {name: (one.dtype, one.dims) for name, one in tensors.items() if one.is_read},
        "writes": {name: (one.dtype, one.dims) for name, one in tensors.items() if one.is_written},
        "tile": kind.tile,
        "scalars": kind.scalars,
        "pipeline": kind.pipeline,
        "resizable": tuple(data["resizable"]),
        "declaration": declaration,
    }
    made: type[Op] = types.new_class(data["name"], (Op,), {"abstract": True}, lambda namespace: namespace.update(body))
    return made


def _op_from_dict(
    op: type[Op], kind: Kind, extents: Mapping[str, int], data: Mapping[str, Any], device: torch.device
) -> ScheduledOp:
    infos = {name: _info_from_dict(name, info, device) for name, info in data["tensors"].items()}
    return ScheduledOp(op, {}, infos, data["scalars"], extents, kind.tile_sizes, {}, kind.descriptors)


def allocate(info: TensorInfo) -> torch.Tensor:
    """A tensor of this layout on its device, zero, and aligned as the one that was saved."""
    if info.is_empty:
        return torch.empty_strided(info.shape, info.strides, dtype=info.dtype, device=info.device)
    nbytes = info.span[1] - info.span[0]
    raw = torch.zeros(nbytes + _ALIGNMENT, dtype=torch.uint8, device=info.device)
    shift = (info.address - raw.data_ptr()) % _ALIGNMENT
    return raw[shift : shift + nbytes].view(info.dtype).as_strided(info.shape, info.strides)


def _chosen(plan: Plan, tensors: Mapping[str, torch.Tensor], device: torch.device | str | None) -> torch.device:
    """The device that was asked for, that of the tensors, or one that fits."""
    if device is not None:
        try:
            return torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise DeviceError(
                what=f"{device!r} is no device",
                where="Megakernel.load",
                why=str(error).partition("\n")[0],
                fix='device="cuda", or device="cpu"',
            ) from None
    if tensors:
        return next(iter(tensors.values())).device
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    fits = (card for card in cards if torch.cuda.get_device_capability(card) == plan.target.compute_capability)
    first = next(fits, None)
    return torch.device("cpu") if first is None else torch.device("cuda", first)


def device_for(plan: Plan, tensors: Mapping[str, torch.Tensor], device: torch.device | str | None) -> torch.device:
    """Where a loaded kernel runs: as asked for, else where the tensors are, else on a card that fits, else simulated.

    Raises `TensorTypeError` for what is no tensor, `DeviceError` for a device that is not there or not ours, and
    `TargetError` or `PlanError` if the plan was not made for this device.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TensorTypeError(
                what=f"{name!r} is a {type(tensor).__qualname__}",
                where="Megakernel.load(tensors=…)",
                why="a kernel works on the memory of torch tensors",
                fix="torch.from_numpy or torch.as_tensor, which may share the memory",
            )
    chosen = _chosen(plan, tensors, device)
    if chosen.type == "cpu":
        return chosen
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if chosen.type != "cuda" or (chosen.index or 0) >= count:
        raise DeviceError(
            what=f"a kernel cannot run on {chosen}",
            where="Megakernel.load",
            why=f"devices are CUDA cards, {count} of which torch sees, and the CPU, which simulates one",
            fix='leave out `device`, or device="cpu"',
        )
    chosen = torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)
    there = torch.cuda.get_device_properties(chosen)
    if (there.major, there.minor) != plan.target.compute_capability:
        raise TargetError(
            what=f"the kernel is for {plan.target.name}; {chosen} has compute capability {there.major}.{there.minor}",
            where="Megakernel.load",
            why="machine code runs on the architecture that it was compiled for",
            fix='device="cpu" simulates it, or save the kernel on a card like this one',
        )
    if there.multi_processor_count < plan.num_sms:
        raise PlanError(
            what=f"the kernel was planned for {plan.num_sms} SMs; {chosen} has {there.multi_processor_count}",
            where="Megakernel.load",
            why="all CTAs have to be resident at the same time, one on each SM",
            fix="save Megakernel(ops, num_sms=…) for as few SMs as the smallest card has",
        )
    return chosen
