"""A trace of products in tensor memory: the multiplier has a track, and what compute waits for it to do has a name."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch

from machete.megakernel import Megakernel
from machete.trace import Trace
from machete.trace.ahead import stages_of
from machete.trace.buffer import ROLES
from machete.trace.events import TYPES
from machete.trace.page import page
from machete.trace.perfetto_export import write_perfetto
from small_ops import StreamAdd, TensorProduct

pytestmark = pytest.mark.archs("sm_100a")
M, N, K, SMS = 384, 64, 512, 2
STEPS, TILES = K // 8, M // 128 * N // 16


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Stages are used by compute, then by the multiplier, then by compute again."""
    x, z = torch.ones(M * N), torch.zeros(M * N)
    a, b, c = torch.ones(M, K), torch.ones(N, K), torch.zeros(M, N)
    ops = StreamAdd.schedule(x=x, y=x, z=z) + TensorProduct.schedule(a=a, b=b, c=c)
    ops += StreamAdd.schedule(x=c.view(-1), y=z, z=x)
    kernel = Megakernel(ops, arch="sm_100a", num_sms=SMS, trace=True)
    done = kernel.run()
    assert (x == K + 2).all()
    return Trace.of(kernel, done)


def test_the_multiplier_multiplies_every_tile_once(arch: str, trace: Trace) -> None:
    spans = trace.spans.of("multiply")
    assert set(spans.role.tolist()) == {ROLES.index("multiplier")}
    assert sorted(zip(spans.op.tolist(), spans.tile.tolist(), strict=True)) == [(1, tile) for tile in range(TILES)]
    products = trace.spans.of("products", role="compute")
    assert set(products.op.tolist()) == {1}
    assert len(products) > 0
    assert trace.lost.sum() == 0


def test_every_moment_has_a_category(arch: str, trace: Trace) -> None:
    report = trace.report()
    assert sum(report.us.values()) == pytest.approx(report.traced_us)
    pieces = trace.attribution
    of_product = np.bincount(pieces.category[pieces.op == 1], pieces.duration[pieces.op == 1], minlength=9)
    assert of_product[0] > 0, "streaming: the multiplier waits for operands"
    assert of_product[1] > 0, "math"
    assert report.overlap_us["multiplier in multiply phases"] > 0


def test_stages_are_used_in_the_order_of_the_ring(arch: str, trace: Trace) -> None:
    for sm in range(SMS):
        stages = stages_of(trace, sm)
        own = trace.spans.of("multiply").sm == sm
        assert len(stages.taken) == len(stages.used) >= STEPS * own.sum()
        assert (stages.used >= stages.taken).all()
        assert (stages.ahead()[1] >= 0).all()


def test_it_is_shown(arch: str, trace: Trace) -> None:
    file = BytesIO()
    write_perfetto(trace, file)
    assert b"multiplier" in file.getvalue()
    text = page(trace)
    assert '"multiplier"' in text
    assert all(name in text for name in TYPES[1:-1])
