"""Products in tensor memory: the `multiply` phase alone, beside ops that use the ring themselves, and when it fails."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
import pytest
import torch

from machete.megakernel import Megakernel, PipelineSpec
from machete.megakernel.errors import HangError, PipelineError, TargetError
from machete.sim.errors import MbarrierMisuse, OutOfBounds
from small_ops import Accumulate, ReverseTiles, StreamAdd, StreamTotal, TensorProduct

pytestmark = pytest.mark.archs("sm_100a")


def matrix(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape).float()


def result(m: int, n: int) -> torch.Tensor:
    return torch.full((m, n), float("nan"))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.T


@pytest.mark.parametrize(
    ("m", "n", "k", "num_sms"),
    [(128, 16, 16, 1), (128, 16, 400, 1), (300, 50, 40, 2), (640, 96, 24, 3), (1, 1, 8, 4)],
    ids=["one step", "the ring goes round", "ragged", "accumulators take turns", "one element"],
)
def test_products(arch: str, m: int, n: int, k: int, num_sms: int) -> None:
    a, b, c = matrix(m, k), matrix(n, k), result(m, n)
    kernel = Megakernel(TensorProduct.schedule(a=a, b=b, c=c), arch=arch, num_sms=num_sms)
    for _ in range(2):
        c.fill_(float("nan"))
        kernel.run()
        assert torch.equal(c, product(a, b))


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_one_ring_for_the_multiplier_and_for_compute(arch: str, schedule: str) -> None:
    """Stages of three sizes, some used by the multiplier, some by compute; each op reads what the one before writes."""
    m, n, k = 256, 40, 56
    a, b, c, d = matrix(m, k), matrix(n, k), result(m, n), result(m, n)
    x, z, reversed_z, total = torch.ones(m * n), torch.zeros(m * n), torch.zeros(m * n), torch.zeros(1)
    ops = [
        *StreamAdd.schedule(x=x, y=x, z=z),
        *TensorProduct.schedule(a=a, b=b, c=c),
        *StreamAdd.schedule(x=c.view(-1), y=z, z=x),
        *StreamTotal.schedule(x=x, s=total),
        *TensorProduct.schedule(a=a, b=b, c=d),
        *Accumulate.schedule(x=x, y=d.view(-1)),
        *ReverseTiles.schedule(x=d.view(-1), y=reversed_z),
    ]
    kernel = Megakernel(ops, arch=arch, num_sms=3, schedule=schedule)
    kernel.run()
    expected = product(a, b)
    assert torch.equal(c, expected)
    assert torch.equal(x, expected.view(-1) + 2)
    assert total.item() == x.sum().item()
    assert torch.equal(d, 2 * expected + 2)


@pytest.mark.parametrize(("m", "n", "k"), [(300, 48, 64), (130, 17, 8), (0, 48, 64), (300, 48, 0)])
def test_smaller_extents(arch: str, m: int, n: int, k: int) -> None:
    """Tiles outside are skipped by every role; with no columns of K the sums are zero."""
    a, b, c = matrix(300, 64), matrix(48, 64), result(300, 48)
    kernel = Megakernel(TensorProduct.schedule(a=a, b=b, c=c), arch=arch, num_sms=2)
    kernel.run(extents={"M": m, "N": n, "K": k})
    inside = product(a[:m, :k], b[:n, :k])
    assert torch.equal(c[:m, :n], inside)
    assert c[m:].isnan().all()
    assert c[:, n:].isnan().all()


class LongRing(TensorProduct):
    pipeline = PipelineSpec.streaming(input_stages=8, stage_pages=5, page_bytes=1024, elastic=True)


class RigidRing(TensorProduct):
    pipeline = PipelineSpec.streaming(input_stages=8, stage_pages=5, page_bytes=1024)


class NeverCommits(TensorProduct):
    """Compute waits for products for ever."""

    @cute.jit
    def multiply(self, ring, accumulators):
        accumulators.acquire()
        for _ in range(1):
            ring.release(ring.wait())


class NeverReleases(TensorProduct):
    """The multiplier waits for an accumulator for ever."""

    @cute.jit
    def compute(self, accumulators, tile_M, tile_N, c):
        accumulators.wait()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (NeverCommits, r"a compute warp waited .* for products[\s\S]*NeverCommits[\s\S]*mbarrier summed\["),
        (NeverReleases, r"the multiplier waited .* for a free accumulator[\s\S]*mbarrier taken\["),
    ],
)
def test_a_fault_is_named(arch: str, op: Any, message: str) -> None:
    a, b, c = matrix(384, 16), matrix(16, 16), result(384, 16)
    kernel = Megakernel(op.schedule(a=a, b=b, c=c), arch=arch, num_sms=1, timeout=0.005)
    with pytest.raises(HangError, match=message) as caught:
        kernel.run()
    assert_orderly(caught.value)


def assert_orderly(error: BaseException) -> None:
    """After an alarm results are worthless, and accesses race; but none is outside of what there is."""
    assert not isinstance(error.__context__, (OutOfBounds, MbarrierMisuse)), error.__context__
    assert "dealloc" not in str(error.__context__)
    assert "megakernel/device/kernel.py" not in str(error.__context__), "words of its own that nobody has written"


class StreamsNothing(StreamAdd):
    """The loader never commits, so it does not come to the next instruction."""

    @cute.jit
    def load(self, ring, tile_N, x, y):
        for _ in range(4):
            ring.acquire()


@pytest.mark.parametrize("after", ["product", "stream"])
def test_a_loader_that_is_stuck_before_a_product(arch: str, after: str) -> None:
    """Whoever waits for where the next instruction begins gives up, and goes on with pages that there are."""
    x, z = torch.ones(256), torch.zeros(256)
    a, b, c = matrix(128, 16), matrix(16, 16), result(128, 16)
    ops = StreamsNothing.schedule(x=x, y=x, z=z)
    product_ops, stream_ops = TensorProduct.schedule(a=a, b=b, c=c), StreamAdd.schedule(x=x, y=x, z=torch.zeros(256))
    ops += product_ops + stream_ops if after == "product" else stream_ops + product_ops
    with pytest.raises(HangError) as caught:
        Megakernel(ops, arch=arch, num_sms=1, timeout=0.005).run()
    assert_orderly(caught.value)


def test_more_pages_than_the_multiplier_keeps_track_of(arch: str) -> None:
    """The ring is not larger than that; a ring that has to be is refused."""
    a, b, c = matrix(130, 200), matrix(16, 200), result(130, 16)
    kernel = Megakernel(LongRing.schedule(a=a, b=b, c=c), arch=arch, num_sms=1)
    assert kernel.plan.shared.ring_pages == 30
    kernel.run()
    assert torch.equal(c, product(a, b))
    with pytest.raises(PipelineError, match="a ring of 40 pages"):
        Megakernel(RigidRing.schedule(a=a, b=b, c=c), arch=arch, num_sms=1)


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_other_targets_are_refused(target: str) -> None:
    a, b, c = matrix(128, 16), matrix(16, 16), result(128, 16)
    with pytest.raises(TargetError, match=target):
        Megakernel(TensorProduct.schedule(a=a, b=b, c=c), arch=target)
