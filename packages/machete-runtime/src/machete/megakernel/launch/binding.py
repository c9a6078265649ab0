"""Which memory an op list works on, and how other tensors and values take the place of those it was planned with.

Views that ops name are grouped by memory once. To rebind a tensor then means: check it, see that it shares memory with
nothing that it did not share memory with before, and add one difference to a prepared set of words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from machete.megakernel.abi import schedule_checks as checks
from machete.megakernel.abi.errors import AlignmentError, OverlapError, UnknownArgumentError, closest, listing
from machete.megakernel.abi.op import Op
from machete.megakernel.abi.rebinding import checked_replacement
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import BULK_ALIGNMENT, TensorInfo, common_alignment

from .image import Image, word_of
from .temporaries import ARENA


@dataclass(eq=False)
class View:
    """Memory as ops see it.

    `uses` are (op index, tensor name). `tensor` keeps the memory alive, if the binding does. `info` is as scheduled,
    `moved` how many bytes further the view lies now.
    """

    info: TensorInfo
    tensor: torch.Tensor | None
    written: bool = False
    uses: list[tuple[int, str]] = field(default_factory=list)
    moved: int = 0

    @property
    def now(self) -> TensorInfo:
        """The view where it lies now."""
        return replace(self.info, address=self.info.address + self.moved)


@dataclass(eq=False)
class Change:
    """Words of the image that change together; `positions` as int64. `tensor` is what they point to, if anything."""

    positions: np.ndarray
    tensor: torch.Tensor | None


@dataclass(eq=False)
class Slot(Change):
    """A tensor that can be replaced, with all views that lie in it (indices in `Binding.views`).

    `info` is where it lies now. `held` is what changes if another tensor object has the same memory: no words. A slot
    that borrows does not keep its tensor alive.
    """

    views: np.ndarray
    info: TensorInfo
    held: Change
    borrows: bool = False

    @cached_property
    def members(self) -> frozenset[int]:
        """The same views."""
        return frozenset(self.views.tolist())


#: A tensor that is passed anew for every run, as `Megakernel.argument` returns it.
Argument = Slot
Replacements = Iterable[tuple[torch.Tensor | Argument, torch.Tensor]]


@dataclass(eq=False)
class Scalar(Change):
    """A runtime scalar, in every op that has one of this name and dtype; `op` is one of them."""

    op: type[Op]


class Binding:
    """The tensors and scalars of `ops`, and their words in `image`.

    Attributes:
        ops: as scheduled, without their tensors.
        views: the memory that they name.
    """

    def __init__(self, ops: Sequence[ScheduledOp], image: Image) -> None:
        self.image = image
        self.ops = [replace(op, tensors={}) for op in ops]  # views keep tensors alive, as long as they are bound
        self.views = _views(ops)
        spans = [(0, 0) if view.info.is_empty else view.info.span for view in self.views]
        self._begin = np.array([span[0] for span in spans], dtype=np.int64)
        self._end = np.array([span[1] for span in spans], dtype=np.int64)
        self._written = np.array([view.written for view in self.views])
        self._named: dict[str, list[int]] = {}
        for index, view in enumerate(self.views):
            for name in dict.fromkeys(name for _, name in view.uses):
                self._named.setdefault(name, []).append(index)
        self._slots: dict[tuple, Slot] = {}
        self._scalars: dict[str, list[Scalar]] = _scalars(ops, image)

    def words(self, view: View) -> list[int]:
        """Positions in the image of the view's address."""
        return [word for index, name in view.uses for word in self.image.addresses(index, name)]

    # ------------------------------------------------------------------ rebinding

    def rebind(self, arguments: Mapping[str, object], replaced: Replacements = ()) -> list[Change]:
        """Bind other tensors of the same layout, or other scalars. Raises before anything changes.

        Args:
            arguments: by the name that ops gave them; a tensor's name has to stand for one tensor.
            replaced: pairs of a bound tensor, or its slot, and the one that takes its place.

        A tensor is replaced in every op that uses it, or a part of it, under whatever name.
        """
        tensors: dict[Slot, torch.Tensor] = {}
        scalars: list[tuple[Scalar, int]] = []
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                tensors[self.slot_named(name)] = value
            else:
                scalars += self._scalar_words(name, value)
        for old, new in replaced:
            if not isinstance(old, Slot):
                old = self.slot_of(TensorInfo.of("the tensor to replace", old), "Megakernel.run(replace=…)")
            elif self._slots.get(_key(old.info)) is not old:
                raise _not_bound("the argument is not bound any more", "Megakernel.run(replace=…)")
            tensors[old] = new
        changes: list[Change] = self.move(tensors)
        for scalar, word in scalars:
            self.image.words[scalar.positions] = word
            changes.append(scalar)
        return changes

    def move(self, tensors: Mapping[Slot, torch.Tensor]) -> list[Change]:
        """Put tensors in the place of others, after checking all of them."""
        moves: list[tuple[Slot, torch.Tensor, int]] = []
        stay: list[tuple[Slot, torch.Tensor]] = []
        for slot, tensor in tensors.items():
            moved = self._checked(slot, tensor)
            if moved:
                moves.append((slot, tensor, moved))
            elif slot.tensor is not tensor and not slot.borrows:
                stay.append((slot, tensor))
        if moves:
            _check_disjoint([slot for slot, _, _ in moves])
            begin, end = self._begin.copy(), self._end.copy()
            for slot, _, moved in moves:
                begin[slot.views] += moved
                end[slot.views] += moved
            self._check_apart(moves, begin, end)
            self._begin, self._end = begin, end
            for slot, tensor, moved in moves:
                self._move(slot, tensor, moved)
        for slot, tensor in stay:
            self._hold(slot, tensor)
        return [slot for slot, _, _ in moves] + [slot.held for slot, _ in stay]

    def _move(self, slot: Slot, tensor: torch.Tensor, moved: int) -> None:
        self.image.words[slot.positions] += np.uint64(moved & (2**64 - 1))
        for index in slot.views:
            self.views[index].moved += moved
        self._hold(slot, tensor)
        del self._slots[_key(slot.info)]
        slot.info = replace(slot.info, address=slot.info.address + moved)
        for key, other in list(self._slots.items()):
            if not slot.members.isdisjoint(other.members):
                del self._slots[key]  # it holds other views of the same memory, and does not lie in one piece any more
        self._slots[_key(slot.info)] = slot

    def _hold(self, slot: Slot, tensor: torch.Tensor) -> None:
        if slot.borrows:
            return
        slot.tensor = slot.held.tensor = tensor
        for index in slot.views:
            self.views[index].tensor = tensor

    def _checked(self, slot: Slot, tensor: torch.Tensor) -> int:
        """How many bytes further `tensor` lies than what the slot holds, if it may take its place."""
        old = slot.info
        op, name = self._use(slot)
        checks.checked_tensor(op.op.declaration, name, tensor)
        same = tensor.dtype is old.dtype and tensor.shape == old.shape and tensor.stride() == old.strides
        address = tensor.data_ptr() if same and tensor.device == old.device else 0
        if not address:  # something is wrong with it, or it only looks different
            address = checked_replacement(op, name, old, tensor)[1].address
        moved = address - old.address
        if moved % BULK_ALIGNMENT:
            self._check_alignment(slot, moved)
        return moved

    def _use(self, slot: Slot) -> tuple[ScheduledOp, str]:
        """An op that uses the slot, one that writes it if there is one, and its name there."""
        uses = [use for index in slot.views for use in self.views[index].uses]
        index, name = next((use for use in uses if use[1] in self.ops[use[0]].op.writes), uses[0])
        return self.ops[index], name

    def _check_alignment(self, slot: Slot, moved: int) -> None:
        for view in (self.views[index] for index in slot.views):
            alignment = common_alignment([view.now.address + moved, view.info.alignment])
            if alignment < view.info.alignment and not view.info.is_empty:
                index, name = view.uses[0]
                raise AlignmentError(
                    what=f"`{name}` would be aligned to {alignment} bytes, not to {view.info.alignment}",
                    where=f"rebinding `{name}` of {self.ops[index].op.__name__}",
                    why="the compiled code is for tensors of one alignment",
                    fix="pass a tensor of the same alignment, or schedule the op again",
                )

    def _check_apart(self, moves: list[tuple[Slot, torch.Tensor, int]], begin: np.ndarray, end: np.ndarray) -> None:
        """What is moved shares memory with nothing else that it could disturb, or that could disturb it."""
        for slot, _, moved in moves:
            inside = slot.views
            meets = (begin[inside, None] < end) & (begin < end[inside, None])
            meets &= self._written[inside, None] | self._written
            meets[:, inside] = False  # these move together
            for row, other in zip(*np.nonzero(meets), strict=True):
                mine, theirs = self.views[inside[row]], self.views[other]
                there = replace(theirs.now, address=int(begin[other]))
                if not replace(mine.now, address=mine.now.address + moved).overlaps(there):
                    continue
                index, name = theirs.uses[0]
                raise OverlapError(
                    what=f"the new tensor shares memory with `{name}` of op {index} ({self.ops[index].op.__name__})",
                    where=f"rebinding `{mine.uses[0][1]}` of {self.ops[mine.uses[0][0]].op.__name__}",
                    why="the dependencies in the plan rest on which tensors share memory",
                    fix="pass a tensor of its own, or schedule the ops again",
                )

    # ------------------------------------------------------------------ what can be rebound

    def slot_named(self, name: str) -> Slot:
        """The slot of the one tensor that ops call `name`."""
        views = [self.views[index] for index in self._named.get(name, ())]
        where = f"Megakernel.run({name}=…)"
        if not views:
            raise self._unknown(name, where)
        if any(not _same_memory(view.now, views[0].now) for view in views):
            raise UnknownArgumentError(
                what=f"`{name}` is a different tensor in different ops",
                where=where,
                why="rebinding replaces one tensor, in every op that uses it",
                fix=f"kernel.run(replace=[(old_{name}, new_{name})])",
            )
        return self.slot_of(max((view.now for view in views), key=lambda info: len(info.shape)), where)

    def slot_of(self, old: TensorInfo, where: str) -> Slot:
        """The slot for a tensor that is bound now, or that bound tensors are parts of."""
        slot = self._slots.get(_key(old))
        if slot is not None:
            return slot
        dense = old.nbytes == old.span[1] - old.span[0]
        inside: list[int] = []
        for index, view in enumerate(self.views):
            info = view.now
            if _same_memory(info, old) or (
                dense and not info.is_empty and old.span[0] <= info.span[0] and info.span[1] <= old.span[1]
            ):
                inside.append(index)
            elif info.overlaps(old):
                user, name = view.uses[0]
                raise OverlapError(
                    what=f"the tensor to replace shares memory with `{name}` of op {user} "
                    f"({self.ops[user].op.__name__})",
                    where=where,
                    why="the dependencies in the plan rest on which tensors share memory",
                    fix="replace the tensor that both are parts of",
                )
        if not inside:
            raise _not_bound("the tensor to replace is not bound to any op", where)
        if any(self.views[index].info.address >= ARENA for index in inside):
            raise _not_bound("a temporary cannot be replaced", where)
        words = [word for index in inside for word in self.words(self.views[index])]
        slot = Slot(
            np.array(words, dtype=np.int64),
            self.views[inside[0]].tensor,
            np.array(inside, dtype=np.int64),
            old,
            Change(np.zeros(0, dtype=np.int64), None),
        )
        self._slots[_key(old)] = slot
        return slot

    def borrow(self, tensor: torch.Tensor) -> Slot:
        """The slot of a bound tensor, which is not kept alive from now on."""
        slot = self.slot_of(TensorInfo.of("the argument", tensor), "Megakernel.argument")
        slot.borrows = True
        slot.tensor = None
        for index in slot.views:
            self.views[index].tensor = None
        return slot

    def _scalar_words(self, name: str, value: object) -> list[tuple[Scalar, int]]:
        """A scalar's new value as a word, for each dtype that ops declare for it."""
        if name not in self._scalars:
            raise self._unknown(name, f"Megakernel.run({name}=…)")
        words = []
        for scalar in self._scalars[name]:
            declaration = scalar.op.declaration
            dtype = declaration.scalars[name]
            words.append((scalar, word_of(checks.checked_scalar(declaration, name, dtype, {name: value}), dtype)))
        return words

    def _unknown(self, name: str, where: str) -> UnknownArgumentError:
        known = sorted({*self._named, *self._scalars})
        return UnknownArgumentError(
            what=f"no op has a tensor or scalar `{name}` of this kind{closest(name, known)}",
            where=where,
            why=f"the ops of this kernel have {listing(known)}",
            fix="use one of these names: tensors for tensors, numbers for scalars",
        )


