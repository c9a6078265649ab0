"""Other tensors and other values in a kernel that has been planned and compiled: on the host, and in runs."""

from __future__ import annotations

import itertools
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machete.megakernel import Megakernel, Target
from machete.megakernel.errors import (
    AlignmentError,
    DtypeError,
    OverlapError,
    ScalarError,
    ShapeMismatchError,
    UnknownArgumentError,
)
from machete.megakernel.launch import tensormap
from machete.megakernel.launch.binding import Binding
from machete.megakernel.launch.image import Image
from machete.megakernel.plan.plan import Plan

N = 1000


def kernel_of(ops: list, arch: str, device: str) -> Megakernel:
    return Megakernel(ops, arch=arch if device == "cpu" else None)


def integers(*shape: int, device: str = "cpu") -> torch.Tensor:
    return torch.randint(-8, 9, shape).to(device=device, dtype=torch.float32)


def binding_of(ops: list) -> Binding:
    return Binding(ops, Image(Plan.build(ops, Target.named("sm_90a"), 4), ops, tensormap.encode, 0))


def test_a_new_tensor_by_name(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    x, y = integers(N, device=device), torch.zeros(N, device=device)
    kernel = kernel_of(op_classes.Scale.schedule(x=x, y=y), arch, device)
    kernel.run()
    other = integers(N, device=device)
    kernel.run(x=other)
    assert torch.equal(y, 2 * other)
    target = torch.zeros(N, device=device)
    kernel.run(y=target, factor=3.0)
    assert torch.equal(target, 3 * other)
    assert torch.equal(y, 2 * other), "the tensor that was bound before is not written any more"


def test_exchange_of_two_tensors(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    """Ping-pong: each takes the other's place, which neither could do alone."""
    x, y = integers(N, device=device), torch.zeros(N, device=device)
    kernel = kernel_of(op_classes.Scale.schedule(x=x, y=y), arch, device)
    expected = x.clone()
    for _ in range(4):
        kernel.run(x=x, y=y)
        expected *= 2
        assert torch.equal(y, expected)
        x, y = y, x


def test_parts_move_with_the_whole(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    base = integers(4 * N, device=device)
    first, second, third, _ = base.chunk(4)
    kernel = kernel_of(
        op_classes.Scale.schedule(x=first, y=second) + op_classes.Add.schedule(x=first, y=second, z=third),
        arch,
        device,
    )
    kernel.run()
    assert torch.equal(third, 3 * first)
    other = integers(4 * N, device=device)
    before = base.clone()
    kernel.run(replace=[(base, other)])
    assert torch.equal(other[2 * N : 3 * N], 3 * other[:N])
    assert torch.equal(base, before)


def test_argument_is_a_handle_for_good(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    x, y = integers(N, device=device), torch.zeros(N, device=device)
    kernel = kernel_of(op_classes.Scale.schedule(x=x, y=y), arch, device)
    argument = kernel.argument(x)
    del x
    for _ in range(3):
        other = integers(N, device=device)
        kernel.run(replace=[(argument, other)])
        assert torch.equal(y, 2 * other)


def test_tma_descriptors_follow(arch: str, device: str) -> None:
    gemm = pytest.importorskip("machete.kernels.gemm")
    a, b = (torch.randn(64, 64, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.zeros(64, 64, device=device)
    kernel = kernel_of(gemm.GemmOp.schedule(a=a, b=b, c=c), arch, device)
    kernel.run()
    other = torch.randn(64, 64, device=device, dtype=torch.bfloat16)
    kernel.run(a=other)
    torch.testing.assert_close(c, other.float() @ b.float().T, rtol=1e-4, atol=1e-3)


def test_device_side_values(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    """Indices and lengths are tensors: their contents change, nothing is bound anew."""
    table = integers(50, device=device)
    index = torch.zeros(300, dtype=torch.int32, device=device)
    length = torch.zeros(1, dtype=torch.int32, device=device)
    y = torch.zeros(300, device=device)
    kernel = kernel_of(op_classes.Take.schedule(table=table, index=index, length=length, y=y), arch, device)
    for count in (300, 0, 129):
        index.copy_(torch.randint(0, 50, (300,), dtype=torch.int32))
        length.fill_(count)
        y.fill_(float("nan"))
        kernel.run()
        assert torch.equal(y[:count], table[index[:count].long()])
        assert y[count:].isnan().all()


def test_tensors_of_rank_0(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    x, y = torch.tensor(5.0, device=device), torch.zeros(20, device=device)
    position = torch.tensor(3, device=device)
    kernel = kernel_of(op_classes.Place.schedule(x=x, position=position, y=y), arch, device)
    kernel.run()
    position.fill_(7)
    x.fill_(9.0)
    kernel.run()
    expected = torch.zeros(20, device=device)
    expected[3], expected[7] = 5.0, 9.0
    assert torch.equal(y, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda: {"x": torch.zeros(N + 1)}, ShapeMismatchError, "shape"),
        (lambda: {"x": torch.zeros(N, dtype=torch.float64)}, DtypeError, "float64"),
        (lambda: {"x": torch.zeros(N + 1)[1:]}, AlignmentError, "aligned to 4 bytes, not to 16"),
        (lambda: {"xx": torch.zeros(N)}, UnknownArgumentError, "did you mean `x`"),
        (lambda: {"factor": "much"}, ScalarError, "'much' is a str"),
        (lambda: {"factr": 1.0}, UnknownArgumentError, "did you mean `factor`"),
    ],
)
def test_what_does_not_fit_is_refused(op_classes, arguments, error, message) -> None:
    x, y = torch.zeros(N), torch.zeros(N)
    binding = binding_of(op_classes.Scale.schedule(x=x, y=y))
    before = binding.image.words.copy()
    with pytest.raises(error, match=message):
        binding.rebind({"factor": 5.0, **arguments()})
    assert (binding.image.words == before).all(), "nothing changes if something is refused"


def test_no_new_sharing_of_memory(op_classes) -> None:
    x, y, z = torch.zeros(N), torch.zeros(N), torch.zeros(N)
    binding = binding_of(op_classes.Add.schedule(x=x, y=y, z=z))
    with pytest.raises(OverlapError, match="the new tensor shares memory with `z` of op 0"):
        binding.rebind({"x": z})
    binding.rebind({"x": y})  # both are only read
    base = torch.zeros(2 * N)
    with pytest.raises(OverlapError, match="shares memory with"):
        binding.rebind({"y": base[:N], "z": base[N - 4 : 2 * N - 4]})
    binding.rebind({"y": base[:N], "z": base[N:]})
    with pytest.raises(UnknownArgumentError, match="is not bound"):
        binding.rebind({}, [(torch.zeros(N), z)])


def test_tensors_that_became_one_are_replaced_as_one(op_classes) -> None:
    x, y, z, other = (torch.zeros(N) for _ in range(4))
    binding = binding_of(op_classes.Add.schedule(x=x, y=y, z=z))
    binding.rebind({"x": other, "y": other})
    fresh = torch.zeros(N)
    binding.rebind({}, [(other, fresh)])
    assert (binding.image.words == binding_of(op_classes.Add.schedule(x=fresh, y=fresh, z=z)).image.words).all()


def test_interleaved_columns_are_told_apart(op_classes) -> None:
    base = torch.zeros(N, 8)
    binding = binding_of(op_classes.Scale.schedule(x=base[:, 1], y=base[:, 3]))
    binding.rebind({"x": base[:, 5]})
    with pytest.raises(OverlapError, match="shares memory"):
        binding.rebind({"x": base[:, 3]})


def test_a_part_of_what_is_bound_cannot_move_alone(op_classes) -> None:
    base = torch.zeros(2 * N)
    binding = binding_of(
        op_classes.Scale.schedule(x=base[:N], y=base[N:]) + op_classes.Scale.schedule(x=base[500:N], y=torch.zeros(500))
    )
    with pytest.raises(OverlapError, match="the tensor to replace shares memory with `x` of op 0"):
        binding.rebind({}, [(base[500:N], torch.zeros(500))])


def test_a_name_that_stands_for_two_tensors(op_classes) -> None:
    first, second = torch.zeros(N), torch.zeros(N)
    binding = binding_of(
        op_classes.Scale.schedule(x=first, y=second) + op_classes.Scale.schedule(x=second, y=torch.zeros(N))
    )
    with pytest.raises(UnknownArgumentError, match="`x` is a different tensor in different ops"):
        binding.rebind({"x": torch.zeros(N)})
    assert len(binding.rebind({}, [(second, torch.zeros(N))])) == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rebinding_equals_scheduling_again(op_classes, data) -> None:
    """After any sequence of rebindings the image is, word for word, that of a plan for the tensors bound last."""
    pool = [torch.zeros(N) for _ in range(6)]
    bound = {"a": pool[0], "b": pool[1], "c": pool[2]}
    factor = 2.0

    def schedule() -> list:
        return op_classes.Scale.schedule(x=bound["a"], y=bound["b"], factor=factor) + op_classes.Add.schedule(
            x=bound["a"], y=bound["b"], z=bound["c"]
        )

    binding = binding_of(schedule())
    for _ in range(data.draw(st.integers(1, 5))):
        names = data.draw(st.lists(st.sampled_from("abc"), unique=True))
        used = [id(bound[name]) for name in bound if name not in names]
        free = [tensor for tensor in pool if id(tensor) not in used]
        chosen = dict(zip(names, data.draw(st.permutations(free)), strict=False))
        factor = data.draw(st.sampled_from([1.0, -2.5]))
        binding.rebind({"factor": factor}, [(bound[name], tensor) for name, tensor in chosen.items()])
        bound |= chosen
    assert (binding.image.words == binding_of(schedule()).image.words).all()


def test_memory_is_kept_while_bound_and_no_longer(op_classes, anywhere: str) -> None:
    x, y = torch.zeros(N, device=anywhere), torch.zeros(N, device=anywhere)
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=y))
    kernel.run()
    old = weakref.ref(x)
    del x
    assert old() is not None
    kernel.run(x=torch.zeros(N, device=anywhere))
    assert old() is None


def test_rebinding_costs_by_what_changes(op_classes) -> None:
    """In a kernel of 300 ops, three tensors are replaced by writing a few words."""
    buffers = [torch.zeros(N) for _ in range(301)]
    ops: list[Any] = []
    for x, y in itertools.pairwise(buffers):
        ops += op_classes.Scale.schedule(x=x, y=y)
    binding = binding_of(ops)
    changed = [buffers[i] for i in (0, 150, 300)]
    slots = [binding.slot_of(binding.now(i), "") for i in (0, 150, 300)]
    spare = [torch.zeros(N) for _ in changed]
    for _ in range(3):
        changes = binding.rebind({}, list(zip(slots, spare, strict=True)))
        assert sum(len(change.positions) for change in changes) <= 8 * len(slots), "words of a few ops, not of all"
        changed, spare = spare, changed
