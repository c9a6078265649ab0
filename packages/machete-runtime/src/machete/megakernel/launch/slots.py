"""The memory that an op list works on, as pieces that can be replaced: values that `binding` works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from machete.megakernel.abi.errors import OverlapError
from machete.megakernel.abi.op import Op
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo

from .temporaries import ARENA

Use = tuple[int, str]  # op index, what it calls the tensor


@dataclass(eq=False)
class View:
    """Memory as ops see it. `info` is as scheduled; `tensor` keeps it alive, unless a slot does or nobody should."""

    info: TensorInfo
    tensor: torch.Tensor | None
    written: bool = False
    uses: list[Use] = field(default_factory=list)


@dataclass(eq=False)
class Change:
    """Words of the image that change together, at `positions` (int64), and the tensors that they now point to."""

    positions: np.ndarray
    tensors: list[torch.Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Scalar(Change):
    """A runtime scalar, in every op that has one of this name and dtype; `op` is one of them."""

    op: type[Op] = Op


@dataclass(eq=False)
class Slot:
    """A tensor that can be replaced, with all bound views that lie in it.

    Attributes:
        layout: dtype, shape, strides and device of the tensor.
        address: where it lies now.
        views: indices of the views, in `Binding.views`.
        words: positions of their addresses in the image.
        op, name: an op that uses it, one that writes it if there is one, and what it is there.
        tensor: keeps it alive, unless the slot borrows.
        borrows: the tensor is passed anew for every run, and not kept alive.
        bound: False once one of its views was replaced as a part of something else.
        rivals: slots that have some of the same views.
    """

    layout: TensorInfo
    address: int
    views: frozenset[int]
    words: list[int]
    op: ScheduledOp
    name: str
    tensor: torch.Tensor | None
    borrows: bool = False
    bound: bool = True
    rivals: list[Slot] = field(default_factory=list)

    def holds(self, info: TensorInfo) -> bool:
        """Whether this is the tensor that lies in the slot now."""
        layout = self.layout
        return (self.address, layout.shape, layout.strides, layout.dtype) == (
            info.address,
            info.shape,
            info.strides,
            info.dtype,
        )


class Group(Change):
    """Slots whose tensors are replaced together, and what that takes, as arrays.

    Attributes:
        slots: they have no views in common.
        inside: indices of their views; `owner` the number of the slot of each.
        word_owner: the same for each of `positions`.
        others: bool[inside, views]: they do not move together.
        matters: bool[inside, views]: nor may they have a byte in common, since one of both is written.
        apart: addresses of the slots that were found to share nothing with other views, as long as those do not move.
        held: what changes if the slots get other tensors with the same memory: no words.
    """

    def __init__(self, slots: Sequence[Slot], written: np.ndarray) -> None:
        if len(frozenset().union(*(slot.views for slot in slots))) < sum(len(slot.views) for slot in slots):
            raise OverlapError(
                what="tensors to replace are parts of one another",
                where="Megakernel.run",
                why="each bound tensor is replaced once",
                fix="replace the tensor that the others are parts of",
            )
        super().__init__(np.array([word for slot in slots for word in slot.words], dtype=np.int64))
        self.slots = tuple(slots)
        members = [sorted(slot.views) for slot in slots]
        self.inside = np.array([view for views in members for view in views], dtype=np.int64)
        self.owner = np.repeat(np.arange(len(slots)), [len(views) for views in members])
        self.word_owner = np.repeat(np.arange(len(slots)), [len(slot.words) for slot in slots])
        self.others = np.ones((len(self.inside), len(written)), dtype=bool)
        for row, owner in enumerate(self.owner):
            self.others[row, members[owner]] = False
        self.matters = self.others & (written[self.inside, None] | written)
        self.apart: set[tuple[int, ...]] = set()
        self.held = Change(np.zeros(0, dtype=np.int64))


def views_of(ops: Sequence[ScheduledOp]) -> list[View]:
    """The different views among the tensors of all ops."""
    views: dict[tuple, View] = {}
    for index, op in enumerate(ops):
        for name, info in op.infos.items():
            key = (info.address, info.shape, info.strides, info.dtype)
            # A temporary has nothing to keep alive, and ops of a saved kernel have no tensors before they are bound.
            tensor = None if info.address >= ARENA else op.tensors.get(name)
            view = views.setdefault(key, View(info, tensor))
            view.uses.append((index, name))
            view.written |= name in op.op.writes
    return list(views.values())


def same_memory(one: TensorInfo, other: TensorInfo) -> bool:
    """Whether both are the same elements, but for leading dims of extent 1."""
    short, long = sorted((one, other), key=lambda info: len(info.shape))
    extra = len(long.shape) - len(short.shape)
    if any(extent != 1 for extent in long.shape[:extra]):
        return False
    return long.same_view(
        replace(short, shape=long.shape[:extra] + short.shape, strides=long.strides[:extra] + short.strides)
    )


def lies_in(info: TensorInfo, whole: TensorInfo) -> bool:
    """Whether `info` is `whole`, or a part of it if that has no gaps."""
    if same_memory(info, whole):
        return True
    (begin, end), (first, last) = whole.span, info.span
    return whole.nbytes == end - begin and not info.is_empty and begin <= first and last <= end
