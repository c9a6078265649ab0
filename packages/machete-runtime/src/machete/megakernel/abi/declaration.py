"""What an op class declares, read once when the class is defined, and checked."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from machete.megakernel.abi import version
from machete.megakernel.abi.errors import OpDefinitionError, closest, listing
from machete.megakernel.abi.fusion import tensors_of
from machete.megakernel.abi.pipeline import PipelineSpec
from machete.megakernel.abi.target import TARGETS
from machete.megakernel.abi.tensor import DTYPES

if TYPE_CHECKING:
    from machete.megakernel.abi.op import Op

PHASES = ("load", "multiply", "compute", "store")
SCALAR_DTYPES = (torch.float32, torch.int32, torch.int64)

#: Keyword arguments of `_schedule_single` and of `Megakernel.run`, and parameters that the framework binds.
RESERVED_NAMES = (
    *("self", "cls", "tile_sizes", "config", "fusions", "page_ptr", "ring", "tiles", "dependencies", "accumulators"),
    *("sync", "progress", "replace", "extents"),
)
MAX_RANK = 5


@dataclass(frozen=True)
class TensorDeclaration:
    """One tensor of an op: `dtype` is None where the tensor decides; one dim name for each axis."""

    name: str
    dtype: torch.dtype | None
    dims: tuple[str, ...]
    is_read: bool
    is_written: bool


@dataclass(frozen=True)
class OpDeclaration:
    """What an op class declares.

    Attributes:
        name: of the class.
        tensors: in declared order, `reads` first.
        dims: every dim name, in the order of first use.
        tile: the tiled dims.
        scalars: runtime scalars and their dtypes.
        phases: for each phase that the class has, the names of its parameters after `self`.
        pipeline: the pages that it asks for.
        early: tensors and slots that `compute` may read before its dependencies are there.
    """

    name: str
    tensors: Mapping[str, TensorDeclaration]
    dims: tuple[str, ...]
    tile: tuple[str, ...]
    scalars: Mapping[str, torch.dtype]
    phases: Mapping[str, tuple[str, ...]]
    pipeline: PipelineSpec | None
    early: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that the op reads."""
        return tuple(name for name, tensor in self.tensors.items() if tensor.is_read)

    @property
    def writes(self) -> tuple[str, ...]:
        """Tensors that the op writes."""
        return tuple(name for name, tensor in self.tensors.items() if tensor.is_written)

    @property
    def is_streaming(self) -> bool:
        """Whether the op has a page ring."""
        return self.pipeline is not None and self.pipeline.is_streaming

    @property
    def signals_per_range(self) -> int:
        """Who says that a range of tiles is done: the compute threads, and the storer where there is one."""
        return 2 if "store" in self.phases else 1

    def named_by(self, phase: str) -> tuple[str, ...]:
        """Tensors that a phase names, themselves or their descriptors."""
        parameters = self.phases.get(phase, ())
        fused = {name for slot in parameters for name in tensors_of(slot, self.tensors)}
        return tuple(
            name for name in self.tensors if name in parameters or f"tma_{name}" in parameters or name in fused
        )

    @property
    def read_ahead(self) -> tuple[str, ...]:
        """Tensors that the op may read before what it depends on is there: by `load`, or early in `compute`."""
        early = {name for slot in self.early for name in (slot, *tensors_of(slot, self.tensors))}
        return tuple(name for name in self.tensors if name in early or name in self.named_by("load"))

    def descriptors_named(self) -> tuple[str, ...]:
        """Tensors whose descriptor `tma_<tensor>` some phase names."""
        return tuple(name for name in self.tensors if any(f"tma_{name}" in names for names in self.phases.values()))


