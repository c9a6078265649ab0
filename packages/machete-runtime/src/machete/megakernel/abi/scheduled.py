"""An op with its arguments, checked: what the planner plans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from machete.megakernel.abi.pipeline import PipelineSpec
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.abi.tma import TmaBox

if TYPE_CHECKING:
    from machete.megakernel.abi.op import Op


@dataclass(frozen=True, eq=False)
class ScheduledOp:
    """One op of a graph. `Op._schedule_single` makes it; nothing in it is wrong.

    Attributes:
        op: the class.
        tensors: name to tensor; kept alive.
        infos: name to what planning knows about the tensor.
        scalars: name to the value of the first run.
        extents: dim to extent.
        tile_sizes: tiled dim to tile size.
        config: compile-time values, part of what identifies the compiled code.
        boxes: tensor to the box of its TMA descriptor, as `Op.descriptors` returned it.
    """

    op: type[Op]
    tensors: Mapping[str, torch.Tensor]
    infos: Mapping[str, TensorInfo]
    scalars: Mapping[str, int | float]
    extents: Mapping[str, int]
    tile_sizes: Mapping[str, int]
    config: Mapping[str, Any]
    boxes: Mapping[str, TmaBox] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op.__name__}({', '.join(map(str, self.infos.values()))})"

    def with_tensors(
        self, op: type[Op], tensors: Mapping[str, torch.Tensor], **changes: Mapping[str, Any]
    ) -> ScheduledOp:
        """The op as `op`, a class that declares more tensors, of dims of its own: for `Op.lower`.

        Arguments:
            tensors: name to tensor, such as a `temporary`.
            changes: other attributes that change, as for `dataclasses.replace`.
        """
        infos = {name: TensorInfo.of(name, tensor) for name, tensor in tensors.items()}
        dims = {name: op.declaration.tensors[name].dims for name in tensors}
        extents = {dim: extent for name in tensors for dim, extent in zip(dims[name], infos[name].shape, strict=True)}
        return replace(
            self,
            op=op,
            tensors={**self.tensors, **tensors},
            infos={**self.infos, **infos},
            extents={**self.extents, **extents},
            **changes,
        )

    @property
    def pipeline(self) -> PipelineSpec | None:
        """The pages that it asks for (`Op.pipeline_of`)."""
        return self.op.pipeline_of(self)

    @property
    def device(self) -> torch.device:
        """Where all its tensors are."""
        return next(iter(self.infos.values())).device

    @property
    def tiles(self) -> tuple[int, ...]:
        """Number of tiles along each tiled dim, in the order of `Op.tile`; 0 where there is nothing to do."""
        return tuple(-(-self.extents[dim] // self.tile_sizes[dim]) for dim in self.op.declaration.tile)

    @property
    def num_tiles(self) -> int:
        """Number of tiles; 1 for an op that is not tiled, 0 if a tiled extent is 0."""
        return math.prod(self.tiles)
