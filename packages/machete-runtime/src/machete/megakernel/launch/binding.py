"""A plan in the memory of a device: its tables, and the addresses of the tensors bound to it.

Tables that follow from the plan are written once. Records (addresses, strides, extents, scalars) and TMA descriptors
are data: binding other tensors rewrites them and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch

from machete.megakernel.abi.errors import OverlapError, UnknownArgumentError, closest, listing
from machete.megakernel.abi.rebinding import with_scalar, with_tensors
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.abi.tma import TmaBox
from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.program import Program

from . import tensormap

_ALIGNMENT = 128  # sections start on cache lines; TMA descriptors need 64 bytes


class Binding:
    """Device tables of `plan` for `ops` (one ScheduledOp per op of the plan, same kinds)."""

    def __init__(self, plan: Plan, ops: list[ScheduledOp], device: torch.device) -> None:
        self.plan, self.ops, self.device = plan, list(ops), device
        self._program = Program.of(plan)
        self._encode: Callable[[TensorInfo, TmaBox], np.ndarray] = (
            tensormap.encode_with_driver if device.type == "cuda" else tensormap.encode
        )
        self._boxes = [
            (index, name, box)
            for index, op in enumerate(self.ops)
            for name, box in plan.kinds[plan.kind_of_op[index]].descriptors.items()
        ]
        fixed = [self._program.queue_begin, self._program.rows, self._program.waits]
        self._tables = self._place(fixed)
        self._records = _empty(self._program.record_bytes * len(self.ops), device)
        self._descriptors = _empty(tensormap.DESCRIPTOR_BYTES * len(self._boxes), device)
        # One counter more than the plan has: the first counts CTAs that have finished.
        self._counters = _empty(plan.shared.counter_bytes * (plan.num_counters + 1), device)
        self._counters.zero_()
        self._write_records()

    def _place(self, arrays: list[np.ndarray]) -> list[torch.Tensor]:
        tensors = []
        for array in arrays:
            tensor = _empty(array.nbytes, self.device)
            _write(tensor, array)
            tensors.append(tensor)
        return tensors

    def _write_records(self) -> None:
        plan = self.plan
        descriptors = np.zeros((len(self._boxes), 16), dtype=np.uint64)
        addresses: dict[tuple[int, str], int] = {}
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            for row, (index, name, box) in enumerate(self._boxes):
                descriptors[row] = self._encode(self.ops[index].infos[name], box)
                addresses[index, name] = self._descriptors.data_ptr() + row * tensormap.DESCRIPTOR_BYTES
        records = np.zeros((len(self.ops), self._program.record_bytes), dtype=np.uint8)
        for index, op in enumerate(self.ops):
            kind = plan.kinds[plan.kind_of_op[index]]
            tma = {name: addresses[index, name] for name in kind.descriptors}
            packed = kind.record.pack(kind.record.values(op, tma))
            records[index, : len(packed)] = np.frombuffer(packed, dtype=np.uint8)
        _write(self._records, records)
        _write(self._descriptors, descriptors)

    # ------------------------------------------------------------------ what a launch needs

    def parameters(self) -> list[tuple[int, int]]:
        """The kernel's parameters as (value, bytes), in the order of `PersistentKernel.kernel`."""
        queue_begin, rows, waits = (table.data_ptr() for table in self._tables)
        return [
            (queue_begin, 8),
            (rows, 8),
            (waits, 8),
            (self._records.data_ptr(), 8),
            (self._descriptors.data_ptr(), 8),
            (len(self._boxes), 4),
            (self._counters.data_ptr(), 8),
            (self.plan.num_counters, 4),
        ]

    def regions(self) -> list[tuple[int, int, str, bool]]:
        """Every byte range the kernel may touch: (address, bytes, name, writable); no two overlap."""
        regions = [
            (table.data_ptr(), table.nbytes, name, False)
            for table, name in zip(
                [*self._tables, self._records, self._descriptors],
                ["queue_begin", "instruction rows", "waits", "op records", "TMA descriptors"],
                strict=True,
            )
        ]
        regions.append((self._counters.data_ptr(), self._counters.nbytes, "counters", True))
        for index, op in enumerate(self.ops):
            for name, info in op.infos.items():
                if not info.is_empty:
                    first, last = info.span
                    writable = name in op.op.writes
                    regions.append((first, last - first, f"op {index} ({op.op.__name__}) {name}", writable))
        return _merged(sorted(region for region in regions if region[1]))

    # ------------------------------------------------------------------ rebinding

    def rebind(
        self, arguments: Mapping[str, object], replaced: Iterable[tuple[torch.Tensor, torch.Tensor]] = ()
    ) -> None:
        """Bind other tensors of the same layout, or other scalars. Raises before anything changes.

        Args:
            arguments: by the name that ops gave them; a tensor's name has to stand for one tensor.
            replaced: pairs of a bound tensor and the one that takes its place.

        A tensor is replaced in every op that uses it, under whatever name.
        """
        ops = list(self.ops)
        for name, value in arguments.items():
            where = f"Megakernel.run({name}=…)"
            if isinstance(value, torch.Tensor):
                ops = _replaced(ops, _bound(ops, name, where), value, where)
                continue
            if not any(name in op.scalars for op in ops):
                raise _unknown(ops, name, where)
            ops = [with_scalar(op, name, value) if name in op.scalars else op for op in ops]
        for old, new in replaced:
            ops = _replaced(ops, TensorInfo.of("the tensor to replace", old), new, "Megakernel.run(replace=…)")
        self.ops = ops
        self._write_records()


