"""Extents that change from run to run, up to those that the plan was made for.

A dim's name stands for one extent in an op; across ops, two dims are one if they are the same axis of the same tensor.
So `{"M": 37}` reaches every op that M is carried to, under whatever name; all of them have to declare it `resizable`.
Tile counts in the records stay the plan's: they say how tiles are numbered. Tiles outside of the extents are skipped on
the device, and signal all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from machete.megakernel.abi.errors import ExtentError, UnknownArgumentError, closest, listing
from machete.megakernel.abi.scheduled import ScheduledOp

from .image import Image
from .slots import Change, View

Dim = tuple[int, str]  # op index, name


class Extents:
    """The extents of a kernel's ops: planned, and at present."""

    def __init__(self, ops: Sequence[ScheduledOp], views: Sequence[View], image: Image) -> None:
        self._ops, self._image = ops, image
        self._now = [dict(op.extents) for op in ops]
        self._named: dict[str, list[Dim]] = {}
        for dims in _same_dims(ops, views):
            for name in {name for _, name in dims}:
                self._named.setdefault(name, []).extend(dims)
        self._changes: dict[str, Change] = {}

    def checked(self, extents: object) -> Mapping[str, int]:
        """The extents, if dims may have them: from 0 to the planned ones; none for None."""
        if extents is None:
            return {}
        if not isinstance(extents, Mapping):
            raise UnknownArgumentError(
                what=f"extents is no mapping, but of type {type(extents).__name__}",
                where="Megakernel.run(extents=…)",
                why="extents belong to dims, which have names",
                fix=f"extents={{name: extent}}; the ops of this kernel have {listing(sorted(self._named))}",
            )
        for name, extent in extents.items():
            self._check(name, extent)
        return extents

    def set(self, extents: Mapping[str, int]) -> list[Change]:
        """Let dims have other extents, checked before."""
        return [self._set(name, extent) for name, extent in extents.items()]

    def _check(self, name: str, extent: int) -> None:
        where = f"Megakernel.run(extents={{{name!r}: {extent}}})"
        if name not in self._named:
            raise UnknownArgumentError(
                what=f"no op has a dim {name!r}{closest(name, self._named)}",
                where=where,
                why=f"the ops of this kernel have {listing(sorted(self._named))}",
                fix="use one of these names",
            )
        planned = {self._ops[index].extents[dim] for index, dim in self._named[name]}
        if len(planned) > 1:
            raise ExtentError(
                what=f"{name!r} is {listing(sorted(planned))} in different ops",
                where=where,
                why="ops call different things by this name",
                fix="make a kernel of its own for the ops whose extents change, or rename the dim of one op",
            )
        fixed = [(index, dim) for index, dim in self._named[name] if dim not in self._ops[index].op.resizable]
        if fixed:
            index, dim = fixed[0]
            op = self._ops[index].op
            raise ExtentError(
                what=f"dim {dim!r} of op {index} ({op.__name__}) keeps the extent that it was scheduled with",
                where=where,
                why=f"its code may rest on it: {op.__name__}.resizable is {op.resizable}",
                fix=f"schedule the ops again, or declare {dim!r} in `resizable` if the code takes it from self.{dim}",
            )
        most = planned.pop()
        if isinstance(extent, bool) or not isinstance(extent, int) or not 0 <= extent <= most:
            raise ExtentError(
                what=f"extent {extent!r} of dim {name!r}",
                where=where,
                why=f"the plan was made for extents of at most {most}",
                fix=f"an int from 0 to {most}; schedule the ops on larger tensors for more",
            )

    def _set(self, name: str, extent: int) -> Change:
        positions: list[int] = []
        for index, dim in self._named[name]:
            self._now[index][dim] = extent
            positions.append(self._image.field(index, f"extent_{dim}"))
        self._image.words[positions] = extent
        for index in {index for index, _ in self._named[name]}:
            op = self._ops[index]
            for tensor in op.boxes:
                dims = op.op.declaration.tensors[tensor].dims
                if any((index, dim) in self._named[name] for dim in dims):
                    shape = tuple(self._now[index][dim] for dim in dims)
                    positions += self._image.encode(index, tensor, replace(op.infos[tensor], shape=shape))
        return self._changes.setdefault(name, Change(np.array(positions, dtype=np.int64)))


def _same_dims(ops: Sequence[ScheduledOp], views: Sequence[View]) -> list[list[Dim]]:
    """Dims of all ops, those that are the same axis of a tensor together."""
    group_of: dict[Dim, list[Dim]] = {
        (index, dim): [(index, dim)] for index, op in enumerate(ops) for dim in op.op.declaration.dims
    }
    for view in views:
        axes = [ops[index].op.declaration.tensors[name].dims for index, name in view.uses]
        for axis, first in enumerate(axes[0]):
            group = group_of[view.uses[0][0], first]
            for (index, _), dims in zip(view.uses, axes, strict=True):
                other = group_of[index, dims[axis]]
                if other is not group:
                    group += other
                    for dim in other:
                        group_of[dim] = group
    return list({id(group): group for group in group_of.values()}.values())
