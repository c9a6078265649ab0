"""Other tensors and values in the place of those that an op list was planned with.

Views that ops name are grouped by memory once. To rebind tensors then means: check them, see that they share memory
with nothing that they did not share memory with before, and add one difference each to a prepared set of words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Number

import numpy as np
import torch

from machete.megakernel.abi import schedule_checks as checks
from machete.megakernel.abi.errors import (
    AlignmentError,
    OverlapError,
    TensorTypeError,
    UnknownArgumentError,
    closest,
    listing,
)
from machete.megakernel.abi.op import Op
from machete.megakernel.abi.rebinding import checked_replacement
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import BULK_ALIGNMENT, TensorInfo, common_alignment

from .image import Image, word_of
from .slots import Change, Group, Scalar, Slot, View, lies_in, same_memory, views_of
from .temporaries import ARENA

#: A tensor that is passed anew for every run, as `Megakernel.argument` returns it.
Argument = Slot
Replacements = Iterable[tuple[torch.Tensor | Argument, torch.Tensor]]


class Binding:
    """The tensors and scalars of `ops`, and their words in `image`.

    Attributes:
        ops: as scheduled, without their tensors.
        views: the memory that they name.
    """

    def __init__(self, ops: Sequence[ScheduledOp], image: Image) -> None:
        self.image = image
        self.views = views_of(ops)
        self.ops = [replace(op, tensors={}) for op in ops]  # views keep tensors alive, as long as they are bound
        spans = [(0, 0) if view.info.is_empty else view.info.span for view in self.views]
        self._begin = np.array([span[0] for span in spans], dtype=np.int64)
        self._end = np.array([span[1] for span in spans], dtype=np.int64)
        self._moved = np.zeros(len(self.views), dtype=np.int64)
        self._written = np.array([view.written for view in self.views])
        self._names: dict[str, list[int]] = {}
        for index, view in enumerate(self.views):
            for name in dict.fromkeys(name for _, name in view.uses):
                self._names.setdefault(name, []).append(index)
        self._slots: list[Slot] = []
        self._named: dict[str, Slot] = {}
        self._groups: dict[tuple[Slot, ...], Group] = {}
        self._last: Group | None = None  # the one that moved last
        self._merged = False  # whether tensors that are only read may have been replaced by one and the same
        self._scalars: dict[str, list[Scalar]] = _scalars(ops, image)

    def now(self, index: int) -> TensorInfo:
        """View `index` where it lies now."""
        info = self.views[index].info
        return replace(info, address=info.address + int(self._moved[index]))

    def words(self, view: View) -> list[int]:
        """Positions in the image of the view's address."""
        return [word for index, name in view.uses for word in self.image.addresses(index, name)]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors that are kept alive."""
        holders: list[View | Slot] = [*self.views, *self._slots]
        return [holder.tensor for holder in holders if holder.tensor is not None]

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
                if name in self._names and name not in self._scalars and not isinstance(value, Number):
                    raise _neither(name, value)
                scalars += self._scalar_words(name, value)
        for old, new in _pairs(replaced):
            if not isinstance(old, Slot):
                old = self.slot_of(TensorInfo.of("the tensor to replace", old), "Megakernel.run(replace=…)")
            elif not old.bound:
                raise _not_bound("the argument is not bound any more", "Megakernel.run(replace=…)")
            tensors[old] = new
        changes = self._move(tensors) if tensors else []
        for scalar, word in scalars:
            self.image.words[scalar.positions] = word
            changes.append(scalar)
        return changes

    def _move(self, tensors: Mapping[Slot, torch.Tensor]) -> list[Change]:
        """Put tensors in the place of others, after checking all of them."""
        slots = tuple(tensors)
        group = self._groups.get(slots)
        if group is None:
            group = self._groups[slots] = Group(slots, self._written)
        moves = [self._checked(slot, tensor) for slot, tensor in tensors.items()]
        changes: list[Change] = []
        if any(moves):
            by_slot = np.array(moves, dtype=np.int64)
            moved = by_slot[group.owner]
            places = tuple(slot.address + distance for slot, distance in zip(slots, moves, strict=True))
            if self._last is not group or len(group.apart) > 100:
                group.apart.clear()  # others have moved in the meantime
            if places not in group.apart:
                self._check_apart(group, moved)
                group.apart.add(places)
            self._last = group
            self._moved[group.inside] += moved
            self.image.words[group.positions] += by_slot[group.word_owner].view(np.uint64)
            for slot, place, distance in zip(slots, places, moves, strict=True):
                slot.address = place
                if distance and slot.rivals:
                    self._drop_rivals(slot)
            changes = [group]
        for slot, tensor in tensors.items():
            if not slot.borrows and slot.tensor is not tensor:
                slot.tensor = tensor
                changes = changes or [group.held]
        if changes:
            changes[0].tensors = [tensor for slot, tensor in tensors.items() if not slot.borrows]
        return changes

    def _check_apart(self, group: Group, moved: np.ndarray) -> None:
        """Moved by so many bytes, the views of the group share no bytes with others that would matter."""
        inside = group.inside
        after = self._moved.copy()
        after[inside] += moved
        begin, end = self._begin + after, self._end + after
        meets = (begin[inside, None] < end) & (begin < end[inside, None])
        self._merged |= bool((meets & group.others & ~group.matters).any())
        meets &= group.matters
        for row, other in zip(*np.nonzero(meets), strict=True):
            mine, theirs = self.views[inside[row]], self.views[other]
            here = replace(mine.info, address=mine.info.address + int(after[inside[row]]))
            there = replace(theirs.info, address=theirs.info.address + int(after[other]))
            if not here.overlaps(there):
                continue
            (index, name), (user, old) = theirs.uses[0], mine.uses[0]
            raise OverlapError(
                what=f"the new tensor shares memory with `{name}` of op {index} ({self.ops[index].op.__name__})",
                where=f"rebinding `{old}` of {self.ops[user].op.__name__}",
                why="the dependencies in the plan rest on which tensors share memory",
                fix="pass a tensor of its own, or schedule the ops again",
            )

    def _drop_rivals(self, moved: Slot) -> None:
        """Forget slots that do not lie in one piece any more; what they have left is kept alive by its views again."""
        for slot in moved.rivals:
            slot.bound = False
            self._slots.remove(slot)
            for index in slot.views - moved.views:
                self.views[index].tensor = slot.tensor
            for other in slot.rivals:
                if other is not moved:
                    other.rivals.remove(slot)
        moved.rivals = []
        self._named = {name: slot for name, slot in self._named.items() if slot.bound}
        self._groups = {key: group for key, group in self._groups.items() if all(slot.bound for slot in key)}

    def _checked(self, slot: Slot, tensor: torch.Tensor) -> int:
        """How many bytes further `tensor` lies than what the slot holds, if it may take its place."""
        layout = slot.layout
        checks.checked_tensor(slot.op.op.declaration, slot.name, tensor)
        same = tensor.dtype is layout.dtype and tensor.shape == layout.shape and tensor.stride() == layout.strides
        address = tensor.data_ptr() if same and tensor.device == layout.device else 0
        if not address:  # something is wrong with it, or it only looks different
            old = replace(layout, address=slot.address)
            address = checked_replacement(slot.op, slot.name, old, tensor)[1].address
        moved = address - slot.address
        if moved % BULK_ALIGNMENT:
            self._check_alignment(slot, moved)
        return moved

    def _check_alignment(self, slot: Slot, moved: int) -> None:
        for index in slot.views:
            info = self.now(index)
            uses = self.views[index].uses
            # The address of a descriptor has to be a multiple of 16, whatever the strides are.
            copied = any(name in self.ops[user].boxes for user, name in uses)
            needed = BULK_ALIGNMENT if copied else self.views[index].info.alignment
            alignment = common_alignment([info.address + moved, needed])
            if alignment < needed and not info.is_empty:
                user, name = uses[0]
                raise AlignmentError(
                    what=f"`{name}` would be aligned to {alignment} bytes, not to {needed}",
                    where=f"rebinding `{name}` of {self.ops[user].op.__name__}",
                    why="the compiled code is for tensors of one alignment",
                    fix="pass a tensor of the same alignment, or schedule the op again",
                )

    # ------------------------------------------------------------------ what can be rebound

    def slot_named(self, name: str) -> Slot:
        """The slot of the one tensor that ops call `name`."""
        slot = self._named.get(name)
        if slot is not None:
            return slot
        infos = [self.now(index) for index in self._names.get(name, ())]
        where = f"Megakernel.run({name}=…)"
        if not infos:
            raise self._unknown(name, where)
        if any(not same_memory(info, infos[0]) for info in infos):
            raise UnknownArgumentError(
                what=f"`{name}` is a different tensor in different ops",
                where=where,
                why="rebinding replaces one tensor, in every op that uses it",
                fix=f"kernel.run(replace=[(old_{name}, new_{name})])",
            )
        slot = self.slot_of(max(infos, key=lambda info: len(info.shape)), where)
        self._named[name] = slot
        return slot

    def call(self, name: str, info: TensorInfo) -> None:
        """Let `name` stand for a bound tensor from now on, whatever ops call by this name."""
        self._named[name] = self.slot_of(info, f"naming {info}")

    def slot_of(self, old: TensorInfo, where: str) -> Slot:
        """The slot for a tensor that is bound now, or that bound tensors are parts of."""
        for slot in self._slots:
            if slot.holds(old) and not self._merged:
                return slot
        inside: list[int] = []
        for index in range(len(self.views)):
            info = self.now(index)
            if lies_in(info, old):
                inside.append(index)
            elif info.overlaps(old):
                user, name = self.views[index].uses[0]
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
        for slot in self._slots:
            if slot.holds(old) and slot.views == frozenset(inside):
                return slot
        return self._new_slot(old, inside)

    def _new_slot(self, old: TensorInfo, inside: list[int]) -> Slot:
        views = [self.views[index] for index in inside]
        uses = [use for view in views for use in view.uses]
        index, name = next((use for use in uses if use[1] in self.ops[use[0]].op.writes), uses[0])
        rivals = [slot for slot in self._slots if not slot.views.isdisjoint(inside)]
        # Any tensor of the storage keeps it alive: one of the views', or of a rival that has them now.
        holders: list[View | Slot] = [*views, *rivals]
        tensor = next((holder.tensor for holder in holders if holder.tensor is not None), None)
        slot = Slot(
            layout=old,
            address=old.address,
            views=frozenset(inside),
            words=[word for view in views for word in self.words(view)],
            op=self.ops[index],
            name=name,
            tensor=tensor,
            rivals=rivals,
        )
        for view in views:
            view.tensor = None
        for rival in rivals:
            rival.rivals.append(slot)
        self._slots.append(slot)
        return slot

    def borrow(self, tensor: torch.Tensor) -> Slot:
        """The slot of a bound tensor, which is not kept alive from now on."""
        slot = self.slot_of(TensorInfo.of("the argument", tensor), "Megakernel.argument")
        slot.borrows = True
        slot.tensor = None
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
        known = sorted({*self._names, *self._scalars})
        if name in known:
            kind, other = ("tensor", "number") if name in self._names else ("scalar", "tensor")
            return UnknownArgumentError(
                what=f"`{name}` is a {kind}, and was given a {other}",
                where=where,
                why="tensors take the place of tensors, and numbers that of scalars",
                fix=f"pass a {'torch.Tensor' if kind == 'tensor' else 'number'}",
            )
        return UnknownArgumentError(
            what=f"no op has a tensor or scalar `{name}` of this kind{closest(name, known)}",
            where=where,
            why=f"the ops of this kernel have {listing(known)}",
            fix="use one of these names: tensors for tensors, numbers for scalars",
        )


def _pairs(replaced: object) -> list[tuple[torch.Tensor | Argument, torch.Tensor]]:
    """The pairs of `replaced`, if that is what it consists of."""
    if isinstance(replaced, Iterable) and not isinstance(replaced, torch.Tensor | Mapping):
        pairs = list(replaced)
        if all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            return pairs
    raise UnknownArgumentError(
        what=f"replace is no list of pairs of tensors, but of type {type(replaced).__name__}"
        if not isinstance(replaced, tuple | list)
        else "replace has entries that are no pairs of tensors",
        where="Megakernel.run(replace=…)",
        why="each entry is a bound tensor, or an argument, and the tensor that takes its place",
        fix="kernel.run(replace=[(old, new)])",
    )


def _neither(name: str, value: object) -> TensorTypeError:
    return TensorTypeError(
        what=f"`{name}` is of type {type(value).__name__}, neither a tensor nor a number",
        where=f"Megakernel.run({name}=…)",
        why="tensors take the place of tensors, numbers that of scalars",
        fix="pass a torch.Tensor, or leave the argument out to keep what is bound",
    )


def _not_bound(what: str, where: str) -> UnknownArgumentError:
    return UnknownArgumentError(
        what=what,
        where=where,
        why="a bound tensor is known by its memory, shape and strides; copies, and views of other memory, are not it",
        fix="pass a tensor that an op was scheduled with, one that such tensors are parts of, or the one that took its "
        "place last",
    )


def _scalars(ops: Sequence[ScheduledOp], image: Image) -> dict[str, list[Scalar]]:
    positions: dict[tuple[str, torch.dtype], tuple[type[Op], list[int]]] = {}
    for index, op in enumerate(ops):
        for name, dtype in op.op.declaration.scalars.items():
            _, found = positions.setdefault((name, dtype), (op.op, []))
            found.append(image.field(index, f"scalar_{name}"))
    scalars: dict[str, list[Scalar]] = {}
    for (name, _), (op_class, found) in positions.items():
        scalars.setdefault(name, []).append(Scalar(np.array(found, dtype=np.int64), op=op_class))
    return scalars
