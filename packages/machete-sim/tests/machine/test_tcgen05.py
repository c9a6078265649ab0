"""tcgen05.mma in all its kinds, shapes and layouts, against NumPy and ml-dtypes; and what goes wrong with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from machete.sim import (
    BadDescriptor,
    ExecutionError,
    Image,
    OutOfBounds,
    Race,
    TensorMemoryMisuse,
    Uninitialised,
    UnknownInstruction,
)

_SPEC = importlib.util.spec_from_file_location("sim_tensor_core", Path(__file__).with_name("tensor_core.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
core = importlib.util.module_from_spec(_SPEC)
sys.modules["sim_tensor_core"] = core
_SPEC.loader.exec_module(core)

Module = Callable[..., str]


def plain(
    kind: str, a: str, b: str, m: int = 128, n: int = 64, *, d: str = "f32", **how: Any
) -> tuple[Any, np.ndarray]:
    """A product of random matrices, and its exact result."""
    k = core.DEPTH[kind]
    left, right = core.random_matrix(a, (m, k), 1), core.random_matrix(b, (n, k), 2)
    group = how.get("group", 1)
    packed = kind.startswith("mxf4")
    layout = how.pop("layout", core.k_major)

    def tiles(matrix: np.ndarray, element: str) -> list[Any]:
        return [layout(core.row_bytes(part, element, packed=packed)) for part in np.split(matrix, group)]

    negate = how.pop("negate", (0, 0))
    descriptor = core.instruction(kind, a, b, m, n, d=d, negate=negate, **how.pop("fields", {}))
    ws = ".ws" if how.pop("ws", False) else ""
    product = core.Product(
        tiles(left, a), tiles(right, b), f"tcgen05.mma{ws}.cta_group::{group}.kind::{kind}", descriptor,
        how.pop("columns", n), **how,
    )  # fmt: skip
    exact = left.astype(np.float64) @ right.astype(np.float64).T
    return product, exact * (-1 if sum(negate) == 1 else 1)


def check(cells: np.ndarray, exact: np.ndarray, tolerance: float = 1e-6) -> None:
    values = cells.view(np.float32).astype(np.float64)
    assert np.linalg.norm(values - exact) <= tolerance * np.linalg.norm(exact)


NARROW = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]
PAIRS = [("f16", "f16", "f16"), ("f16", "bf16", "bf16"), ("tf32", "tf32", "tf32")]
PAIRS += [("f8f6f4", a, b) for a in NARROW for b in NARROW]


@pytest.mark.parametrize(("kind", "a", "b"), PAIRS)
def test_every_pair_of_elements(module: Module, kind: str, a: str, b: str) -> None:
    product, exact = plain(kind, a, b)
    cells, report = core.execute(module, product)
    check(cells[0], exact)
    assert report.matrix_instructions == 1


@pytest.mark.parametrize("a", ["s8", "u8"])
@pytest.mark.parametrize("b", ["s8", "u8"])
def test_integers_are_exact(module: Module, a: str, b: str) -> None:
    product, exact = plain("i8", a, b, d="s32", accumulate=["0", "1"])
    cells, _ = core.execute(module, product)
    assert np.array_equal(cells[0].view(np.int32), 2 * exact)


@pytest.mark.parametrize("kind", ["f16", "f8f6f4"])
def test_half_accumulators(module: Module, kind: str) -> None:
    element = "f16" if kind == "f16" else "e4m3"
    product, exact = plain(kind, element, element, d="f16", accumulate=["0", "1"])
    cells, _ = core.execute(module, product)
    values = (cells[0] & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    assert np.linalg.norm(values - 2 * exact) <= 1e-3 * np.linalg.norm(2 * exact)


@pytest.mark.parametrize("seed", range(3))
def test_accumulation_and_signs(module: Module, seed: int) -> None:
    product, exact = plain("f16", "bf16", "bf16", accumulate=["0", "1", "1"], negate=(0, 1))
    cells, report = core.execute(module, product, seed)
    check(cells[0], 3 * exact)
    assert report.matrix_instructions == 3


def test_scaled_input(module: Module) -> None:
    product, exact = plain("f16", "f16", "f16", accumulate=["0", "1"], trailing=", 2")
    check(core.execute(module, product)[0][0], exact * 1.25)


SYNC = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"


def test_disabled_lanes_keep_their_values(module: Module) -> None:
    lanes = "{0xffffffff, 0, 0x0000ffff, 0}"
    fill = "".join(
        f"add.u32 %r21, %r22, {c}; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {{%r2}};" for c in range(64)
    )
    prologue = f"""shr.u32 %r16, %r2, 5; shl.b32 %r17, %r16, 21; add.u32 %r22, %r7, %r17; {fill}
        tcgen05.wait::st.sync.aligned; {SYNC}"""
    product, exact = plain("f16", "f16", "f16", operands=f"{lanes}, ", prologue=prologue)
    cells, _ = core.execute(module, product)
    kept = np.r_[0:32, 64:80]
    written = np.setdiff1d(np.arange(128), kept)
    assert (cells[0][kept] == kept[:, None]).all()
    check(cells[0][written], exact[written])


@pytest.mark.parametrize("n", [16, 48, 256])
@pytest.mark.parametrize("layout", [core.k_major, core.k_major_swizzled])
def test_shapes_and_swizzles(module: Module, n: int, layout: Any) -> None:
    product, exact = plain("f16", "f16", "f16", n=n, layout=layout)
    check(core.execute(module, product)[0][0], exact)


@pytest.mark.parametrize(("kind", "element", "atom"), [("f16", "bf16", 16), ("tf32", "tf32", 32)])
def test_operands_along_the_rows(module: Module, kind: str, element: str, atom: int) -> None:
    m, n, k = 128, 64, core.DEPTH[kind]
    a, b = core.random_matrix(element, (m, k), 3), core.random_matrix(element, (n, k), 4)
    tiles = [core.mn_major_swizzled(a, atom)], [core.mn_major_swizzled(b, atom)]
    descriptor = core.instruction(kind, element, element, m, n, mn_major=(1, 1))
    product = core.Product(*tiles, f"tcgen05.mma.cta_group::1.kind::{kind}", descriptor, n)
    check(core.execute(module, product)[0][0], a.astype(np.float64) @ b.astype(np.float64).T)


def test_64_rows_use_half_of_the_lanes(module: Module) -> None:
    product, exact = plain("f16", "f16", "f16", m=64, n=24, prologue=FILL.format(columns=24))
    cells, _ = core.execute(module, product)
    check(cells[0].reshape(4, 32, 24)[:, :16].reshape(64, 24), exact)
    assert (cells[0].reshape(4, 32, 24)[:, 16:] == 7).all()


FILL = """shr.u32 %r16, %r2, 5; shl.b32 %r17, %r16, 21; add.u32 %r22, %r7, %r17; mov.u32 %r24, 7; mov.u32 %r23, 0;
    $fill: tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {{%r24}}; add.u32 %r22, %r22, 1; add.u32 %r23, %r23, 1;
    setp.lt.u32 %p6, %r23, {columns}; @%p6 bra $fill; tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"""


@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary(module: Module, m: int) -> None:
    """The columns of N are spread over the subpartitions that M leaves free."""
    parts = 128 // m
    product, exact = plain("f16", "f16", "f16", m=m, n=64, ws=True, columns=64 // parts)
    cells, _ = core.execute(module, product)
    check(np.concatenate(np.split(cells[0], parts), axis=1), exact)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("m", [128, 256])
def test_two_ctas(module: Module, m: int, seed: int) -> None:
    product, exact = plain("f16", "bf16", "bf16", m=m, n=64, group=2, columns=64 if m == 256 else 32)
    cells, _ = core.execute(module, product, seed)
    if m == 128:  # 64 rows in each CTA, the halves of N one above the other
        cells = np.concatenate([cells[:, :64], cells[:, 64:]], axis=2)
    check(cells.reshape(m, 64), exact)


@pytest.mark.parametrize(("kind", "element"), [("f16", "f16"), ("tf32", "tf32"), ("f8f6f4", "e5m2"), ("i8", "s8")])
def test_a_in_tensor_memory(module: Module, kind: str, element: str) -> None:
    d = "s32" if kind == "i8" else "f32"
    product, exact = plain(kind, element, element, d=d, a_in_tensor=True)
    cells, _ = core.execute(module, product)
    if kind == "i8":
        assert np.array_equal(cells[0].view(np.int32), exact)
    else:
        check(cells[0], exact)


@pytest.mark.parametrize(("element", "packed"), [("e2m1", "b4x16_p64"), ("e2m3", "b6x16_p32"), ("e3m2", "b6x16_p32")])
def test_narrow_a_is_expanded_on_its_way_to_tensor_memory(module: Module, element: str, packed: str) -> None:
    product, exact = plain("f8f6f4", element, "e4m3", a_in_tensor=True, copy_a=f"128x256b.b8x16.{packed}")
    check(core.execute(module, product)[0][0], exact)


# ---- block scales

SCALED = [
    ("mxf8f6f4", "", "e4m3", "e5m2", 1, True),
    ("mxf8f6f4", ".scale_vec::1X", "e2m1", "e3m2", 1, True),
    ("mxf4", ".block32", "e2m1", "e2m1", 2, True),
    ("mxf4nvf4", ".scale_vec::2X", "e2m1", "e2m1", 2, True),
    ("mxf4nvf4", ".block16", "e2m1", "e2m1", 4, False),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", "e2m1", 4, True),
]


def scaled(
    kind: str, vector: str, a: str, b: str, count: int, ue8m0: bool, ids: tuple[int, int], n: int = 96, **how: Any
) -> tuple[Any, np.ndarray]:
    m, k, group = how.get("m", 128), core.DEPTH[kind], how.get("group", 1)
    how.pop("m", None)
    left, right = core.random_matrix(a, (m, k), 5), core.random_matrix(b, (n, k), 6)
    rng = np.random.default_rng(7)
    if ue8m0:
        codes = [rng.integers(120, 134, (rows, count)).astype(np.uint8) for rows in (m // group, n)]
        factors = [2.0 ** (c.astype(np.float64) - 127) for c in codes]
    else:
        values = [np.abs(rng.standard_normal((rows, count))).astype(core.DTYPES["e4m3"]) for rows in (m // group, n)]
        codes, factors = [v.view(np.uint8) for v in values], [v.astype(np.float64) for v in values]
    images = core.scale_image(codes[0], ids[0]), core.scale_image(codes[1], ids[1])
    packed = kind != "mxf8f6f4"
    tiles = [
        [core.k_major(core.row_bytes(part, element, packed=packed)) for part in np.split(matrix, group)]
        for matrix, element in ((left, a), (right, b))
    ]
    product = core.Product(
        *tiles, f"tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale{vector}",
        core.instruction(kind, a, b, m, n, scale_ids=ids, ue8m0=ue8m0), n, scales=images, **how,
    )  # fmt: skip
    block = k // count
    weights = np.tile(factors[0], (group, 1)).repeat(block, 1), factors[1].repeat(block, 1)
    return product, (left.astype(np.float64) * weights[0]) @ (right.astype(np.float64) * weights[1]).T


@pytest.mark.parametrize("case", SCALED, ids=lambda c: f"{c[0]}{c[1]}-{c[2]}-{c[3]}-{'ue8m0' if c[5] else 'ue4m3'}")
def test_block_scales(module: Module, case: Any) -> None:
    product, exact = scaled(*case, ids=(0, 0))
    check(core.execute(module, product)[0][0], exact)


@pytest.mark.parametrize(("case", "ids"), [(SCALED[0], (1, 3)), (SCALED[2], (2, 0))])
def test_scale_factor_ids_choose_bytes(module: Module, case: Any, ids: tuple[int, int]) -> None:
    product, exact = scaled(*case, ids=ids)
    check(core.execute(module, product)[0][0], exact)


def test_block_scales_of_two_ctas(module: Module) -> None:
    product, exact = scaled(*SCALED[4], ids=(0, 0), n=128, m=256, group=2)
    check(core.execute(module, product)[0].reshape(256, 128), exact)


def test_scales_must_reach_every_subpartition(module: Module) -> None:
    product, _ = scaled(*SCALED[0], ids=(0, 0), scale_copy="64x128b.warpx2::02_13")
    # Twice as many rows, so that lanes 32 to 63 get the next tile instead of the same one.
    rng = np.random.default_rng(8)
    product.scales = tuple(np.r_[s, rng.integers(120, 130, 512).astype(np.uint8)] for s in product.scales)
    product.tiles_of_scales = 1
    with pytest.raises(TensorMemoryMisuse, match="all subpartitions need them"):
        core.execute(module, product)


# ---- mistakes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"extra": 4}, BadDescriptor, "sparse"),
        ({"extra": 1 << 6}, BadDescriptor, "reserved bits"),
        ({"extra": 3 << 30}, BadDescriptor, "maximum shift"),
        ({"extra": 1 << 3}, BadDescriptor, "only integers saturate"),
        ({"n": 72}, BadDescriptor, "no M of 128 with N of 72"),
        ({"m": 256}, BadDescriptor, "no M of 256"),
        ({"d": "s32"}, BadDescriptor, "accumulator format 2"),
    ],
)
def test_instruction_descriptors_are_strict(
    module: Module, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    product, _ = plain("f16", "f16", "f16")
    fields: dict[str, Any] = {"m": 128, "n": 64} | changes
    product.descriptor = core.instruction("f16", "f16", "f16", fields.pop("m"), fields.pop("n"), **fields)
    with pytest.raises(error, match=message):
        core.execute(module, product)


@pytest.mark.parametrize(
    ("bits", "message"), [(1 << 47, "0b001"), (1 << 53, "must be 0"), (3 << 61, "unknown swizzle")]
)
def test_matrix_descriptors_are_strict(module: Module, bits: int, message: str) -> None:
    product, _ = plain("f16", "f16", "f16")
    tile = product.b[0]
    tile.descriptor = lambda: core.Tile.descriptor(tile) | bits
    with pytest.raises(BadDescriptor, match=message):
        core.execute(module, product)


def broken(module: Module, old: str, new: str, **how: Any) -> Any:
    """Runs a product whose PTX has been changed."""
    product, _ = plain("f16", "f16", "f16", **how)
    original = product.ptx()
    assert old in original
    product.ptx = lambda: original.replace(old, new)
    for seed in range(10):
        core.execute(module, product, seed)


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], 512;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 512;"
LAST_WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r9], 0; @!%p4 bra $issued;"

# What is replaced, by what, and the error.
MISTAKES: dict[str, tuple[str, str, type[Exception], str]] = {
    "nothing is deallocated": (DEALLOC, "", TensorMemoryMisuse, "512 columns .* allocated"),
    "half is deallocated": (DEALLOC, DEALLOC.replace("512", "256"), TensorMemoryMisuse, "not what was allocated"),
    "too little is allocated": (ALLOC, ALLOC.replace("512", "32"), OutOfBounds, "column 32 is not allocated"),
    "not a power of two": (ALLOC, ALLOC.replace("512", "48"), TensorMemoryMisuse, "48 columns"),
    "nobody waits": (LAST_WAIT, "", ExecutionError, "never written|in flight|has not completed"),
    "an operand changes": ("tcgen05.commit", "st.shared.u32 [%r4], 0; tcgen05.commit", Race, "may still read it"),
    "a sum of nothing": (
        "setp.ne.u32 %p2, 0, 0;",
        "setp.eq.u32 %p2, 0, 0;",
        Uninitialised,
        "reads D from tensor memory",
    ),
    "two groups": (
        RELINQUISH,
        RELINQUISH.replace("group::1", "group::2"),
        TensorMemoryMisuse,
        "cta_group::2 after cta_group::1",
    ),
    "allocation after all": (RELINQUISH, RELINQUISH + ALLOC, TensorMemoryMisuse, "after .*relinquish"),
    "lanes of another warp": (
        "add.u32 %r10, %r7, %r17;",
        "add.u32 %r10, %r7, 0x200000;",
        OutOfBounds,
        "warp [023] may access lanes",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(module: Module, mistake: str) -> None:
    old, new, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        broken(module, old, new)


@pytest.mark.parametrize(
    "text",
    [
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %d1, %d2, [%r2], %r3, %p1;",
        "tcgen05.mma.ws.sp.cta_group::1.kind::i8 [%r1], %d1, %d2, [%r2], %r3, %p1;",
        "tcgen05.mma.cta_group::1.kind::f16.ashift [%r1], [%r2], %d2, %r3, %p1;",
    ],
)
def test_what_is_not_simulated_is_refused(module: Module, text: str) -> None:
    with pytest.raises(UnknownInstruction, match="not simulated"):
        Image.from_ptx(module(text, target="sm_100a"), arch="sm_100a")


def test_it_exists_on_sm_100a_only(module: Module) -> None:
    with pytest.raises(UnknownInstruction, match="exists on sm_100a"):
        Image.from_ptx(module("tcgen05.wait::ld.sync.aligned;"))
