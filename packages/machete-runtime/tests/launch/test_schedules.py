"""Both ways in which instructions come to SMs, and dependencies of groups of tiles, on the device."""

from __future__ import annotations

import pytest
import torch

from machete.megakernel import Megakernel


def integers(*shape: int, device: str) -> torch.Tensor:
    return torch.randint(-4, 5, shape).to(device=device, dtype=torch.float32)


def poisoned(*shape: int, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=device)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("num_sms", [1, 3, 4])
def test_a_chain_of_plain_and_streaming_ops(op_classes, arch: str, device: str, schedule: str, num_sms: int) -> None:
    """Tiles of several sizes, so that a tile waits for one, two or three others; run twice."""
    x = integers(1500, device=device)
    a, b, c, d = (poisoned(1500, device=device) for _ in range(4))
    ops = op_classes.Scale.schedule(x=x, y=a, tile_n=100) + op_classes.Add.schedule(x=a, y=x, z=b)
    ops += op_classes.Scale.schedule(x=b, y=c, tile_n=300) + op_classes.Add.schedule(x=c, y=a, z=d)
    kernel = Megakernel(ops, arch=arch if device == "cpu" else None, num_sms=num_sms, schedule=schedule)
    assert kernel.plan.schedule == schedule
    assert kernel.plan.ops[0].grouping.count > 1 or num_sms == 1
    for _ in range(2):
        for tensor in (a, b, c, d):
            tensor.fill_(float("nan"))
        kernel.run()
        assert torch.equal(d, 8 * x)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("seed", [0, 1])
def test_matrices_that_others_see_as_vectors(op_classes, arch: str, device: str, schedule: str, seed: int) -> None:
    """Tiles of 4 × 64 against flat tiles of 256 and of 100; the matrix is overwritten while others still read it."""
    torch.manual_seed(seed)
    x, y, u, v = (integers(n, device=device) for n in (10, 192, 10, 192))
    z, doubled, sum_, last = (poisoned(10, 192, device=device) for _ in range(4))
    ops = op_classes.Outer.schedule(x=x, y=y, z=z)
    ops += op_classes.Scale.schedule(x=z.view(-1), y=doubled.view(-1), tile_n=100)
    ops += op_classes.Add.schedule(x=doubled.view(-1), y=z.view(-1), z=sum_.view(-1))
    ops += op_classes.Outer.schedule(x=u, y=v, z=z)
    ops += op_classes.Scale.schedule(x=sum_[2:7].view(-1), y=last[2:7].view(-1), tile_n=256)
    options = {"arch": arch, "seed": seed} if device == "cpu" else {}
    kernel = Megakernel(ops, schedule=schedule, **options)
    kernel.run()
    assert torch.equal(sum_, 3 * torch.outer(x, y))
    assert torch.equal(z, torch.outer(u, v))
    assert torch.equal(last[2:7], 6 * torch.outer(x, y)[2:7])
