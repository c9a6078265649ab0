"""`GemmOp` with operands whose neighbours along M or N are adjacent, not those along K: views like `x.T`."""

from __future__ import annotations

import pytest
import torch

from machete.kernels.gemm import GemmOp
from machete.megakernel.errors import AlignmentError

TOLERANCE = 1e-5  # float32 results
IMPLEMENTATION = {"sm_90a": "WgmmaGemm", "sm_100a": "Tcgen05Gemm", "sm_120a": "MmaSyncGemm"}


@pytest.mark.parametrize("transposed", ["a", "b", "ab"])
def test_products(transposed, arch, run, random, poisoned, error, kind_names) -> None:
    """Of several sizes with the same code, one of them ragged in every dim."""
    for m, n, k in ((136, 136, 200), (65, 272, 72)):
        a = random(k, -(-m // 8) * 8)[:, :m].T if "a" in transposed else random(m, k)
        b = random(k, n).T if "b" in transposed else random(n, k)
        c = poisoned(m, n, dtype=torch.float32)
        kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=128, slices=1), num_sms=3)
        assert kind_names(kernel) == [IMPLEMENTATION[arch]]
        assert error(c, a.double() @ b.double().T) < TOLERANCE


@pytest.mark.archs("sm_90a")
@pytest.mark.parametrize(
    ("m", "tile_n", "slices"),
    [(40, 64, 1), (40, 128, 1), (40, 128, 3), (136, 256, 1), (136, 64, 2)],
)
def test_tiles_of_wgmma(m, tile_n, slices, run, random, poisoned, error) -> None:
    """Where warpgroups share columns, and where they share rows; with K in slices, and in steps of two rows."""
    n, k = 200, 712
    a, b, c = random(k, m).T, random(k, n).T, poisoned(m, n, dtype=torch.float32)
    run(GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=slices), num_sms=4)
    assert error(c, a.double() @ b.double().T) < TOLERANCE


def test_few_rows_by_a_transposed_weight(run, random, poisoned, error) -> None:
    """What the gradient of an input is; batched, for a view of a view."""
    dy, weight, dx = random(2, 3, 96), random(2, 96, 80)[:, :, 8:], poisoned(2, 3, 72)
    run(GemmOp.schedule(a=dy, b=weight.mT, c=dx, tile_n=64), num_sms=2)
    assert error(dx, dy.double() @ weight.double()) < 4e-3


def test_other_tensors_and_extents_at_run_time(run, random, poisoned, error) -> None:
    a, b, c = random(128, 136).T, random(128, 72).T, poisoned(136, 72, dtype=torch.float32)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=128, slices=1), num_sms=2)
    other = random(128, 136).T
    kernel.run(a=other, extents={"K": 40})
    assert error(c, other[:, :40].double() @ b[:, :40].double().T) < TOLERANCE
    shifted = torch.zeros(128 * 136 + 1, dtype=torch.bfloat16, device=a.device)[1:].view(128, 136).T
    with pytest.raises(AlignmentError, match="aligned to 2 bytes, not to 16"):
        kernel.run(a=shifted)
