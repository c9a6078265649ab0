"""mma.sync and ldmatrix/stmatrix against fragment layouts written out as the PTX ISA gives them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from machete.sim._core import engine

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4

NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
}


def a_elements(k: int, width: int) -> list[tuple[NDArray, NDArray]]:
    """(row, column) per lane of a0, a1, ... of A (16 x k), elements of `width` bytes."""
    if width == 2:  # m16n8k8: a0..a3, m16n8k16: a0..a7
        return [
            (GROUP + (8 if i in (2, 3, 6, 7) else 0), THREAD * 2 + (i & 1) + (8 if i >= 4 else 0))
            for i in range(4 if k == 8 else 8)
        ]
    if width == 4:  # m16n8k4: a0, a1; m16n8k8: a0..a3
        return [(GROUP + (8 if i in (1, 3) else 0), THREAD + (4 if i >= 2 else 0)) for i in range(2 if k == 4 else 4)]
    # m16n8k16: a0..a7, m16n8k32: a0..a15
    return [
        (GROUP + (8 if 4 <= i < 8 or i >= 12 else 0), THREAD * 4 + (i & 3) + (16 if i >= 8 else 0))
        for i in range(8 if k == 16 else 16)
    ]


def b_elements(k: int, width: int) -> list[tuple[NDArray, NDArray]]:
    """(row, column) per lane of b0, b1, ... of B (k x 8)."""
    if width == 2:
        return [(THREAD * 2 + (i & 1) + (8 if i >= 2 else 0), GROUP) for i in range(2 if k == 8 else 4)]
    if width == 4:
        return [(THREAD + 4 * i, GROUP) for i in range(1 if k == 4 else 2)]
    return [(THREAD * 4 + (i & 3) + (16 if i >= 4 else 0), GROUP) for i in range(4 if k == 16 else 8)]


C_ELEMENTS = [(GROUP + (8 if i >= 2 else 0), THREAD * 2 + (i & 1)) for i in range(4)]


def to_registers(matrix: NDArray, elements: list[tuple[NDArray, NDArray]]) -> NDArray[np.uint32]:
    """Packs elements into 32-bit registers [register, lane], the lower-numbered element in the lower bits."""
    lanes = np.stack([matrix[row, column] for row, column in elements], axis=1)  # [lane, element]
    return np.ascontiguousarray(np.ascontiguousarray(lanes).view(np.uint32).T)


def from_registers(registers: NDArray[np.uint32], dtype: np.dtype, shape: tuple[int, int]) -> NDArray:
    out = np.zeros(shape, dtype)
    lanes = np.ascontiguousarray(registers.T).view(dtype)
    for i, (row, column) in enumerate(C_ELEMENTS):
        out[row, column] = lanes[:, i]
    return out


def random_matrix(name: str, shape: tuple[int, int], rng: np.random.Generator, limit: int = 8) -> NDArray:
    """Small integers, which every format and every sum here holds exactly."""
    low = 0 if name == "u8" else -limit
    return rng.integers(low, limit, shape, endpoint=True).astype(NUMPY[name])


def mma(k: int, a_type: str, b_type: str, d_type: str, a: NDArray, b: NDArray, c: NDArray, **options: Any) -> NDArray:
    registers = engine.mma_sync(
        k,
        a_type,
        b_type,
        d_type,
        to_registers(a, a_elements(k, a.dtype.itemsize)),
        to_registers(b, b_elements(k, b.dtype.itemsize)),
        to_registers(c, C_ELEMENTS),
        **options,
    )
    return from_registers(registers, NUMPY[d_type], (16, 8))


KINDS = [
    *((k, t, t, d) for k in (8, 16) for t, d in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))),
    *((k, "tf32", "tf32", "f32") for k in (4, 8)),
    *((k, a, b, d) for k in (16, 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f16", "f32")),
    *((k, a, b, "s32") for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")),
]


@pytest.mark.parametrize(("k", "a_type", "b_type", "d_type"), KINDS)
def test_fragments(k: int, a_type: str, b_type: str, d_type: str) -> None:
    rng = np.random.default_rng(k)
    limit = 4 if "e5m2" in (a_type, b_type) else 8
    a, b = random_matrix(a_type, (16, k), rng, limit), random_matrix(b_type, (k, 8), rng, limit)
    c = random_matrix(d_type, (16, 8), rng)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_array_equal(mma(k, a_type, b_type, d_type, a, b, c).astype(np.float64), expected)


@pytest.mark.parametrize(
    ("k", "a_type", "b_type", "d_type"),
    [
        (32, "f16", "f16", "f32"),
        (16, "f16", "bf16", "f32"),
        (16, "bf16", "bf16", "f16"),
        (16, "tf32", "tf32", "f32"),
        (32, "s8", "s8", "f32"),
        (8, "e4m3", "e4m3", "f32"),
    ],
)
def test_what_is_not_an_mma(k: int, a_type: str, b_type: str, d_type: str) -> None:
    nothing = np.zeros((4, 32), np.uint32)
    with pytest.raises(ValueError, match="no such mma"):
        engine.mma_sync(k, a_type, b_type, d_type, nothing, nothing, nothing)


@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "e4m3"])
def test_accumulates_in_float32_in_order_of_k(name: str) -> None:
    k = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32}[name]
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(NUMPY[name]).astype(np.float32) for s in ((16, k), (k, 8)))
    if name == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    c = rng.standard_normal((16, 8)).astype(np.float32) * 100
    expected = c.copy()
    for i in range(k):
        expected += np.outer(a[:, i], b[i])
    np.testing.assert_array_equal(mma(k, name, name, "f32", a.astype(NUMPY[name]), b.astype(NUMPY[name]), c), expected)


def test_tf32_ignores_the_low_bits() -> None:
    """An H200 does so too."""
    rng = np.random.default_rng(3)
    a, b, c = (random_matrix("f32", s, rng) + np.float32(20) for s in ((16, 8), (8, 8), (16, 8)))
    noisy_a, noisy_b = (
        (x.view(np.uint32) | rng.integers(0, 0x2000, x.shape, dtype=np.uint32)).view(np.float32) for x in (a, b)
    )
    np.testing.assert_array_equal(mma(8, "tf32", "tf32", "f32", noisy_a, noisy_b, c), a @ b + c)


def test_float16_sums_are_rounded_once() -> None:
    """2048 + 16 products of 0.5: adding one by one in f16 would stay at 2048."""
    a, b = np.full((16, 16), 0.5, np.float16), np.ones((16, 8), np.float16)
    c = np.full((16, 8), 2048, np.float16)
    np.testing.assert_array_equal(mma(16, "f16", "f16", "f16", a, b, c), np.full((16, 8), 2056, np.float16))


def test_integer_sums_wrap_or_saturate() -> None:
    a, b = np.full((16, 16), 127, np.int8), np.full((16, 8), 127, np.int8)
    c = np.full((16, 8), 2**31 - 1, np.int32)
    product = 127 * 127 * 16
    wrapped = mma(16, "s8", "s8", "s32", a, b, c)
    np.testing.assert_array_equal(wrapped, np.full((16, 8), 2**31 - 1 + product - 2**32))
    np.testing.assert_array_equal(mma(16, "s8", "s8", "s32", a, b, c, satfinite=True), c)
    np.testing.assert_array_equal(mma(16, "s8", "s8", "s32", a, -b, ~c, satfinite=True), ~c)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_and_stmatrix(count: int, transposed: bool) -> None:
    matrices = np.random.default_rng(count).integers(0, 2**16, (count, 8, 8), dtype=np.uint16)
    source = matrices.transpose(0, 2, 1) if transposed else matrices
    expected = np.stack([source[:, GROUP, 2 * THREAD], source[:, GROUP, 2 * THREAD + 1]], axis=-1)
    registers = engine.ldmatrix(matrices.reshape(-1).view(np.uint8), transposed)
    np.testing.assert_array_equal(registers, np.ascontiguousarray(expected).view(np.uint32)[..., 0])
    back = engine.stmatrix(registers, transposed)
    np.testing.assert_array_equal(back, matrices.reshape(-1).view(np.uint8))
