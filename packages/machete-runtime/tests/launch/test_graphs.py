"""Graphs of small ops in one kernel equal running them one after another in torch.

Values are small integers in float32, so that every result is exact and compared bit for bit, whatever the order of
additions. Outputs are poisoned with NaN first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machete.megakernel import Megakernel, ScheduledOp
from small_ops import Accumulate, ReverseTiles, RowSum, Scale, Spread, StreamAdd, StreamTotal


def integers(*shape: int, device: str) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(device=device, dtype=torch.float32)


def poisoned(*shape: int, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=device)


def run(ops: list[ScheduledOp], arch: str, device: str, **options: Any) -> Megakernel:
    kernel = Megakernel(ops, arch=arch if device == "cpu" else None, **options)
    kernel.run()
    return kernel


@pytest.mark.parametrize("n", [1, 255, 256, 1000, 4097])
def test_two_scales_with_different_tiles(arch: str, device: str, n: int) -> None:
    x, y, z = integers(n, device=device), poisoned(n, device=device), poisoned(n, device=device)
    run(Scale.schedule(x=x, y=y, tile_n=256) + Scale.schedule(x=y, y=z, factor=3.0, tile_n=96), arch, device)
    assert torch.equal(z, 6 * x)


def test_diamond(arch: str, device: str) -> None:
    x = integers(3000, device=device)
    left, right, joined = (poisoned(3000, device=device) for _ in range(3))
    run(
        Scale.schedule(x=x, y=left, factor=2.0)
        + Scale.schedule(x=x, y=right, factor=5.0, tile_n=100)
        + StreamAdd.schedule(x=left, y=right, z=joined),
        arch,
        device,
    )
    assert torch.equal(joined, 7 * x)


def test_in_place_updates(arch: str, device: str) -> None:
    x, y = integers(2000, device=device), integers(2000, device=device)
    expected = y + 2 * x
    run(Accumulate.schedule(x=x, y=y) + Accumulate.schedule(x=x, y=y, tile_n=500), arch, device)
    assert torch.equal(y, expected)


def test_write_after_read(arch: str, device: str) -> None:
    """The second op overwrites what the first one reads; the third reads the new value."""
    x, y, z = integers(5000, device=device), poisoned(5000, device=device), poisoned(5000, device=device)
    old, other = x.clone(), integers(5000, device=device)
    run(
        Scale.schedule(x=x, y=y) + Scale.schedule(x=other, y=x, tile_n=64) + Scale.schedule(x=x, y=z, tile_n=200),
        arch,
        device,
    )
    assert torch.equal(y, 2 * old)
    assert torch.equal(z, 4 * other)


def test_slices_of_one_storage(arch: str, device: str) -> None:
    base = integers(4096, device=device)
    expected = base.clone()
    expected[1024:2048] = 2 * expected[:1024]
    expected[2048:3072] = 2 * expected[1024:2048]
    expected[512:1536] += expected[3072:]
    run(
        Scale.schedule(x=base[:1024], y=base[1024:2048])
        + Scale.schedule(x=base[1024:2048], y=base[2048:3072], tile_n=128)
        + Accumulate.schedule(x=base[3072:], y=base[512:1536]),
        arch,
        device,
    )
    assert torch.equal(base, expected)


def test_strided_columns(arch: str, device: str) -> None:
    base = integers(300, 7, device=device)
    expected = base.clone()
    expected[:, 3] = 2 * expected[:, 1]
    expected[:, 5] += expected[:, 3]
    run(
        Scale.schedule(x=base[:, 1], y=base[:, 3], tile_n=50) + Accumulate.schedule(x=base[:, 3], y=base[:, 5]),
        arch,
        device,
    )
    assert torch.equal(base, expected)


def test_many_to_one_and_one_to_many(arch: str, device: str) -> None:
    x, v = integers(77, 130, device=device), integers(77, device=device)
    s, w, y = poisoned(77, device=device), integers(130, device=device), poisoned(77, 130, device=device)
    total = poisoned(77, device=device)
    run(
        RowSum.schedule(x=x, s=s)
        + Accumulate.schedule(x=v, y=s, tile_n=10)
        + Spread.schedule(x=s, y0=w, y=y)
        + RowSum.schedule(x=y, s=total, tile_m=7),
        arch,
        device,
    )
    expected = (x.sum(1) + v)[:, None] + w
    assert torch.equal(y, expected)
    assert torch.equal(total, expected.sum(1))


@pytest.mark.parametrize("n", [64, 1000])
def test_scratch_page(arch: str, device: str, n: int) -> None:
    x, y, z = integers(n, device=device), poisoned(n, device=device), poisoned(n, device=device)
    run(ReverseTiles.schedule(x=x, y=y) + ReverseTiles.schedule(x=y, y=z), arch, device, num_sms=2)
    whole = n // 64 * 64
    assert torch.equal(y[:whole], x[:whole].view(-1, 64).flip(1).reshape(-1))
    assert torch.equal(z, x)


def test_stages_of_two_sizes_in_one_ring(arch: str, device: str) -> None:
    x, z = integers(5003, device=device), integers(5003, device=device)
    y, s, t = poisoned(5003, device=device), poisoned(1, device=device), poisoned(1, device=device)
    kernel = run(
        StreamTotal.schedule(x=x, s=t)
        + StreamAdd.schedule(x=x, y=z, z=y)
        + StreamTotal.schedule(x=y, s=s)
        + StreamAdd.schedule(x=y, y=z, z=x),
        arch,
        device,
    )
    assert torch.equal(s, y.sum(0, keepdim=True))
    assert torch.equal(x, y + z)
    if kernel.simulated:
        assert kernel.report is not None
        assert kernel.report.max_stages_in_flight is not None
        assert kernel.report.max_stages_in_flight >= 2


def test_empty_tensors_do_nothing(arch: str, device: str) -> None:
    nothing, x, y = (torch.empty(0, device=device), integers(50, device=device), poisoned(50, device=device))
    run(
        Scale.schedule(x=nothing, y=torch.empty(0, device=device)) + Scale.schedule(x=x, y=y),
        arch,
        device,
    )
    assert torch.equal(y, 2 * x)


def test_runs_again_and_with_other_tensors(arch: str, device: str) -> None:
    x, y, z = integers(1500, device=device), poisoned(1500, device=device), poisoned(1500, device=device)
    kernel = run(Scale.schedule(x=x, y=y) + StreamAdd.schedule(x=y, y=x, z=z), arch, device)
    artefact = kernel.compile()
    assert torch.equal(z, 3 * x)
    y.fill_(float("nan"))
    z.fill_(float("nan"))
    kernel.run()
    assert torch.equal(z, 3 * x)
    other = integers(1500, device=device)
    kernel.run(replace=[(x, other)])  # x of the first op is z of the second
    assert torch.equal(z, 3 * other)
    kernel.run(factor=4.0)
    assert torch.equal(z, 5 * other)
    assert kernel.compile() is artefact


@pytest.mark.parametrize("num_sms", [1, 3, 8])
def test_any_number_of_sms(arch: str, device: str, num_sms: int) -> None:
    x, y, z = integers(2222, device=device), poisoned(2222, device=device), poisoned(2222, device=device)
    run(Scale.schedule(x=x, y=y) + StreamAdd.schedule(x=y, y=x, z=z), arch, device, num_sms=num_sms)
    assert torch.equal(z, 3 * x)


# ---------------------------------------------------------------------------------------------- random graphs

SIZE = 700  # elements of each buffer: several tiles, ragged
BUFFERS = 4


def _scale(x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> None:
    del z
    y.copy_(2 * x)


def _accumulate(x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> None:
    del z
    y.add_(x)


def _stream(x: torch.Tensor, z: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x + z)


Step = tuple[str, int, int, int, int, int]
MAKE: dict[str, tuple[Callable[..., list[ScheduledOp]], Callable[..., None]]] = {
    "scale": (lambda x, z, y, tile: Scale.schedule(x=x, y=y, tile_n=tile), _scale),
    "accumulate": (lambda x, z, y, tile: Accumulate.schedule(x=x, y=y, tile_n=tile), _accumulate),
    "stream": (lambda x, z, y, tile: StreamAdd.schedule(x=x, y=z, z=y), _stream),
}


def _steps() -> st.SearchStrategy[list[Step]]:
    # Offsets in units of 4 float32 = 16 bytes: bulk copies need that, and it still gives every kind of overlap.
    buffer, offset = st.integers(0, BUFFERS - 1), st.integers(0, 20)
    step = st.tuples(st.sampled_from(sorted(MAKE)), buffer, buffer, buffer, offset, st.sampled_from([64, 96, 256]))
    return st.lists(step, min_size=1, max_size=7)


def _views(buffers: list[torch.Tensor], step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs and output of a step, in different buffers, so that an op does not read what it overwrites."""
    _, first, second, last, offset, _ = step
    length = SIZE - 4 * 20
    x = buffers[first][4 * offset : 4 * offset + length]
    z = buffers[second][:length]
    y = buffers[BUFFERS + last][4 * (20 - offset) : 4 * (20 - offset) + length]
    return x, z, y


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=_steps(), seed=st.integers(0, 1000), swap=st.lists(st.booleans(), min_size=7, max_size=7))
def test_random_graphs(arch: str, device: str, steps: list[Step], seed: int, swap: list[bool]) -> None:
    torch.manual_seed(seed)
    buffers = [integers(SIZE, device=device) for _ in range(2 * BUFFERS)]
    expected = [buffer.clone() for buffer in buffers]
    ops: list[ScheduledOp] = []
    for step, swapped in zip(steps, swap, strict=False):
        make, reference = MAKE[step[0]]
        for pool, act in ((buffers, None), (expected, reference)):
            order = pool[BUFFERS:] + pool[:BUFFERS] if swapped else pool
            x, z, y = _views(order, step)
            if act is None:
                ops += make(x, z, y, step[-1])
            else:
                act(x, z, y)
    run(ops, arch, device, seed=seed) if device == "cpu" else run(ops, arch, device)
    for got, want in zip(buffers, expected, strict=True):
        assert torch.equal(got, want)