def _check_disjoint(slots: Sequence[Slot]) -> None:
    if len(slots) > 1 and len(frozenset().union(*(slot.members for slot in slots))) < sum(
        len(slot.members) for slot in slots
    ):
        raise OverlapError(
            what="tensors to replace are parts of one another",
            where="Megakernel.run",
            why="each bound tensor is replaced once",
            fix="replace the tensor that the others are parts of",
        )


def _not_bound(what: str, where: str) -> UnknownArgumentError:
    return UnknownArgumentError(
        what=what,
        where=where,
        why="a bound tensor is known by its memory, shape and strides; copies, and views of other memory, are not it",
        fix="pass a tensor that an op was scheduled with, one that such tensors are parts of, or the one that took its "
        "place last",
    )


def _views(ops: Sequence[ScheduledOp]) -> list[View]:
    views: dict[tuple, View] = {}
    for index, op in enumerate(ops):
        for name, info in op.infos.items():
            view = views.setdefault(_key(info), View(info, op.tensors[name]))
            view.uses.append((index, name))
            view.written |= name in op.op.writes
    return list(views.values())


def _scalars(ops: Sequence[ScheduledOp], image: Image) -> dict[str, list[Scalar]]:
    positions: dict[tuple[str, torch.dtype], tuple[type[Op], list[int]]] = {}
    for index, op in enumerate(ops):
        for name, dtype in op.op.declaration.scalars.items():
            _, found = positions.setdefault((name, dtype), (op.op, []))
            found.append(image.field(index, f"scalar_{name}"))
    scalars: dict[str, list[Scalar]] = {}
    for (name, _), (op_class, found) in positions.items():
        scalars.setdefault(name, []).append(Scalar(np.array(found, dtype=np.int64), None, op_class))
    return scalars


def _key(info: TensorInfo) -> tuple:
    return info.address, info.shape, info.strides, info.dtype


def _same_memory(one: TensorInfo, other: TensorInfo) -> bool:
    """Whether both are the same elements, but for leading dims of extent 1."""
    short, long = sorted((one, other), key=lambda info: len(info.shape))
    extra = len(long.shape) - len(short.shape)
    if any(extent != 1 for extent in long.shape[:extra]):
        return False
    return long.same_view(
        replace(short, shape=long.shape[:extra] + short.shape, strides=long.strides[:extra] + short.strides)
    )
