"""The checks that arguments of an op pass before it becomes a `ScheduledOp`.

In the order in which a user wants to hear of them: names, kinds of object, devices, ranks, dtypes, extents,
tile sizes, overlaps, and last what bulk copies need.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch

from machete.megakernel.abi.declaration import RESERVED_NAMES, OpDeclaration
from machete.megakernel.abi.errors import (
    AlignmentError,
    ConfigError,
    DeviceError,
    DtypeError,
    ExtentError,
    MissingTensorError,
    OverlapError,
    ScalarError,
    ShapeMismatchError,
    StrideError,
    TensorTypeError,
    TileSizeError,
    UnknownArgumentError,
    closest,
    listing,
)
from machete.megakernel.abi.tensor import BULK_ALIGNMENT, DTYPES, TensorInfo, common_alignment, dtype_name

#: Device code counts elements along a dim, and tiles, with signed 32-bit integers.
INT32_LIMIT = 2**31


def split_arguments(
    op: OpDeclaration, arguments: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, int | float]]:
    """Tensors and scalars among the arguments, each in declared order."""
    known = [*op.tensors, *op.scalars]
    for name in arguments:
        if name not in known:
            raise UnknownArgumentError(
                what=f"{op.name} has no argument `{name}`{closest(name, known)}",
                where=f"scheduling {op.name}",
                why="arguments are the tensors and scalars that the op declares",
                fix=f"arguments of {op.name}: {listing(known)}",
            )
    missing = [name for name in op.tensors if arguments.get(name) is None]
    if missing:
        raise MissingTensorError(
            what=f"{op.name}: missing {listing(f'tensor `{name}`' for name in missing)}",
            where=f"scheduling {op.name}",
            why=f"it reads {listing(op.reads)} and writes {listing(op.writes)}",
            fix=f"pass {listing(f'{name}=…' for name in missing)}",
        )
    scalars = {name: checked_scalar(op, name, dtype, arguments) for name, dtype in op.scalars.items()}
    tensors = {name: checked_tensor(op, name, arguments[name]) for name in op.tensors}
    return tensors, scalars


def checked_scalar(op: OpDeclaration, name: str, dtype: torch.dtype, arguments: Mapping[str, Any]) -> int | float:
    """The value of a scalar, if it fits its dtype."""
    where, wanted = f"scalar `{name}` of {op.name}", dtype_name(dtype)
    if name not in arguments:
        raise ScalarError(
            what=f"{op.name} needs scalar `{name}`",
            where=where,
            why=f"it is a runtime scalar of type {wanted}; this is its value for the first run",
            fix=f"pass {name}={'1.0' if dtype.is_floating_point else '0'}",
        )
    value = arguments[name]
    if dtype.is_floating_point:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if math.isfinite(value) and abs(value) > torch.finfo(dtype).max:
                raise ScalarError(
                    what=f"{op.name}: {name}={value!r} does not fit {wanted}",
                    where=where,
                    why=f"the largest {wanted} is {torch.finfo(dtype).max:.4g}",
                    fix="pass a smaller value, or float('inf')",
                )
            return float(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        bits = 8 * dtype.itemsize - 1
        if -(2**bits) <= value < 2**bits:
            return value
        raise ScalarError(
            what=f"{op.name}: {name}={value} does not fit {wanted}",
            where=where,
            why=f"{wanted} holds values from -2**{bits} to 2**{bits} - 1",
            fix="declare it as int64, or pass a smaller value",
        )
    raise ScalarError(
        what=f"{op.name}: {name}={value!r} is a {type(value).__name__}",
        where=where,
        why=f"it is a runtime scalar of type {wanted}",
        fix=f"pass a Python {'float' if dtype.is_floating_point else 'int'}; "
        "values that live on the device are tensors of rank 0",
    )


def checked_tensor(op: OpDeclaration, name: str, value: object) -> torch.Tensor:
    """The value, if it is a dense tensor that an op may read, or write where it is an output."""
    where = f"`{name}` of {op.name}"
    if not isinstance(value, torch.Tensor):
        raise TensorTypeError(
            what=f"{op.name}: `{name}` is a {type(value).__name__}, no torch.Tensor",
            where=where,
            why="ops read and write the memory of torch tensors",
            fix=f"{name}=torch.as_tensor(…)",
        )
    for is_wrong, kind, fix in (
        (value.layout != torch.strided, f"sparse ({value.layout})", f"{name}.to_dense()"),
        (value.is_quantized, "quantized", f"{name}.dequantize(), or pass {name}.int_repr()"),
        (value.is_conj(), "a lazily conjugated view", f"{name}.resolve_conj()"),
        (value.is_neg(), "a lazily negated view", f"{name}.resolve_neg()"),
    ):
        if is_wrong:
            raise TensorTypeError(
                what=f"{op.name}: `{name}` is {kind}",
                where=where,
                why="its memory does not hold one value for each element",
                fix=fix,
            )
    if op.tensors[name].is_written and value.requires_grad and value.is_leaf and torch.is_grad_enabled():
        raise TensorTypeError(
            what=f"{op.name}: output `{name}` is a leaf that requires grad",
            where=where,
            why="autograd would not know that its value changed",
            fix=f"{name}.detach(), or schedule under torch.no_grad()",
        )
    return value


def check_devices(op: OpDeclaration, devices: Mapping[str, torch.device]) -> None:
    """All tensors on one device: the CPU (simulated), or one CUDA device."""
    first_name, first = next(iter(devices.items()))
    for name, device in devices.items():
        if device.type not in ("cpu", "cuda"):
            raise DeviceError(
                what=f"{op.name}: `{name}` is on {device}",
                where=f"`{name}` of {op.name}",
                why="ops run on CUDA tensors, and on CPU tensors by simulation",
                fix=f"{name}.to('cuda') or {name}.cpu()" if device.type != "meta" else "allocate it: it has no memory",
            )
        if device != first:
            raise DeviceError(
                what=f"{op.name}: `{first_name}` is on {first}, but `{name}` is on {device}",
                where=f"scheduling {op.name}",
                why="all tensors of an op are on one device",
                fix=f"{name}.to('{first}')",
            )


def check_dtypes(op: OpDeclaration, infos: Mapping[str, TensorInfo]) -> None:
    """Declared dtypes where the op declares them, else dtypes that device code reads and writes."""
    for name, info in infos.items():
        declared = op.tensors[name].dtype
        if declared is not None and info.dtype != declared:
            raise DtypeError(
                what=f"{op.name}: `{name}` is {dtype_name(info.dtype)}, not {dtype_name(declared)}",
                where=f"`{name}` of {op.name}",
                why=f"the op declares {dtype_name(declared)} for it",
                fix=f"{name}.to({declared})",
            )
        if info.dtype not in DTYPES:
            raise DtypeError(
                what=f"{op.name}: `{name}` is {dtype_name(info.dtype)}",
                where=f"`{name}` of {op.name}",
                why="device code does not read or write this dtype",
                fix=f"one of: {listing(map(dtype_name, DTYPES))}",
            )


def common_extents(op: OpDeclaration, infos: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Extent of each dim; every tensor with the right rank, all that use a dim agreeing."""
    extents: dict[str, int] = {}
    owners: dict[str, str] = {}
    for name, info in infos.items():
        dims = op.tensors[name].dims
        if len(dims) != len(info.shape):
            raise ShapeMismatchError(
                what=f"{op.name}: `{name}` has rank {len(info.shape)} (shape {info.shape}), not {len(dims)}",
                where=f"`{name}` of {op.name}",
                why=f"its dims are ({', '.join(dims)})",
                fix=f"reshape `{name}` to rank {len(dims)}",
            )
        for axis, (dim, extent) in enumerate(zip(dims, info.shape, strict=True)):
            owner = f"{name}.shape[{axis}]"
            if extents.setdefault(dim, extent) != extent:
                raise ShapeMismatchError(
                    what=f"{op.name}: dim {dim} is {extents[dim]} in {owners[dim]} but {extent} in {owner}",
                    where=f"{op.name}({listing(infos.values())})",
                    why="a dim name means one extent, in every tensor that uses it",
                    fix=f"pass tensors that agree about {dim}",
                )
            owners.setdefault(dim, owner)
            if extent >= INT32_LIMIT:
                raise ExtentError(
                    what=f"{op.name}: {owner} is {extent}",
                    where=f"dim {dim} of {op.name}",
                    why="extents are signed 32-bit integers in device code",
                    fix="view the tensor with another dim, or schedule the op on slices of it",
                )
    return extents


