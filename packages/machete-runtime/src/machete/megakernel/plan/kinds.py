"""Kinds: ops that share one compiled body.

Class, dtypes, layout classes, tile sizes and config are constants in compiled code, so they make the kind.
Extents, strides, addresses and scalars are data in the op's record.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from machete.megakernel.abi.declaration import OpDeclaration
from machete.megakernel.abi.errors import OpDefinitionError, PlanError
from machete.megakernel.abi.op import Op
from machete.megakernel.abi.pipeline import PipelineSpec
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tma import TmaBox
from machete.megakernel.plan.record import RecordLayout, TensorLayout


@dataclass(frozen=True)
class KindKey:
    """What identifies the compiled code of an op in this process; hashable.

    Ranks are fixed by the class. `config` holds (name, text, value): the text keeps 1, 1.0 and True apart.
    """

    op: type[Op]
    tensors: tuple[tuple[str, TensorLayout], ...]
    tile_sizes: tuple[tuple[str, int], ...]
    config: tuple[tuple[str, str, Any], ...]
    scalars: tuple[tuple[str, torch.dtype], ...]
    descriptors: tuple[tuple[str, TmaBox], ...]
    pipeline: PipelineSpec | None

    @classmethod
    def of(cls, op: ScheduledOp) -> KindKey:
        """The key of a scheduled op."""
        declaration, pipeline = op.op.declaration, op.pipeline
        declared = declaration.pipeline
        promised = (declared is not None and declared.is_streaming, declared is not None and declared.output_stages > 0)
        if promised != (
            pipeline is not None and pipeline.is_streaming,
            pipeline is not None and pipeline.output_stages > 0,
        ):
            raise OpDefinitionError(
                what=f"op {declaration.name}: pipeline_of() returns {pipeline}, but pipeline is {declared}",
                where=f"{declaration.name}.pipeline_of",
                why="the class says whether there is a ring and whether there are output stages",
                fix="let both stream, or neither",
            )
        return cls(
            op=op.op,
            tensors=tuple(
                (name, TensorLayout.of(info, declaration.tensors[name].dims)) for name, info in op.infos.items()
            ),
            tile_sizes=tuple(op.tile_sizes.items()),
            config=tuple((name, config_text(value), value) for name, value in op.config.items()),
            scalars=tuple(declaration.scalars.items()),
            descriptors=tuple(op.boxes.items()),
            pipeline=pipeline,
        )


@dataclass(frozen=True)
class Kind:
    """A kind in a plan.

    All fields but `key` are plain values, which compare equal after a round trip through JSON. `key`, and what
    follows from it (`op`, `declaration`, `config`), exist only where the plan was built.
    """

    index: int
    name: str
    extent_dims: tuple[str, ...]
    tile: tuple[str, ...]
    tensors: Mapping[str, TensorLayout]
    tile_sizes: Mapping[str, int]
    config_texts: Mapping[str, str]
    scalars: Mapping[str, torch.dtype]
    descriptors: Mapping[str, TmaBox]
    pipeline: PipelineSpec | None
    signals_per_range: int
    phases: tuple[str, ...]
    key: KindKey | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, index: int, key: KindKey) -> Kind:
        """The kind with this key."""
        declaration = key.op.declaration
        return cls(
            index=index,
            name=f"{key.op.__module__}.{key.op.__qualname__}",
            extent_dims=declaration.dims,
            tile=declaration.tile,
            tensors=dict(key.tensors),
            tile_sizes=dict(key.tile_sizes),
            config_texts={name: text for name, text, _ in key.config},
            scalars=dict(key.scalars),
            descriptors=dict(key.descriptors),
            pipeline=key.pipeline,
            signals_per_range=declaration.signals_per_range,
            phases=tuple(declaration.phases),
            key=key,
        )

    def __hash__(self) -> int:
        return hash((self.index, self.name))

    @cached_property
    def record(self) -> RecordLayout:
        """Where device code finds the op's data."""
        return RecordLayout.of(self.tensors, self.extent_dims, self.tile, self.scalars, self.descriptors)

    @property
    def stage_pages(self) -> int:
        """Pages in one stage of the ring, 0 for an op without a ring."""
        return self.pipeline.stage_pages if self.pipeline and self.pipeline.is_streaming else 0

    @property
    def has_store(self) -> bool:
        """Whether a phase of its own stores results."""
        return "store" in self.phases

    @property
    def multiplies(self) -> bool:
        """Whether it accumulates in tensor memory."""
        return "multiply" in self.phases

    @property
    def resident_bytes(self) -> int:
        """Bytes behind `page_ptr`."""
        return self.pipeline.resident_bytes if self.pipeline else 0

    @property
    def op(self) -> type[Op]:
        """The class."""
        return self._built_from.op

    @property
    def declaration(self) -> OpDeclaration:
        """What the class declares."""
        return self.op.declaration

    @property
    def config(self) -> dict[str, Any]:
        """Config values by name."""
        return {name: value for name, _, value in self._built_from.config}

    @property
    def _built_from(self) -> KindKey:
        if self.key is None:
            raise PlanError(
                what=f"kind {self.index} ({self.name}) was loaded, and knows its op class by name only",
                where="Plan.from_json",
                why="loading a plan imports no op package",
                fix="build the plan from scheduled ops to compile it",
            )
        return self.key


def kinds_of(ops: Sequence[ScheduledOp]) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """The kinds among the ops, in the order of first use, and the kind's index for each op."""
    indices: dict[KindKey, int] = {}
    kind_of_op = tuple(indices.setdefault(KindKey.of(op), len(indices)) for op in ops)
    return tuple(Kind.of(index, key) for key, index in indices.items()), kind_of_op


def config_text(value: Any) -> str:
    """A config value as text that is the same in every process (for what has an importable name, or a repr)."""
    if isinstance(value, tuple):
        return f"({', '.join(map(config_text, value))})"
    if isinstance(value, enum.Enum):
        return str(value)
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)
