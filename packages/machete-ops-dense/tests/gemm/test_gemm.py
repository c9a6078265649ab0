"""`GemmOp` against a float32 reference, on every target, for the shapes that break things."""

from __future__ import annotations

import pytest
import torch

from machete.kernels.fusions import GluPair
from machete.kernels.gemm import GemmOp
from machete.megakernel import MacheteError, Megakernel
from machete.megakernel.errors import (
    AlignmentError,
    ConfigError,
    DtypeError,
    ExtentError,
    OverlapError,
    ScheduleError,
    ShapeMismatchError,
    StrideError,
    TileSizeError,
)

# ‖out − ref‖ / ‖ref‖: float32 accumulation, one rounding to the result type.
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.float32: 1e-5}


def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, arch: str, tile_n: int | None = None) -> Megakernel:
    c.fill_(float("nan"))
    on_cpu = a.device.type == "cpu"
    kernel = Megakernel(GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n), arch=arch if on_cpu else None)
    kernel.run()
    return kernel


def error(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    reference = a.double() @ b.double().mT
    return ((c.double() - reference).norm() / reference.norm()).item()


def random(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (128, 128, 64),  # one tile, one step
        (128, 256, 192),
        (1, 8, 8),  # less than one instruction
        (16, 136, 1024),
        (130, 70, 72),  # ragged in every dim
        (127, 257, 264),  # odd n: pairs of columns straddle the edge
        (300, 200, 520),
    ],
)
def test_shapes(arch: str, device: str, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(m + n + k)
    a, b = random(m, k, device=device, dtype=dtype), random(n, k, device=device, dtype=dtype)
    c = torch.empty(m, n, device=device, dtype=dtype)
    run(a, b, c, arch)
    assert error(a, b, c) < TOLERANCE[dtype]


@pytest.mark.parametrize("tile_n", [64, 128, 256])
def test_tiles(arch: str, device: str, tile_n: int) -> None:
    a, b = random(200, 200, device=device), random(300, 200, device=device)
    c = torch.empty(200, 300, device=device, dtype=torch.float32)
    run(a, b, c, arch, tile_n)
    assert error(a, b, c) < TOLERANCE[torch.float32]


def test_batched(arch: str, device: str) -> None:
    a, b = random(3, 70, 136, device=device), random(3, 90, 136, device=device)
    c = torch.empty(3, 70, 90, device=device, dtype=torch.bfloat16)
    run(a, b, c, arch)
    assert error(a, b, c) < TOLERANCE[torch.bfloat16]


def test_strided_views(arch: str, device: str) -> None:
    """Rows of a, b and c are slices of wider tensors, c with an odd offset."""
    a, b = random(100, 256, device=device)[:, 64:200], random(2 * 90, 136, device=device)[::2]
    wide = torch.full((100, 131), 7.0, device=device, dtype=torch.bfloat16)
    c = wide[:, 3:93]
    run(a, b, c, arch)
    assert error(a, b, c) < TOLERANCE[torch.bfloat16]
    assert (wide[:, :3] == 7).all()
    assert (wide[:, 93:] == 7).all()


def test_transposed_result(arch: str, device: str) -> None:
    a, b = random(50, 64, device=device), random(40, 64, device=device)
    c = torch.empty(40, 50, device=device, dtype=torch.bfloat16).T
    run(a, b, c, arch)
    assert error(a, b, c) < TOLERANCE[torch.bfloat16]


def test_chain_of_two(arch: str, device: str) -> None:
    """The second product loads by TMA what the first one has stored."""
    a, b, d = random(140, 128, device=device), random(128, 128, device=device), random(72, 128, device=device)
    c, e = torch.empty(140, 128, device=device, dtype=torch.bfloat16), random(140, 72, device=device)
    c.fill_(float("nan"))
    e.fill_(float("nan"))
    ops = GemmOp.schedule(a=a, b=b, c=c) + GemmOp.schedule(a=c, b=d, c=e, tile_n=128)
    Megakernel(ops, arch=arch if device == "cpu" else None).run()
    assert error(a, b, c) < TOLERANCE[torch.bfloat16]
    assert error(c, d, e) < TOLERANCE[torch.bfloat16]


def test_stages_are_in_flight(arch: str, device: str) -> None:
    a, b = random(64, 512, device=device), random(64, 512, device=device)
    kernel = run(a, b, torch.empty(64, 64, device=device, dtype=torch.bfloat16), arch)
    if kernel.simulated:
        assert kernel.report is not None
        assert (kernel.report.max_stages_in_flight or 0) >= 2


def test_nan_and_inf_stay_in_their_rows(arch: str, device: str) -> None:
    a, b = random(140, 128, device=device), random(90, 128, device=device)
    a[5, 17], a[131, 3] = float("nan"), float("inf")
    c = torch.empty(140, 90, device=device, dtype=torch.bfloat16)
    run(a, b, c, arch)
    assert c[5].isnan().all()
    assert not c[131].isfinite().any()
    clean = [row for row in range(140) if row not in (5, 131)]
    assert c[clean].isfinite().all()


WRONG = {
    "mixed operand dtypes": (DtypeError, {"b": torch.zeros(8, 64, dtype=torch.float16)}, "one 16-bit type"),
    "float32 operands": (DtypeError, {"a": torch.zeros(8, 64), "b": torch.zeros(8, 64)}, "bfloat16"),
    "k differs": (ShapeMismatchError, {"b": torch.zeros(8, 72, dtype=torch.bfloat16)}, "dim K"),
    "ranks differ": (ScheduleError, {"c": torch.zeros(1, 8, 8, dtype=torch.bfloat16)}, "rank"),
    "odd row stride": (
        AlignmentError,
        {"a": torch.zeros(8, 65, dtype=torch.bfloat16)[:, :64]},
        "multiple of 16",
    ),
    "misaligned view": (
        AlignmentError,
        {"a": torch.zeros(8, 72, dtype=torch.bfloat16)[:, 1:65]},
        "multiple of 16",
    ),
    "no dim of a is contiguous": (StrideError, {"a": torch.zeros(8, 64, 2, dtype=torch.bfloat16)[..., 0]}, "innermost"),
    "odd column stride": (AlignmentError, {"a": torch.zeros(64, 9, dtype=torch.bfloat16).T[:8]}, "multiple of 16"),
    "adjacent rows of 8 bits": (
        StrideError,
        {name: torch.zeros(64, 8, dtype=torch.float8_e4m3fn).T for name in "ab"},
        "along K",
    ),
    "8 bits and 16": (DtypeError, {"a": torch.zeros(8, 64, dtype=torch.float8_e4m3fn)}, "8-bit float types"),
    "scale": (ShapeMismatchError, {"a_scale": torch.ones(3)}, r"a_scale of shape (1,), (8,) or (1, 8)"),
    "scale of integers": (DtypeError, {"a_scale": torch.ones(1, dtype=torch.int32)}, "a_scale.float()"),
    "fast by name": (ConfigError, {"fast_accumulation": "no"}, "fast_accumulation='no'"),
    "scale is no tensor": (ShapeMismatchError, {"b_scale": 2.0}, "b_scale is float"),
    "tile_n": (TileSizeError, {"tile_n": 100}, "multiple of 16 from 32 to 256"),
    "slices": (TileSizeError, {"slices": 9}, "1 to 8 parts"),
    "k is zero": (
        ExtentError,
        {"a": torch.zeros(8, 0, dtype=torch.bfloat16), "b": torch.zeros(8, 0, dtype=torch.bfloat16)},
        "zeros",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case: str) -> None:
    kind, change, text = WRONG[case]
    good = {name: torch.zeros(8, 64, dtype=torch.bfloat16) for name in "ab"}
    good["c"] = torch.zeros(8, 8, dtype=torch.bfloat16)
    with pytest.raises(kind) as caught:
        GemmOp.schedule(**{**good, **change})
    assert isinstance(caught.value, MacheteError)
    assert text in str(caught.value)


def test_result_over_an_operand_is_refused() -> None:
    a = torch.zeros(64, 64, dtype=torch.bfloat16)
    with pytest.raises(OverlapError):
        GemmOp.schedule(a=a, b=torch.zeros(64, 64, dtype=torch.bfloat16), c=a)


def test_no_columns_of_a_at_run_time(arch: str, device: str) -> None:
    """K may be smaller in a run, down to nothing: the product is then zero."""
    a, b = random(140, 128, device=device), random(72, 128, device=device)
    c = torch.empty(140, 72, device=device, dtype=torch.bfloat16)
    kernel = run(a, b, c, arch)
    c.fill_(float("nan"))
    kernel.run(extents={"K": 0})
    assert (c == 0).all()
    kernel.run(extents={"K": 64})
    assert error(a[:, :64], b[:, :64], c) < TOLERANCE[torch.bfloat16]


def test_a_pair_that_is_not_aligned_is_refused() -> None:
    a, w = torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(16, 72, dtype=torch.bfloat16)
    c = torch.zeros(1, 8, dtype=torch.bfloat16)
    with pytest.raises(AlignmentError, match="combine0_up"):
        GemmOp.schedule(a=a, b=w[:8, :64], c=c, combine=GluPair(w[8:, 4:68]))


@pytest.mark.parametrize(("tile_n", "elsewhere"), [(48, 64), (80, 128), (192, 256), (224, 256)])
def test_widths_of_tiles(arch, tile_n, elsewhere, run, random, poisoned, error) -> None:
    """sm_90a takes any multiple of 16, other targets the next width of whole pages."""
    a, b, c = random(130, 200), random(470, 200), poisoned(130, 470)
    few, other = random(40, 200), poisoned(40, 470)
    ops = GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=1)
    kernel = run(ops + GemmOp.schedule(a=few, b=b, c=other, tile_n=tile_n, slices=1), num_sms=4)
    expected = {"sm_90a": tile_n, "sm_100a": elsewhere, "sm_120a": min(elsewhere, 128)}[arch]
    assert {kind.tile_sizes["N"] for kind in kernel.plan.kinds} == {expected}
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]
    assert error(other, few.double() @ b.double().T) < TOLERANCE[torch.bfloat16]


@pytest.mark.archs("sm_90a")
def test_a_transposed_weight_has_whole_blocks(run, random, poisoned, error) -> None:
    a, b, c = random(130, 72), random(72, 200).T, poisoned(130, 200)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=80), num_sms=2)
    assert kernel.plan.kinds[0].tile_sizes["N"] == 128
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]
