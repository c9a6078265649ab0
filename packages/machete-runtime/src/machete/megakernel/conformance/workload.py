"""The tensors of a case: put back, poisoned, compared with the reference."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch

from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.conformance.case import Case

#: Every byte of a poisoned element: NaN in each floating-point format, -1 or the largest value of an integer.
POISON = 0xFF

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Workload:
    """What `case.make(device)` returned, and what the ops do with it.

    Attributes:
        ops: the scheduled ops.
        tensors: by the name that the case gave them.
        outputs: names, among `tensors`, of what the ops write.
        inputs: tensors that an op reads before anything has written to them.
        results: tensors that an op writes before anything has read from them.
    """

    def __init__(self, case: Case, device: str) -> None:
        ops, tensors = case.make(device)
        self.case, self.ops, self.tensors = case, list(ops), dict(tensors)
        for op in self.ops:
            assert isinstance(op, ScheduledOp), f"`schedule` returns ScheduledOps, but there is {op!r}"
        assert any(issubclass(op.op, case.op) for op in self.ops), f"make schedules no {case.op.__name__}"

        self.inputs: list[torch.Tensor] = []
        self.results: list[torch.Tensor] = []
        read: list[TensorInfo] = []
        written: list[TensorInfo] = []
        for op in self.ops:
            for name in op.op.declaration.reads:
                if not any(map(op.infos[name].overlaps, written)):
                    self.inputs.append(op.tensors[name])
                read.append(op.infos[name])
            for name in op.op.declaration.writes:
                if not any(map(op.infos[name].overlaps, read)):
                    self.results.append(op.tensors[name])
                written.append(op.infos[name])

        named = {name: TensorInfo.of(name, tensor) for name, tensor in self.tensors.items()}
        self.outputs = [name for name, info in named.items() if any(map(info.overlaps, written))]
        for info in written:
            assert info.is_empty or any(map(info.overlaps, named.values())), (
                f"an op writes `{info.name}`, which is none of the tensors that make returns: {', '.join(named)}"
            )
        touched = [tensor for op in self.ops for tensor in op.tensors.values() if tensor.numel()]
        self._initial = [(memory(tensor), memory(tensor).clone()) for tensor in touched]

    def reset(self) -> None:
        """Everything as `make` left it, but for results: poisoned, so that nothing is right from before."""
        for place, initial in self._initial:
            place.copy_(initial)
        for tensor in self.results:
            poison(tensor)

    def expected(self, times: int = 1) -> dict[str, torch.Tensor]:
        """The outputs, by the reference, after the ops will have run `times` times. Call it after `reset`."""
        wanted = list(inspect.signature(self.case.reference).parameters)
        unknown = [name for name in wanted if name not in self.tensors]
        assert not unknown, f"the reference takes {unknown}; make returns {sorted(self.tensors)}"
        values = {name: exact(self.tensors[name]) for name in wanted}
        outputs: Mapping[str, torch.Tensor] = {}
        for _ in range(times):
            outputs = self.case.reference(**{name: values[name].clone() for name in wanted})
            assert set(outputs) == set(self.outputs), (
                f"the reference returns {sorted(outputs)}, but the ops write {sorted(self.outputs)}"
            )
            for name in self.outputs:
                shape = tuple(self.tensors[name].shape)
                assert tuple(outputs[name].shape) == shape, (
                    f"`{name}` has shape {shape}, its reference {tuple(outputs[name].shape)}"
                )
                # What the next time reads will have been rounded to the tensor's own format.
                values[name] = exact(outputs[name].to(self.tensors[name].dtype))
        return dict(outputs)

    def check(self, expected: Mapping[str, torch.Tensor], tolerance: float, when: str) -> None:
        """Compare every output with what is expected, by relative norm."""
        for name, reference in expected.items():
            error = relative_error(self.tensors[name], reference)
            assert error <= tolerance, f"`{name}` {when}: relative error {error:.3g}, allowed {tolerance:.3g}"


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """‖result − reference‖ / ‖reference‖ in float64, or ‖result‖ where the reference is zero."""
    reference = reference.double()
    scale = reference.norm().item()
    return (result.double() - reference).norm().item() / (scale or 1.0)


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, floating-point values as float64."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Set every byte of a tensor to `POISON` (bool: True), and return it."""
    if tensor.dtype is torch.bool:
        return tensor.fill_(True)
    data = torch.full((tensor.numel() * tensor.itemsize,), POISON, dtype=torch.uint8, device=tensor.device)
    return tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape))


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a non-empty tensor from its first to its last element, gaps included, as integers (rank 1)."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,)).view(_INTEGERS[tensor.itemsize])
