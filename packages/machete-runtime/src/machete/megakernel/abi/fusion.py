"""Prologues and epilogues: small device functions that an op accepts, with tensors of their own.

An op that multiplies can normalise what it loads, or add a residual to what it stores, without another op and another
dependency in between. Such a function is a `Fusion`; an op says in `fusions` which slots it has. Each combination of op
and fusions is one class, and so one kind of compiled code, made once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from machete.megakernel.abi.errors import OpDefinitionError, ScheduleError, closest, listing

if TYPE_CHECKING:
    from machete.megakernel.abi.op import Op

#: Names of dims that a fusion's tensors may have; each slot of an op says which of its dims these are.
FUSION_DIMS = ("batch", "rows", "columns", "depth")


class Fusion:
    """A device function for a slot of an op, with the tensors that it reads.

    Example::

        class ResidualAdd(Fusion):
            reads = {"residual": (None, ("batch", "rows", "columns"))}

            def fetch(self, batch, row, column):        # may run long before `apply`
                return self.residual[batch, row, column].to(Float32)

            def apply(self, value, fetched):
                return value + fetched

        GemmOp.schedule(a=x, b=w, c=y, epilogue=[ResidualAdd(residual=h)])

    What methods a slot calls is said by the op that has it. In device code `self.<tensor>` is the tensor and
    `self.<name>` a compile-time value; `self.tma_<tensor>` is its descriptor, where the op's
    `descriptors` has one for it.

    Attributes:
        reads: tensor name to (dtype or None, dims); the slot says which of the op's dims "batch", "rows", "columns" and
            "depth" are.
        tensors: the tensors of this instance.
        config: hashable compile-time values of this instance.
    """

    reads: ClassVar[Mapping[str, tuple[torch.dtype | None, tuple[str, ...]]]] = {}

    def __init__(self, *, config: Mapping[str, Any] | None = None, **tensors: torch.Tensor) -> None:
        self.tensors = tensors
        self.config = dict(config or {})
        if set(tensors) != set(self.reads):
            raise ScheduleError(
                what=f"{type(self).__name__} got tensors {listing(tensors)}",
                where=f"{type(self).__name__}(…)",
                why=f"it reads {listing(self.reads)}",
                fix=f"pass {listing(f'{name}=…' for name in self.reads)}",
            )


#: (slot, position in the slot, class) of each fusion of an op class.
FusionTypes = tuple[tuple[str, int, type[Fusion]], ...]


def tensor_name(slot: str, position: int, name: str) -> str:
    """What the fused op calls a tensor of a fusion."""
    return f"{slot}{position}_{name}"


def tensors_of(slot: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of an op's tensor names that belong to the fusions in a slot."""
    return tuple(name for name in names if re.match(rf"{slot}\d+_", name))


def arguments(
    op: type[Op], fusions: Mapping[str, Sequence[Fusion]]
) -> tuple[FusionTypes, dict[str, torch.Tensor], dict[str, Any]]:
    """Classes, tensors by name, and config of the fusions that an op is scheduled with."""
    types: list[tuple[str, int, type[Fusion]]] = []
    tensors: dict[str, torch.Tensor] = {}
    config: dict[str, Any] = {}
    for slot, sequence in fusions.items():
        if slot not in op.fusions:
            raise ScheduleError(
                what=f"{op.__name__} has no slot `{slot}`{closest(slot, op.fusions)}",
                where=f"scheduling {op.__name__}",
                why=f"it accepts fusions as {listing(op.fusions)}",
                fix="use one of these, or an op of its own before or after",
            )
        for position, fusion in enumerate(sequence):
            if not isinstance(fusion, Fusion):
                raise ScheduleError(
                    what=f"{slot}[{position}] of {op.__name__} is a {type(fusion).__name__}",
                    where=f"scheduling {op.__name__}",
                    why="prologues and epilogues are Fusion objects",
                    fix="derive a class from machete.megakernel.Fusion",
                )
            types.append((slot, position, type(fusion)))
            for name, tensor in fusion.tensors.items():
                rank = len(fusion.reads[name][1])
                while isinstance(tensor, torch.Tensor) and tensor.ndim < rank:
                    tensor = tensor.unsqueeze(0)
                tensors[tensor_name(slot, position, name)] = tensor
            config |= {f"{slot}{position}.{name}": value for name, value in fusion.config.items()}
    return tuple(types), tensors, config


def reads_of(op: type[Op], types: FusionTypes) -> dict[str, tuple[torch.dtype | None, tuple[str, ...]]]:
    """The tensors that fusions add to an op's `reads`, in the op's own dims."""
    reads: dict[str, tuple[torch.dtype | None, tuple[str, ...]]] = {}
    for slot, position, kind in types:
        dims = op.fusions[slot]
        for name, (dtype, own) in kind.reads.items():
            unknown = [dim for dim in own if dim not in dims]
            if unknown:
                raise OpDefinitionError(
                    what=f"{kind.__name__}.reads[{name!r}] has dims {listing(own)}",
                    where=f"slot `{slot}` of {op.__name__}",
                    why=f"this slot has {listing(dims)}",
                    fix="use these dims",
                )
            reads[tensor_name(slot, position, name)] = (dtype, tuple(dims[dim] for dim in own))
    return reads