def _unknown(ops: list[ScheduledOp], name: str, where: str) -> UnknownArgumentError:
    known = sorted({known for op in ops for known in (*op.infos, *op.scalars)})
    return UnknownArgumentError(
        what=f"no op has a tensor or scalar `{name}` of this kind{closest(name, known)}",
        where=where,
        why=f"the ops of this kernel have {listing(known)}",
        fix="use one of these names: tensors for tensors, numbers for scalars",
    )


def _bound(ops: list[ScheduledOp], name: str, where: str) -> TensorInfo:
    """The one tensor that `name` stands for."""
    bound = [op.infos[name] for op in ops if name in op.infos]
    if not bound:
        raise _unknown(ops, name, where)
    if any(not info.same_view(bound[0]) for info in bound):
        raise UnknownArgumentError(
            what=f"`{name}` is a different tensor in different ops",
            where=where,
            why="rebinding replaces one tensor, in every op that uses it",
            fix=f"kernel.run(replace=[(old_{name}, new_{name})])",
        )
    return bound[0]


def _replaced(ops: list[ScheduledOp], old: TensorInfo, value: torch.Tensor, where: str) -> list[ScheduledOp]:
    """The ops with `value` in the place of `old`; what shares memory must stay as it was when the plan was made."""
    changed: list[ScheduledOp] = []
    names: set[tuple[int, str]] = set()
    for index, op in enumerate(ops):
        changes = {}
        for name, info in op.infos.items():
            if info.same_view(old) or _same_but_for_rank(info, old):
                changes[name] = value
                names.add((index, name))
            elif info.overlaps(old):
                raise _sharing(f"the tensor to replace shares memory with `{name}`", index, op, where)
        changed.append(with_tensors(op, changes) if changes else op)
    if not names:
        raise UnknownArgumentError(
            what="the tensor to replace is not bound to any op",
            where=where,
            why="it names a bound tensor by its memory, shape and strides",
            fix="pass the tensor that the ops were scheduled with, or that took its place last",
        )
    index, name = next(iter(names))
    new = changed[index].infos[name]
    for other, op in enumerate(changed):
        for name, info in op.infos.items():
            if (other, name) not in names and info.overlaps(new):
                raise _sharing(f"the new tensor shares memory with `{name}`", other, op, where)
    return changed


def _same_but_for_rank(info: TensorInfo, old: TensorInfo) -> bool:
    """Whether `info` is `old` with leading dims of extent 1 in front."""
    extra = len(info.shape) - len(old.shape)
    if extra <= 0 or any(extent != 1 for extent in info.shape[:extra]):
        return False
    return info.same_view(
        replace(old, shape=info.shape[:extra] + old.shape, strides=info.strides[:extra] + old.strides)
    )


def _sharing(what: str, index: int, op: ScheduledOp, where: str) -> OverlapError:
    return OverlapError(
        what=f"{what} of op {index} ({op.op.__name__})",
        where=where,
        why="the dependencies in the plan rest on which tensors share memory",
        fix="pass a tensor of its own, or schedule the ops again",
    )


def _empty(nbytes: int, device: torch.device) -> torch.Tensor:
    """At least one unit of bytes, aligned (CPU allocations are not as aligned as CUDA's)."""
    size = max(nbytes, 16)
    raw = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    shift = -raw.data_ptr() % _ALIGNMENT
    return raw[shift : shift + size]


def _write(target: torch.Tensor, array: np.ndarray) -> None:
    source = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1))
    target[: source.numel()].copy_(source)


def _merged(regions: list[tuple[int, int, str, bool]]) -> list[tuple[int, int, str, bool]]:
    """Views of one storage overlap: join them, so that an address belongs to exactly one region."""
    merged: list[tuple[int, int, str, bool]] = []
    for address, nbytes, name, writable in regions:
        if merged and address < merged[-1][0] + merged[-1][1]:
            start, length, first, was_writable = merged[-1]
            end = max(start + length, address + nbytes)
            label = first if name in first else f"{first}, {name}"
            merged[-1] = (start, end - start, label, was_writable or writable)
        else:
            merged.append((address, nbytes, name, writable))
    return merged
