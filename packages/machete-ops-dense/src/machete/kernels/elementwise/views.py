"""Views of tensors with fewer dims, for ops that care about elements and not about shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def collapsed(tensors: Sequence[torch.Tensor], keep: int = 0) -> list[torch.Tensor]:
    """Views of tensors of one shape in which dims that are adjacent in all of them are one; no dim of extent 1.

    The last `keep` dims stay as they are.
    """
    shape = tensors[0].shape
    last = len(shape) - keep
    dims: list[tuple[int, tuple[int, ...]]] = []  # extent, stride in each tensor
    for axis in range(last):
        extent, strides = shape[axis], tuple(tensor.stride(axis) for tensor in tensors)
        if extent == 1:
            continue
        if dims and dims[-1][1] == tuple(stride * extent for stride in strides):
            dims[-1] = (dims[-1][0] * extent, strides)
        else:
            dims.append((extent, strides))
    views = []
    for index, tensor in enumerate(tensors):
        sizes = [extent for extent, _ in dims] + list(shape[last:])
        steps = [strides[index] for _, strides in dims] + list(tensor.stride())[last:]
        views.append(tensor.as_strided(sizes, steps))
    return views


def with_rank(tensors: Sequence[torch.Tensor], rank: int) -> list[torch.Tensor]:
    """The tensors with dims of extent 1 in front."""
    return [tensor[(None,) * (rank - tensor.ndim)] for tensor in tensors]