def declare(cls: type[Op], *, is_lowered: bool) -> OpDeclaration:
    """Read and check the declaration of an op class; `OpDefinitionError` says what is wrong with it.

    `is_lowered`: the class overrides `lower`, so it may leave the phases to its implementations.
    """
    version.check(cls.abi, f"op {cls.__name__}")
    tensors = _tensors(cls)
    dims = tuple(dict.fromkeys(dim for tensor in tensors.values() for dim in tensor.dims))
    _check_tile(cls, dims)
    _check_resizable(cls, dims)
    _check_scalars(cls, tensors)
    _check_names(cls, tensors)
    _check_reserved(cls, tensors, dims)
    _check_fusions(cls, dims)
    _check_early(cls, tensors)
    if cls.pipeline is not None and not isinstance(cls.pipeline, PipelineSpec):
        raise _error(
            cls,
            f"pipeline={cls.pipeline!r}",
            "an op's pipeline is a PipelineSpec, or None for no pages",
            "pipeline = PipelineSpec.plain()",
        )
    if not isinstance(cls.targets, tuple) or not cls.targets:
        fix = f"targets = ({cls.targets!r},)" if isinstance(cls.targets, str) else f"some of: {listing(TARGETS)}"
        raise _error(cls, f"targets is {cls.targets!r}", "targets is a tuple of at least one architecture", fix)
    for name in cls.targets:
        if name not in TARGETS:
            raise _error(
                cls,
                f"targets names {name!r}{closest(str(name), TARGETS)}",
                "Machete does not know this architecture",
                f"choose from: {listing(TARGETS)}",
            )
    phases = {phase: _parameters(cls, phase, tensors) for phase in PHASES if hasattr(cls, phase)}
    _check_phases(cls, phases, is_lowered)
    return OpDeclaration(
        name=cls.__name__,
        tensors=MappingProxyType(tensors),
        dims=dims,
        tile=tuple(cls.tile),
        scalars=MappingProxyType(dict(cls.scalars)),
        phases=MappingProxyType(phases),
        pipeline=cls.pipeline,
        early=tuple(cls.early),
    )


