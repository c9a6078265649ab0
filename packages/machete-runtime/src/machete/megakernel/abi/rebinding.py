"""A scheduled op with other tensors of the same layout, or other scalars: what may change between runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from machete.megakernel.abi import schedule_checks as checks
from machete.megakernel.abi.errors import AlignmentError, DtypeError, ShapeMismatchError, StrideError
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo, dtype_name


def with_scalar(op: ScheduledOp, name: str, value: object) -> ScheduledOp:
    """The op with another value of scalar `name`; `ScalarError` if it is not of the declared type."""
    declaration = op.op.declaration
    checked = checks.checked_scalar(declaration, name, declaration.scalars[name], {name: value})
    return replace(op, scalars={**op.scalars, name: checked})


def with_tensors(op: ScheduledOp, changes: Mapping[str, torch.Tensor]) -> ScheduledOp:
    """The op with other tensors, each of the dtype, shape, strides, device and alignment of the one it replaces.

    A tensor of lower rank gets leading dims of extent 1, as `schedule` of ops with an optional batch dim adds them.
    """
    tensors, infos = dict(op.tensors), dict(op.infos)
    for name, tensor in changes.items():
        tensors[name], infos[name] = checked_replacement(op, name, op.infos[name], tensor)
    declaration = op.op.declaration
    checks.check_overlaps(declaration, infos)
    return replace(op, tensors=tensors, infos=infos)


def checked_replacement(
    op: ScheduledOp, name: str, old: TensorInfo, tensor: torch.Tensor
) -> tuple[torch.Tensor, TensorInfo]:
    """`tensor`, with the rank of `old`, if it may take its place as argument `name` of `op`."""
    checks.checked_tensor(op.op.declaration, name, tensor)
    while tensor.ndim < len(old.shape):
        tensor = tensor.unsqueeze(0)
    info = TensorInfo.of(name, tensor)
    checks.check_devices(op.op.declaration, {f"{name} before": old.device, name: info.device})
    _check_same_layout(op, old, info)
    checks.check_addresses(op.op.declaration, {name: info})
    return tensor, info


def _check_same_layout(op: ScheduledOp, old: TensorInfo, new: TensorInfo) -> None:
    where = f"rebinding `{old.name}` of {op.op.__name__}"
    why = "the plan and the compiled code are for tensors of one layout"
    fix = "pass a tensor of the same layout, or schedule the op again"
    if new.dtype != old.dtype:
        what = f"`{old.name}` is {dtype_name(new.dtype)}, not {dtype_name(old.dtype)}"
        raise DtypeError(what=what, where=where, why=why, fix=fix)
    if new.shape != old.shape:
        what = f"`{old.name}` has shape {new.shape}, not {old.shape}"
        raise ShapeMismatchError(what=what, where=where, why=why, fix=fix)
    stepped = [axis for axis, extent in enumerate(new.shape) if extent > 1]
    if any(new.strides[axis] != old.strides[axis] for axis in stepped):
        what = f"`{old.name}` has strides {new.strides}, not {old.strides}"
        raise StrideError(what=what, where=where, why=why, fix=fix)
    if new.alignment < old.alignment and not new.is_empty:
        what = f"`{old.name}` is aligned to {new.alignment} bytes, not to {old.alignment}"
        raise AlignmentError(what=what, where=where, why=why, fix=fix)
