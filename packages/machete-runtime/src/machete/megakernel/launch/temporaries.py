"""Tensors between ops whose memory is the framework's.

A temporary has a shape, strides, a dtype and a device, and can be viewed, sliced and scheduled like any tensor; it has
no contents. `Megakernel` finds out from which op to which op each one is used, and lets temporaries whose lives do not
overlap share memory. The plan sees the memory that they end up in, so it orders an op that reuses memory after those
that used it before, like any other ops that share memory.

Until then, and in plans, temporaries lie at addresses that no real tensor has: from `UNPLACED` on before they are
placed, from `ARENA` on afterwards. The arena itself is allocated for each stream that a kernel runs on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from machete.megakernel.abi.errors import PlanError, TensorTypeError
from machete.megakernel.abi.scheduled import ScheduledOp

ARENA = 1 << 48  # above what user programs and CUDA devices have mapped
UNPLACED = 1 << 56
ALIGNMENT = 256  # bytes, as CUDA allocations have at least

_next = itertools.count(UNPLACED, 1 << 42)  # each temporary has 4 TiB of addresses of its own
_lock = threading.Lock()


class Temporary(torch.Tensor):
    """A tensor without contents; views of it are temporaries, too. `machete.megakernel.temporary` makes one."""

    _shape_only: torch.Tensor
    _origin: int
    _zeroed: bool

    @staticmethod
    def __new__(cls, shape_only: torch.Tensor, device: torch.device, base: int, zeroed: bool) -> Temporary:
        """`shape_only` is a tensor on the meta device, `base` the address of its storage."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, shape_only.shape, strides=shape_only.stride(), dtype=shape_only.dtype, device=device
        )
        self._shape_only, self._origin, self._zeroed = shape_only, base, zeroed
        return self

    def data_ptr(self) -> int:
        """Where plans believe it to lie."""
        return self._origin + int(self._shape_only.storage_offset()) * self.element_size()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"temporary({tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Views are computed on the meta device; there is nothing to compute anything else from."""
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        temporary = next(leaf for leaf in leaves if isinstance(leaf, Temporary))
        leaves = [leaf._shape_only if isinstance(leaf, Temporary) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        if not func.is_view:
            raise TensorTypeError(
                what=f"{func} of a temporary",
                where=repr(temporary),
                why="a temporary has no contents outside of the kernel that it is used in",
                fix="use torch.empty for a tensor that is read or written elsewhere, too",
            )
        return pytree.tree_map_only(
            torch.Tensor,
            lambda view: Temporary(view, temporary.device, temporary._origin, temporary._zeroed),
            func(*args, **kwargs),
        )


def temporary(
    shape: Sequence[int] | int, dtype: torch.dtype, device: torch.device | str, *, zeroed: bool = False
) -> torch.Tensor:
    """A tensor whose memory the framework provides while a kernel runs; it reuses that of others by lifetime.

    Args:
        shape: extents; it is contiguous.
        dtype: of its elements.
        device: where the ops run, "cpu" for the simulator.
        zeroed: it holds zeros before the first launch, and shares memory with no other; ops that use it leave zeros
            behind, for the next launch. For counters of an op's own.

    The first use of one that is not zeroed has to be a write: nothing is in it before.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with _lock:
        base = next(_next)
    return Temporary(torch.empty(shape, dtype=dtype, device="meta"), device, base, zeroed)


@dataclass(frozen=True)
class Lifetime:
    """From the first to the last op that uses it; `nbytes` of memory."""

    first: int
    last: int
    nbytes: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Byte offsets such that no two that live at the same time overlap, and the bytes needed in all.

    First fit, in two orders: by first use, which needs no more than the peak if all are of one size, and largest first,
    which is good at mixed sizes. The better one counts. Offsets are multiples of `ALIGNMENT`.
    """
    by_first_use = sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].first, -lifetimes[i].nbytes))
    by_size = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    return min((_first_fit(lifetimes, order) for order in (by_first_use, by_size)), key=lambda placed: placed[1])


def _first_fit(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    offsets = [0] * len(lifetimes)
    total = 0
    placed: list[int] = []
    for index in order:
        mine = lifetimes[index]
        taken = sorted(
            (offsets[other], offsets[other] + _aligned(lifetimes[other].nbytes))
            for other in placed
            if lifetimes[other].first <= mine.last and mine.first <= lifetimes[other].last
        )
        size, offset = _aligned(mine.nbytes), 0
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append(index)
        total = max(total, offset + size)
    return offsets, total


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def placed(ops: Sequence[ScheduledOp]) -> tuple[list[ScheduledOp], int]:
    """The ops with their temporaries in the arena, and the arena's size in bytes."""
    uses: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    zeroed: set[int] = set()
    for index, op in enumerate(ops):
        for name, tensor in op.tensors.items():
            if isinstance(tensor, Temporary):
                if tensor._zeroed:
                    zeroed.add(tensor._origin)
                elif name in op.op.reads and uses.get(tensor._origin, [index]) == [index]:
                    raise _read_first(index, op, name)
                uses.setdefault(tensor._origin, []).append(index)
                sizes[tensor._origin] = tensor._shape_only.untyped_storage().nbytes()
    if not uses:
        return list(ops), 0
    bases = list(uses)
    always = (0, len(ops))
    lives = (always if base in zeroed else (uses[base][0], uses[base][-1]) for base in bases)
    offsets, total = place([Lifetime(*life, sizes[base]) for life, base in zip(lives, bases, strict=True)])
    moved = {base: ARENA + offset - base for base, offset in zip(bases, offsets, strict=True)}
    return [_moved(op, moved) for op in ops], total


def _read_first(index: int, op: ScheduledOp, name: str) -> PlanError:
    return PlanError(
        what=f"op {index} ({op.op.__name__}) reads the temporary `{name}`, which no op before it writes",
        where="Megakernel(ops)",
        why="a temporary has no contents of its own",
        fix="schedule the op that writes it before, or use a tensor",
    )


def _moved(op: ScheduledOp, moved: dict[int, int]) -> ScheduledOp:
    infos = {
        name: replace(info, address=info.address + moved[tensor._origin]) if isinstance(tensor, Temporary) else info
        for (name, info), tensor in zip(op.infos.items(), (op.tensors[name] for name in op.infos), strict=True)
    }
    return replace(op, infos=infos)