def _error(cls: type, what: str, why: str, fix: str) -> OpDefinitionError:
    return OpDefinitionError(
        what=f"op {cls.__name__}: {what}", where=f"{cls.__module__}.{cls.__qualname__}", why=why, fix=fix
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _tensors(cls: type[Op]) -> dict[str, TensorDeclaration]:
    tensors: dict[str, TensorDeclaration] = {}
    for table, name, dtype, dims in _entries(cls):
        is_read, is_written = table == "reads", table == "writes"
        if name in tensors:
            first = tensors[name]
            if (first.dtype, first.dims) != (dtype, dims):
                raise _error(
                    cls,
                    f"`{name}` is {(first.dtype, first.dims)} in reads but {(dtype, dims)} in writes",
                    "a name in both is one tensor that is updated in place",
                    "declare the same dtype and dims in both, or use two names",
                )
            is_read = True
        tensors[name] = TensorDeclaration(name, dtype, dims, is_read, is_written)
    if not any(tensor.is_written for tensor in tensors.values()):
        raise _error(cls, "writes is empty", "an op that writes nothing has no effect", "declare its outputs")
    return tensors


def _entries(cls: type[Op]) -> Iterator[tuple[str, str, torch.dtype | None, tuple[str, ...]]]:
    example = '{"x": (None, ("M", "N"))}'
    for table in ("reads", "writes"):
        declared = getattr(cls, table)
        if not isinstance(declared, Mapping):
            raise _error(cls, f"{table} is {declared!r}", f"{table} maps tensor names", f"{table} = {example}")
        for name, entry in declared.items():
            where = f"{table}[{name!r}]"
            if not _is_name(name):
                raise _error(cls, f"{where}: no identifier", "tensors are parameters", "rename the tensor")
            if not (isinstance(entry, tuple) and len(entry) == 2):
                raise _error(cls, f"{where} is {entry!r}", "an entry is (dtype or None, dims)", example)
            dtype, dims = entry
            if dtype is not None and dtype not in DTYPES:
                raise _error(
                    cls,
                    f"{where} has dtype {dtype!r}",
                    "device code does not read or write this dtype",
                    f"None, or one of: {listing(DTYPES)}",
                )
            if not isinstance(dims, tuple):
                raise _error(
                    cls,
                    f"{where} has dims {dims!r}",
                    "dims is a tuple with one name for each axis",
                    f"({dims!r},)" if isinstance(dims, str) else example,
                )
            for dim in dims:
                if not _is_name(dim):
                    raise _error(
                        cls,
                        f"{where} has dim {dim!r}",
                        "dims are identifiers: device code says self.<dim>",
                        'name it like "N" or "batch"',
                    )
            if len(dims) > MAX_RANK:
                raise _error(
                    cls,
                    f"{where} has {len(dims)} dims",
                    f"tensors have 0 to {MAX_RANK} dims",
                    "merge dims, or split the tensor",
                )
            yield table, name, dtype, dims


def _check_tuple(cls: type[Op], attribute: str, of: str, example: str) -> None:
    """One name alone is easily written without its comma."""
    value = getattr(cls, attribute)
    if not isinstance(value, tuple):
        fix = f"{attribute} = ({value!r},)" if isinstance(value, str) else f'{attribute} = ("{example}",)'
        raise _error(cls, f"{attribute} is {value!r}", f"{attribute} is a tuple of {of}", fix)


def _check_resizable(cls: type[Op], dims: tuple[str, ...]) -> None:
    _check_tuple(cls, "resizable", "dim names", "N")
    for dim in cls.resizable:
        if dim not in dims:
            what = f"resizable names dim {dim!r}, which no tensor has{closest(str(dim), dims)}"
            raise _error(cls, what, "only dims of tensors have extents", f"dims: {listing(dims)}")


def _check_fusions(cls: type[Op], dims: tuple[str, ...]) -> None:
    """Slots say which of the op's dims a fusion sees as its own."""
    example = 'fusions = {"epilogue": {"rows": "M", "columns": "N"}}'
    if not isinstance(cls.fusions, Mapping) or not all(isinstance(slot, Mapping) for slot in cls.fusions.values()):
        raise _error(cls, f"fusions is {cls.fusions!r}", "fusions maps slots to dims", example)
    for slot, meaning in cls.fusions.items():
        if not _is_name(slot):
            raise _error(cls, f"fusions[{slot!r}]: no identifier", "slots are parameters of phases", "rename it")
        for name, dim in meaning.items():
            if dim not in dims:
                what = f"fusions[{slot!r}][{name!r}] is dim {dim!r}, which no tensor has{closest(str(dim), dims)}"
                raise _error(cls, what, "it is one of the op's own dims", f"dims: {listing(dims)}")


def _check_early(cls: type[Op], tensors: Mapping[str, TensorDeclaration]) -> None:
    """What may be read early is a tensor that is read, or a slot."""
    known = [name for name, tensor in tensors.items() if tensor.is_read] + list(cls.fusions)
    _check_tuple(cls, "early", "names", "w")
    for name in cls.early:
        if name not in known:
            what = f"early names {name!r}{closest(str(name), known)}"
            raise _error(cls, what, "it is a tensor that the op reads, or a slot of fusions", listing(known))


def _check_tile(cls: type[Op], dims: tuple[str, ...]) -> None:
    _check_tuple(cls, "tile", "dim names", "N")
    for position, dim in enumerate(cls.tile):
        if dim not in dims:
            raise _error(
                cls,
                f"tile names dim {dim!r}, which no tensor has{closest(str(dim), dims)}",
                "only dims of tensors can be tiled",
                f"dims of this op: {listing(dims)}",
            )
        if dim in cls.tile[:position]:
            raise _error(cls, f"tile names dim {dim!r} twice", "a dim is tiled once", "drop one of them")


def _check_scalars(cls: type[Op], tensors: Mapping[str, Any]) -> None:
    for name, dtype in cls.scalars.items():
        if not _is_name(name) or name in tensors:
            raise _error(
                cls,
                f"scalars[{name!r}]: {'also a tensor' if name in tensors else 'no identifier'}",
                "scalars and tensors are parameters of the same functions",
                "rename the scalar",
            )
        if dtype not in SCALAR_DTYPES:
            raise _error(
                cls,
                f"scalars[{name!r}] has dtype {dtype!r}",
                "runtime scalars are 32-bit floats, or 32- or 64-bit ints",
                f"one of: {listing(SCALAR_DTYPES)}",
            )


def _check_names(cls: type[Op], tensors: Mapping[str, Any]) -> None:
    """No argument may have the name of something that the framework binds."""
    arguments = [*tensors, *cls.scalars]
    taken = {*RESERVED_NAMES, *(f"tile_{dim}" for dim in cls.tile), *(f"tma_{name}" for name in tensors)}
    for name in arguments:
        if name in taken:
            raise _error(cls, f"an argument is called `{name}`", "the framework binds this name itself", "rename it")


def _check_reserved(cls: type[Op], tensors: Mapping[str, Any], dims: tuple[str, ...]) -> None:
    """What device code reads from `self` must not already be there."""
    reserved = {dim: f"the extent of dim {dim}" for dim in dims}
    reserved |= {f"tile_size_{dim}": f"the tile size of dim {dim}" for dim in cls.tile}
    reserved |= {f"{name}_dtype": f"the dtype of `{name}`" for name in tensors}
    reserved["threads_per_row"] = "the number of compute threads"
    for name, meaning in reserved.items():
        if hasattr(cls, name):
            raise _error(
                cls,
                f"the class has an attribute `{name}`",
                f"in device code, self.{name} is {meaning}",
                "rename the attribute or the dim",
            )


def _parameters(cls: type[Op], phase: str, tensors: Mapping[str, TensorDeclaration]) -> tuple[str, ...]:
    """Names of a phase's parameters after `self`, each of which the framework can bind."""
    function: Callable[..., Any] = getattr(cls, phase)
    if not callable(function) or isinstance(inspect.getattr_static(cls, phase), (staticmethod, classmethod, property)):
        raise _error(
            cls,
            f"`{phase}` is no method",
            "phases are methods: they read self.N and so on",
            f"def {phase}(self, …)",
        )
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise _error(
            cls,
            f"`{phase}` has no `self`",
            "phases are methods: they read self.N and so on",
            f"def {phase}(self, …)",
        )
    # What `load` reads must be declared: whether the loader has to wait for an earlier op follows from `reads`.
    named = [name for name, tensor in tensors.items() if tensor.is_read or phase != "load"]
    if phase == "multiply":  # what is multiplied is in the ring, and where it goes is tensor memory
        named = []
    available = [*named, *(f"tile_{dim}" for dim in cls.tile), *cls.scalars]
    available.append("tiles")
    if phase == "multiply":
        available.append("accumulators")
    else:
        available += cls.fusions
    if phase == "compute":
        available += ["page_ptr", "dependencies", *(["accumulators"] if hasattr(cls, "multiply") else [])]
    else:
        available += [f"tma_{name}" for name in named]
    if cls.pipeline is not None and cls.pipeline.is_streaming:
        available.append("ring")
    for parameter in parameters[1:]:
        name = parameter.name
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            what, fix = f"`{phase}` takes {stars}{name}", f"name what it uses: {listing(available)}"
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            what, fix = f"`{phase}` takes `{name}` by position only", "remove the `/`"
        elif parameter.default is not inspect.Parameter.empty:
            what, fix = (
                f"`{phase}` has a default for `{name}`",
                "remove it: the framework binds every parameter",
            )
        elif name not in available:
            what = f"`{phase}` has a parameter `{name}` that names nothing{closest(name, available)}"
            fix = f"available to `{phase}`: {listing(available)}"
            if name.removeprefix("tma_") in tensors:
                fix = f"the op only writes it; declare it in reads to load it; {fix}"
            if name == "ring":
                fix = f"pipeline = PipelineSpec.streaming(…) brings `ring`; {fix}"
        else:
            continue
        raise _error(cls, what, "parameters are bound by name", fix)
    return tuple(parameter.name for parameter in parameters[1:])


def _check_phases(cls: type[Op], phases: Mapping[str, Any], is_lowered: bool) -> None:
    is_front = not phases and is_lowered
    if "compute" not in phases and not is_front:
        raise _error(
            cls,
            f"no `compute` (phases: {listing(phases)})",
            "an op computes, if only to forward what `load` brings to `store`, or is lowered to an op that does",
            "define compute(self, …), or override `lower`; class Base(Op, abstract=True) for a base class",
        )
    if "multiply" in phases:
        _check_multiply(cls, phases)
    pipeline = cls.pipeline
    if "load" in phases and (pipeline is None or not pipeline.is_streaming):
        raise _error(
            cls,
            "`load` without a streaming pipeline",
            "`load` fills the input stages of a ring",
            "pipeline = PipelineSpec.streaming(input_stages=3)",
        )
    if "store" in phases and (pipeline is None or not pipeline.output_stages):
        raise _error(
            cls,
            "`store` without output stages",
            "`store` drains the output stages of a ring",
            "pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2)",
        )


def _check_multiply(cls: type[Op], phases: Mapping[str, tuple[str, ...]]) -> None:
    """Products need tensor memory, operands that `load` brings, and somebody who takes the sums."""
    without = [name for name in cls.targets if not TARGETS[name].tensor_memory]
    if without:
        raise _error(
            cls,
            f"`multiply` on {listing(without)}",
            "this phase accumulates in tensor memory",
            f"targets = {tuple(name for name, target in TARGETS.items() if target.tensor_memory)}",
        )
    for phase, parameter, why in (
        ("load", "ring", "what is multiplied is in the stages that `load` fills"),
        ("multiply", "ring", "what is multiplied is in the stages that `load` fills"),
        ("multiply", "accumulators", "products go to an accumulator"),
        ("compute", "accumulators", "somebody has to take the sums, and to free the accumulator"),
    ):
        if parameter not in phases.get(phase, ()):
            raise _error(
                cls, f"`multiply`, but `{phase}` does not take `{parameter}`", why, f"def {phase}(self, {parameter}, …)"
            )
    if "ring" in phases["compute"]:
        raise _error(
            cls,
            "both `multiply` and `compute` take `ring`",
            "one of them goes through the stages and gives them back",
            "def compute(self, accumulators, …)",
        )
    if "store" in phases:
        raise _error(
            cls,
            "both `multiply` and `store`",
            "`compute` of such an op has no stages to hand over",
            "store from registers in `compute`",
        )
