"""Memory of temporaries: shared by lifetime, never by two that live at a time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machete.megakernel import Megakernel, temporary
from machete.megakernel.errors import PlanError, TensorTypeError, UnknownArgumentError
from machete.megakernel.launch.temporaries import ALIGNMENT, Lifetime, place, placed


def lifetimes(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Lifetime]]:
    one = st.tuples(st.integers(0, 30), st.integers(0, 12), sizes)
    return st.lists(one.map(lambda t: Lifetime(t[0], t[0] + t[1], t[2])), min_size=1, max_size=40)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def peak(lives: list[Lifetime]) -> int:
    """Bytes that are alive at the worst moment."""
    moments = {life.first for life in lives}
    return max(sum(aligned(life.nbytes) for life in lives if life.first <= t <= life.last) for t in moments)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(lives=lifetimes(st.integers(0, 5000)))
def test_no_two_that_live_at_a_time_overlap(lives: list[Lifetime]) -> None:
    offsets, total = place(lives)
    for i, (life, offset) in enumerate(zip(lives, offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= offset + life.nbytes <= total
        for other, begin in zip(lives[:i], offsets[:i], strict=True):
            if life.first <= other.last and other.first <= life.last and life.nbytes and other.nbytes:
                assert offset + life.nbytes <= begin or begin + other.nbytes <= offset
    assert peak(lives) <= total <= sum(aligned(life.nbytes) for life in lives)
    assert total <= 2 * peak(lives)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lives=lifetimes(st.just(1000)))
def test_equal_sizes_need_the_peak_and_no_more(lives: list[Lifetime]) -> None:
    assert place(lives)[1] == peak(lives)


def test_views_are_temporaries_without_contents() -> None:
    base = temporary((4, 6), torch.float32, "cpu")
    row = base[2, 1:5]
    assert row.data_ptr() == base.data_ptr() + (2 * 6 + 1) * 4
    assert base.t().stride() == (1, 6)
    assert base.view(24).unsqueeze(0).shape == (1, 24)
    with pytest.raises(TensorTypeError, match="clone"):
        base.t().contiguous()
    with pytest.raises(TensorTypeError, match="no contents"):
        torch.relu(base)


def test_a_chain_of_ops_shares_two_buffers(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    x, y = torch.arange(700.0, device=device), torch.zeros(700, device=device)
    hidden = [temporary((700,), torch.float32, device) for _ in range(6)]
    chain = [x, *hidden, y]
    ops = []
    for source, target in itertools.pairwise(chain):
        ops += op_classes.Scale.schedule(x=source, y=target)
    assert placed(ops)[1] == 2 * aligned(2800)
    kernel = Megakernel(ops, arch=arch if device == "cpu" else None)
    for _ in range(2):
        y.zero_()
        kernel.run()
        assert torch.equal(y, 2**7 * x)


def test_views_of_a_temporary_and_its_lifetime(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    """The halves of one temporary are written apart and read together; TMA descriptors and bulk copies see them."""
    x, z = torch.arange(512.0, device=device), torch.zeros(1024, device=device)
    both, other = temporary((1024,), torch.float32, device), temporary((1024,), torch.float32, device)
    ops = (
        op_classes.Scale.schedule(x=x, y=both[:512])
        + op_classes.Scale.schedule(x=x, y=both[512:], factor=3.0)
        + op_classes.Add.schedule(x=both, y=both, z=other)
        + op_classes.Add.schedule(x=other, y=both, z=z)
    )
    Megakernel(ops, arch=arch if device == "cpu" else None).run()
    assert torch.equal(z, 3 * torch.cat([2 * x, 3 * x]))


def test_tma_of_a_temporary(arch: str, device: str) -> None:
    gemm = pytest.importorskip("machete.kernels.gemm")
    a, b = (torch.randn(64, 64, device=device, dtype=torch.bfloat16) for _ in range(2))
    hidden, c = temporary((64, 64), torch.bfloat16, device), torch.zeros(64, 64, device=device)
    ops = gemm.GemmOp.schedule(a=a, b=b, c=hidden) + gemm.GemmOp.schedule(a=hidden, b=b, c=c)
    Megakernel(ops, arch=arch if device == "cpu" else None).run()
    expected = (a.float() @ b.float().T).bfloat16().float() @ b.float().T
    assert ((c - expected).norm() / expected.norm()).item() < 5e-3


def test_a_temporary_is_written_before_it_is_read(op_classes) -> None:
    hidden = temporary((700,), torch.float32, "cpu")
    with pytest.raises(PlanError, match=r"op 0 \(Scale\) reads the temporary `x`, which no op before it writes"):
        Megakernel(op_classes.Scale.schedule(x=hidden, y=torch.zeros(700)))


def test_a_temporary_is_not_replaced_and_not_kept_alive(op_classes, anywhere: str) -> None:
    hidden = temporary((700,), torch.float32, anywhere)
    x, z = torch.zeros(700, device=anywhere), torch.zeros(700, device=anywhere)
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=hidden) + op_classes.Add.schedule(x=x, y=hidden, z=z))
    kernel.run()
    assert kernel._bound is not None
    assert {id(tensor) for tensor in kernel._bound.binding.tensors()} == {id(x), id(z)}
    with pytest.raises(UnknownArgumentError, match="a temporary cannot be replaced"):
        kernel.run(y=torch.zeros(700, device=anywhere))


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_random_graphs_of_temporaries(arch: str, device: str, op_classes, steps, seed) -> None:
    """Each step adds two earlier results; whatever shares memory, the outcome is that of torch."""
    x = torch.arange(300.0, device=device)
    values, tensors = [x], [x]
    ops = []
    for first, second in steps:
        i, j = first % len(values), second % len(values)
        values.append(values[i] + values[j])
        tensors.append(temporary((300,), torch.float32, device))
        ops += op_classes.Add.schedule(x=tensors[i], y=tensors[j], z=tensors[-1])
    out = torch.zeros(300, device=device)
    ops += op_classes.Scale.schedule(x=tensors[-1], y=out, factor=1.0)
    Megakernel(ops, arch=arch if device == "cpu" else None, seed=seed).run()
    assert torch.equal(out, values[-1])


def test_zeroed_temporaries_start_with_zeros_and_share_no_memory(
    arch: str, device: str, op_classes: SimpleNamespace
) -> None:
    """One that is not zeroed is used before and after it; it is read before anybody has written it."""
    x, y = torch.arange(700.0, device=device), torch.zeros(700, device=device)
    first, last = (temporary((700,), torch.float32, device) for _ in range(2))
    zeros = temporary((700,), torch.float32, device, zeroed=True)
    ops = (
        op_classes.Scale.schedule(x=x, y=first)
        + op_classes.Add.schedule(x=first, y=zeros, z=last)
        + op_classes.Scale.schedule(x=last, y=y)
    )
    assert placed(ops)[1] == 3 * aligned(2800)
    kernel = Megakernel(ops, arch=arch if device == "cpu" else None)
    for _ in range(2):
        kernel.run()
        assert torch.equal(y, 4 * x)
