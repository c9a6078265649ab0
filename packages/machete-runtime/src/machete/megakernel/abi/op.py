"""The class that every op derives from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from machete.megakernel.abi import fusion
from machete.megakernel.abi import schedule_checks as checks
from machete.megakernel.abi.declaration import OpDeclaration, declare
from machete.megakernel.abi.errors import OpDefinitionError, TargetError, listing
from machete.megakernel.abi.fusion import Fusion, FusionTypes
from machete.megakernel.abi.pipeline import PipelineSpec
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import TARGETS, Target
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.abi.tma import TmaBox


class Op:
    """A small GPU op: tensors, tiling, and its phases: `load`, `compute`, `store`, and `multiply` on sm_100a.

    Example::

        import cutlass.cute as cute
        from machete.megakernel import Op


        class ScaleOp(Op):
            reads = {"x": (None, ("N",))}   # name: (dtype or None = the tensor's own, one dim name per axis)
            writes = {"y": (None, ("N",))}
            tile = ("N",)                   # the dims that are tiled; the rest are whole

            @classmethod
            def schedule(cls, *, x, y, tile_n=256):
                return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y)]

            @cute.jit
            def compute(self, page_ptr, tile_N, x, y):
                for i in range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
                    n = tile_N * self.tile_size_N + i
                    if n < self.N:
                        y[n] = x[n] * 2.0

    Phases are methods that the DSL traces. Their parameters are bound by name, and checked when the class is
    defined (`OpDefinitionError`):

    - tensors and scalars, by the names in `reads`, `writes` and `scalars` (`load`: tensors in `reads` only),
    - `tile_<D>`, the index of the tile along each tiled dim; the phase runs once for each tile,
    - or `tiles`, the whole range of tiles of an instruction: the phase runs once and loops itself
      (``for i in cutlass.range(tiles.count): tile_N = tiles.index(i, "N")``), so that state stays in registers,
    - `dependencies` (`compute` only): the phase starts before what it depends on is there, and calls
      ``dependencies.wait()`` itself before it touches tensors that an earlier op reads or writes,
    - `page_ptr`, the op's resident pages in shared memory (`compute` only),
    - `ring`, its end of the page ring (with a streaming `pipeline`),
    - `accumulators`, its end of tensor memory (`multiply`, and `compute` beside it),
    - a slot of `fusions`, the fusions in it as a tuple,
    - `tma_<tensor>`, the tensor's TMA descriptor (`load` and `store`; see `descriptors`).

    Device code reads `self.<D>` (extent, runtime), `self.tile_size_<D>` (compile time), `self.<tensor>_dtype`
    (compile time) and `self.threads_per_row`. No attribute of the class may have one of these names.

    Class attributes:
        reads, writes: tensors. A name in both is updated in place, and declared alike in both.
        tile: the tiled dims, slowest first. A tile touches only its own part of every tensor along them: tiles of
            other ops wait for the tiles that they need, not for the whole op. A dim that a tile reads all of has
            another name.
        resizable: the dims that may be smaller in a run than when the op was scheduled (`Megakernel.run(extents=…)`):
            code takes their extents from `self.<D>`, and no config or tile size follows from them. Tiles outside are
            skipped; a phase that takes `tiles` skips them itself.
        scalars: runtime scalars: float32, int32 or int64. Their values may change between runs.
        pipeline: pages in shared memory; None for none at all.
        targets: the architectures that the op claims.
        early: tensors, or slots of `fusions`, that `compute` may read before it calls `dependencies.wait()`, since they
            hardly ever have a producer; where they have one, the framework waits first.
        first_warp_writes: threads 0..31 do every write of `compute` to global memory, after a barrier at which the
            others had finished reading; dependents start without another barrier.
        irregular: tiles take times that follow from data, so a plan may hand them out while the kernel runs.
        throttled: `load` streams from memory at the card's rate, so the framework limits the bytes in flight.
        hands_over: SMs wait for each other inside the op (`dependencies.take_tagged`), so they have to run together.
        panels: a tiled dim and a number of tiles along it: SMs get that many neighbours along this dim, then the ones
            beside them, so that tiles which run at the same time read the same operands.
        fusions: slots for prologues and epilogues: slot to what its "batch", "rows" and "columns" are among the dims.
        abi: the version of the Op ABI that the op was written for.

    A base of other ops, which implements nothing itself, is declared with ``class Base(Op, abstract=True)``.
    """

    reads: ClassVar[Mapping[str, tuple[torch.dtype | None, tuple[str, ...]]]] = MappingProxyType({})
    writes: ClassVar[Mapping[str, tuple[torch.dtype | None, tuple[str, ...]]]] = MappingProxyType({})
    tile: ClassVar[tuple[str, ...]] = ()
    resizable: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[Mapping[str, torch.dtype]] = MappingProxyType({})
    pipeline: ClassVar[PipelineSpec | None] = None
    targets: ClassVar[tuple[str, ...]] = tuple(TARGETS)
    abi: ClassVar[tuple[int, int]] = (0, 1)

    irregular: ClassVar[bool] = False
    throttled: ClassVar[bool] = False
    hands_over: ClassVar[bool] = False
    first_warp_writes: ClassVar[bool] = False
    early: ClassVar[tuple[str, ...]] = ()
    panels: ClassVar[Mapping[str, int]] = MappingProxyType({})
    fusions: ClassVar[Mapping[str, Mapping[str, str]]] = MappingProxyType({})

    #: Fusions that this class has in its slots, made by `fused`.
    fusion_types: ClassVar[FusionTypes] = ()
    _fused: ClassVar[dict[FusionTypes, type[Op]]]

    #: What the class declares, checked. Abstract classes have none.
    declaration: ClassVar[OpDeclaration]

    def __init_subclass__(cls, *, abstract: bool = False, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._fused = {}
        if not abstract:
            is_lowered = cls.lower.__func__ is not Op.lower.__func__  # type: ignore[attr-defined]
            cls.declaration = declare(cls, is_lowered=is_lowered)

    @classmethod
    def schedule(cls, *args: Any, **kwargs: Any) -> list[ScheduledOp]:
        """The op as a list, so that op lists concatenate. Authors override it with keyword-only arguments."""
        raise OpDefinitionError(
            what=f"op {cls.__name__} does not define `schedule`",
            where=f"{cls.__module__}.{cls.__qualname__}",
            why="only the op knows its arguments and good tile sizes",
            fix="@classmethod def schedule(cls, *, x, y, tile_n=256): return [cls._schedule_single(…)]",
        )

    @classmethod
    def _schedule_single(
        cls,
        *,
        tile_sizes: Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        fusions: Mapping[str, Sequence[Fusion]] | None = None,
        **arguments: Any,
    ) -> ScheduledOp:
        """One op with its tensors and scalars, after every check (`ScheduleError` and its subclasses).

        Arguments:
            tile_sizes: tiled dim to the size of its tiles.
            config: hashable compile-time values; ops that differ in them are compiled separately.
            fusions: slot to the fusions in it, in the order in which they apply.
            arguments: every declared tensor and scalar, by name.
        """
        if fusions and any(fusions.values()):
            types, tensors, fusion_config = fusion.arguments(cls, fusions)
            all_config = {**(config or {}), **fusion_config}
            arguments |= tensors
            return cls.fused(types)._schedule_single(tile_sizes=tile_sizes, config=all_config, **arguments)
        declaration = getattr(cls, "declaration", None)
        if declaration is None or "declaration" not in cls.__dict__:
            raise OpDefinitionError(
                what=f"op {cls.__name__} is abstract",
                where=f"{cls.__module__}.{cls.__qualname__}",
                why="an abstract op is a base of others",
                fix="schedule a class that derives from it",
            )
        tensors, scalars = checks.split_arguments(declaration, arguments)
        checks.check_devices(declaration, {name: tensor.device for name, tensor in tensors.items()})
        infos = {name: TensorInfo.of(name, tensor) for name, tensor in tensors.items()}
        checks.check_dtypes(declaration, infos)
        extents = checks.common_extents(declaration, infos)
        sizes = checks.checked_tile_sizes(declaration, tile_sizes or {}, extents)
        checks.check_overlaps(declaration, infos)
        checks.check_addresses(declaration, infos)
        op = ScheduledOp(cls, tensors, infos, scalars, extents, sizes, checks.checked_config(declaration, config))
        cls.check(op)
        op = ScheduledOp(**{**vars(op), "boxes": cls._checked_boxes(op)})
        copied = {*declaration.named_by("load"), *declaration.named_by("store"), *op.boxes}
        inner = {name: op.boxes[name].order[-1] if name in op.boxes else -1 for name in infos if name in copied}
        checks.check_bulk(declaration, infos, inner)
        return op

    @classmethod
    def fused(cls, types: FusionTypes) -> type[Op]:
        """This class with fusions in its slots: always the same class for the same fusions."""
        if not types:
            return cls
        if types not in cls._fused:
            name = "_".join([cls.__name__, *(kind.__name__ for _, _, kind in types)])
            body = {
                "reads": {**cls.reads, **fusion.reads_of(cls, types)},
                "fusion_types": types,
                "__module__": cls.__module__,
                "__qualname__": name,
                "__doc__": cls.__doc__,
            }
            cls._fused[types] = type(name, (cls,), body)
        return cls._fused[types]

    @classmethod
    def _checked_boxes(cls, op: ScheduledOp) -> dict[str, TmaBox]:
        boxes = dict(cls.descriptors(op))
        where = f"{cls.__name__}.descriptors()"
        for name, box in boxes.items():
            if name not in op.infos or not isinstance(box, TmaBox):
                raise OpDefinitionError(
                    what=f"op {cls.__name__}: descriptors() returns {box!r} for {name!r}",
                    where=where,
                    why="it maps tensors of the op to a TmaBox",
                    fix=f"tensors: {listing(op.infos)}",
                )
            box.check(op.infos[name], cls.__name__)
        for name in cls.declaration.descriptors_named():
            if name not in boxes:
                raise OpDefinitionError(
                    what=f"op {cls.__name__}: a phase takes `tma_{name}`, but descriptors() has no {name!r}",
                    where=where,
                    why="a descriptor exists only for the tensors that it returns",
                    fix=f'return {{"{name}": TmaBox(…), …}}',
                )
        return boxes

    @classmethod
    def descriptors(cls, op: ScheduledOp) -> Mapping[str, TmaBox]:
        """Box and swizzle for each tensor that `load` or `store` copies by TMA descriptor.

        They may depend on dtypes, tile sizes and config, which identify compiled code; not on extents.
        """
        return {}

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec | None:
        """The pages that this op asks for; override where they depend on tile sizes, dtypes or config.

        A class that overrides it still declares `pipeline`, which says whether there is a ring at all.
        """
        return cls.pipeline

    @classmethod
    def cost(cls, op: ScheduledOp) -> tuple[float, float]:
        """(bytes of global memory, FLOPs on tensor cores) of one tile, for the plan's cost model.

        Unless overridden, the bytes of the tile's part of every tensor, once if it is read and once if it is written,
        and no FLOPs.
        """
        nbytes = 0
        for name, tensor in cls.declaration.tensors.items():
            sizes = (min(op.tile_sizes.get(dim, op.extents[dim]), op.extents[dim]) for dim in tensor.dims)
            nbytes += math.prod(sizes) * op.infos[name].itemsize * (tensor.is_read + tensor.is_written)
        return float(nbytes), 0.0

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        """Refuse arguments that only this op knows to be wrong; raise a `ScheduleError`. Runs before `descriptors`."""

    @classmethod
    def lower(cls, target: Target, op: ScheduledOp) -> ScheduledOp:
        """The op as this target runs it: itself, or the `ScheduledOp` of an implementation class.

        Raises `TargetError` if the op does not claim the target.
        """
        check_claimed(op, target)
        return op


def check_claimed(op: ScheduledOp, target: Target) -> None:
    """Raise `TargetError` unless the class of the op claims the target."""
    targets = op.op.targets
    if target.name not in targets:
        raise TargetError(
            what=f"{op.op.__name__} does not run on {target.name}",
            where=str(op),
            why=f"it claims {listing(targets)}",
            fix=f"arch='{targets[0]}'" if targets else "override `lower`",
        )