def checked_tile_sizes(op: OpDeclaration, tile_sizes: Mapping[str, Any], extents: Mapping[str, int]) -> dict[str, int]:
    """A positive int for each tiled dim, in declared order."""
    where = f"tile sizes of {op.name}"
    for dim in tile_sizes:
        if dim not in op.tile:
            is_dim = dim in extents
            raise TileSizeError(
                what=f"{op.name}: tile size for {'untiled' if is_dim else 'unknown'} dim {dim!r}"
                f"{'' if is_dim else closest(str(dim), op.tile)}",
                where=where,
                why=f"the op tiles {listing(op.tile)}",
                fix=f"remove it, or add it to {op.name}.tile" if is_dim else f"tiled dims: {listing(op.tile)}",
            )
    sizes: dict[str, int] = {}
    for dim in op.tile:
        if dim not in tile_sizes:
            raise TileSizeError(
                what=f"{op.name}: no tile size for dim {dim}",
                where=where,
                why=f"the op tiles {listing(op.tile)}",
                fix=f'tile_sizes={{"{dim}": 128, …}}',
            )
        value = tile_sizes[dim]
        try:
            size = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            size = None
        if size is None or size < 1:
            raise TileSizeError(
                what=f"{op.name}: tile size {value!r} for dim {dim}",
                where=where,
                why="a tile size is a positive int, known when the kernel is compiled",
                fix=f'tile_sizes={{"{dim}": 128, …}}',
            )
        if extents[dim] + size > INT32_LIMIT:
            raise ExtentError(
                what=f"{op.name}: extent {extents[dim]} of dim {dim} with tile size {size}",
                where=where,
                why="the end of the last tile is a signed 32-bit integer in device code",
                fix="smaller tiles, or schedule the op on slices",
            )
        sizes[dim] = size
    num_tiles = math.prod(-(-extents[dim] // size) for dim, size in sizes.items())
    if num_tiles >= INT32_LIMIT:
        raise ExtentError(
            what=f"{op.name}: {num_tiles} tiles",
            where=where,
            why="tiles are numbered with signed 32-bit integers",
            fix="larger tiles, or schedule the op on slices",
        )
    return sizes


def checked_config(op: OpDeclaration, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Hashable compile-time values, sorted by name.

    In device code they are attributes of `self`; those with a dot in their name, of the fusion before it.
    """
    taken = {*op.dims, *op.phases, *RESERVED_NAMES, "threads_per_row"}
    taken |= {f"tile_size_{dim}" for dim in op.tile} | {f"{name}_dtype" for name in op.tensors}
    for name, value in (config or {}).items():
        if not all(part.isidentifier() for part in name.split(".")) or name in taken:
            raise ConfigError(
                what=f"{op.name}: config has the name {name!r}",
                where=f"config of {op.name}",
                why="config values are attributes of `self` in device code; the name is taken, or none",
                fix="rename it",
            )
        try:
            hash(value)
        except TypeError:
            raise ConfigError(
                what=f"{op.name}: config[{name!r}] is a {type(value).__name__}, which is not hashable",
                where=f"config of {op.name}",
                why="config identifies compiled code",
                fix="a tuple or a frozen dataclass; values that change between runs are scalars or tensors",
            ) from None
    return dict(sorted((config or {}).items()))


def check_overlaps(op: OpDeclaration, infos: Mapping[str, TensorInfo]) -> None:
    """No output shares memory with itself or another argument, but for elementwise updates in place."""
    for name in op.writes:
        if infos[name].self_overlapping():
            raise OverlapError(
                what=f"{op.name}: output `{name}` overlaps itself (strides {infos[name].strides})",
                where=f"`{name}` of {op.name}",
                why="several elements share memory, so the result would depend on who writes last",
                fix=f"write to a tensor of its own: torch.empty({infos[name].shape})",
            )
    for first, second in combinations(infos.values(), 2):
        one, other = op.tensors[first.name], op.tensors[second.name]
        if not (one.is_written or other.is_written) or not first.overlaps(second):
            continue
        if one.is_written and other.is_written:
            raise OverlapError(
                what=f"{op.name}: outputs `{first.name}` and `{second.name}` overlap",
                where=f"scheduling {op.name}",
                why="the result would depend on who writes last",
                fix=f"write `{second.name}` to a tensor of its own",
            )
        if first.same_view(second) and one.dims == other.dims:
            continue
        read, written = (second, first) if one.is_written else (first, second)
        raise OverlapError(
            what=f"{op.name}: input `{read.name}` and output `{written.name}` overlap, but are not one view",
            where=f"scheduling {op.name}",
            why="one tile would overwrite what another tile still has to read; in place means the same view "
            "with the same dims",
            fix=f"{read.name}.clone(), or write `{written.name}` to a tensor of its own",
        )


def check_addresses(op: OpDeclaration, infos: Mapping[str, TensorInfo]) -> None:
    """Memory at all, and elements at multiples of their size, as every access needs."""
    for name, info in infos.items():
        if not info.is_empty and info.address == 0:
            raise TensorTypeError(
                what=f"{op.name}: `{name}` has no memory",
                where=f"`{name}` of {op.name}",
                why="fake tensors, and tensors whose storage was freed, have a shape only",
                fix=f"torch.empty({info.shape}, …)",
            )
        if not info.is_empty and info.address % info.itemsize:
            raise AlignmentError(
                what=f"{op.name}: `{name}` starts at {info.address:#x}, no multiple of {info.itemsize}",
                where=f"`{name}` of {op.name}",
                why=f"a {dtype_name(info.dtype)} lies at a multiple of its {info.itemsize} bytes",
                fix=f"{name}.clone()",
            )


def check_bulk(op: OpDeclaration, infos: Mapping[str, TensorInfo], inner: Mapping[str, int]) -> None:
    """What `load` and `store` copy: innermost stride 1, address and outer strides multiples of 16 bytes.

    `inner`: for each tensor that they copy the dim that is innermost in memory, counted from the end if negative.
    """
    for name, dim in inner.items():
        info = infos[name]
        axis = dim % max(1, len(info.shape))
        where = f"`{name}` of {op.name}, shape {info.shape}, strides {info.strides}"
        if info.is_empty:
            continue
        if info.shape and info.shape[axis] > 1 and info.strides[axis] != 1:
            raise StrideError(
                what=f"{op.name}: `{name}` has innermost stride {info.strides[axis]}, not 1",
                where=where,
                why="`load` and `store` copy rows (TMA, bulk copies): innermost neighbours must be adjacent",
                fix=f"{name}.contiguous(), or swap its dims",
            )
        if common_alignment([info.address]) < BULK_ALIGNMENT:
            raise AlignmentError(
                what=f"{op.name}: `{name}` starts {info.address % BULK_ALIGNMENT} bytes past a multiple of "
                f"{BULK_ALIGNMENT}",
                where=where,
                why=f"TMA and bulk copies start at multiples of {BULK_ALIGNMENT} bytes",
                fix=f"{name}.clone(), or slice at a multiple of {BULK_ALIGNMENT // info.itemsize} elements",
            )
        for other, extent in enumerate(info.shape):
            stride = info.strides[other] * info.itemsize
            if other != axis and extent > 1 and stride % BULK_ALIGNMENT:
                raise AlignmentError(
                    what=f"{op.name}: stride {info.strides[other]} of `{name}` (axis {other}) is {stride} bytes, "
                    f"no multiple of {BULK_ALIGNMENT}",
                    where=where,
                    why=f"TMA and bulk copies start at multiples of {BULK_ALIGNMENT} bytes",
                    fix=f"rows of a multiple of {BULK_ALIGNMENT // info.itemsize} elements, then slice",
                )
