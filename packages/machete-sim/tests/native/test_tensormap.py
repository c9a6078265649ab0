"""Tensor maps and tile geometry against recorded descriptors and a byte-by-byte reference."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from machete.sim._core import engine

BASE = 0x7F0000100000
SHARED = 0x400


def raw_map(**fields: Any) -> NDArray[np.uint8]:
    """A 64 x 48 bf16 tensor with a row pitch of 256 bytes, box 16 x 8; `fields` replace its parts."""
    defaults: dict[str, Any] = {
        "base": BASE,
        "dtype": 10,
        "dim": [64, 48],
        "stride": [2, 256],
        "box": [16, 8],
        "elem_stride": [1, 1],
        "swizzle": 0,
    }
    return engine.encode_tensormap(**(defaults | fields))


def from_words(*words: int) -> NDArray[np.uint8]:
    """The 64 defined bytes of a descriptor, the driver's own half set to anything."""
    return np.concatenate([np.array(words, np.uint64).view(np.uint8), np.full(64, 0xA7, np.uint8)])


# Words q0..q7 as two authors wrote them, and what they were asked for.
RECORDED = {
    "driver 580.159, bf16, rank 4": (
        (0x7F9BC8801FF0, 0x100004530, 0x400000203, 0, 0xB78001F45C81, 0x1F0000013A, 0x0700001600000000, 0xA43D16),
        {
            "rank": 4,
            "elem_bits": 16,
            "dim": [32791682, 46977, 315, 32],
            "stride": [2, 16, 8240, 64],
            "box": [8, 23, 62, 165],
            "elem_stride": [7, 3, 1, 1],
            "swizzle": 64,
        },
    ),
    "driver 580.159, f16, rank 3, L2 promotion, strides past 4 GiB": (
        (0x7F9BC8800D10, 0x5C341B8800040320, 0x95, 0x0, 0x14850000001D, 0x39, 0x1F00008000000000, 0x43A0),
        {
            "rank": 3,
            "dim": [30, 5254, 58],
            "stride": [2, 24750700672, 2384],
            "box": [32, 161, 68],
            "elem_stride": [1, 1, 3],
        },
    ),
    "CuTe DSL 4.8.1, bf16 64x128, box 16x8": (
        (0x55E47A7DCB00, 0x1000040512, 0, 0, 0x3F0000007F, 0, 0x0F00000000000000, 0x7),
        {"rank": 2, "elem_bits": 16, "dim": [128, 64], "stride": [2, 256], "box": [16, 8], "swizzle": 0},
    ),
    "CuTe DSL 4.8.1, f16 64x128, box 64x8, 128B swizzle": (
        (0x55E47CB73200, 0x1000046312, 0, 0, 0x3F0000007F, 0, 0x3F00000000000000, 0x7),
        {"rank": 2, "elem_bits": 16, "dim": [128, 64], "stride": [2, 256], "box": [64, 8], "swizzle": 128},
    ),
    "CuTe DSL 4.8.1, f16 64x128, box 16x8, 32B swizzle": (
        (0x55E47C2EB000, 0x1000042312, 0, 0, 0x3F0000007F, 0, 0x0F00000000000000, 0x7),
        {"rank": 2, "elem_bits": 16, "dim": [128, 64], "stride": [2, 256], "box": [16, 8], "swizzle": 32},
    ),
    "CuTe DSL 4.8.1, f16 256x256 (128 KiB), box 64x8": (
        (0x55E47D9CF300, 0x2000240312, 0, 0, 0xFF000000FF, 0, 0x3F00000000000000, 0x7),
        {"rank": 2, "elem_bits": 16, "dim": [256, 256], "stride": [2, 512], "box": [64, 8], "swizzle": 0},
    ),
    "CuTe DSL 4.8.1, e2m1 64x128, box 128x8": (
        (0x55E47B08D500, 0x400040592, 0, 0, 0x3F0000007F, 0, 0x7F00000000000000, 0x7),
        {"rank": 2, "elem_bits": 4, "dim": [128, 64], "stride": [0, 64], "box": [128, 8], "swizzle": 0},
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_decodes_what_others_encode(name: str) -> None:
    words, expected = RECORDED[name]
    got = engine.decode_tensormap(from_words(*words))
    assert {key: got[key] for key in expected} == expected
    assert got["base"] == words[0]
    fields = ("base", "dtype", "dim", "stride", "box", "elem_stride", "swizzle")
    hints = 1 << 1 | 3 << 17 | 1 << 21  # not kept
    again = engine.encode_tensormap(*(got[field] for field in fields))[:64].view(np.uint64)
    assert [int(word) for word in again] == [words[0], words[1] & ~hints, *words[2:]]


DTYPES = {0: 8, 1: 16, 2: 32, 3: 32, 4: 64, 5: 64, 6: 16, 7: 32, 9: 64, 10: 16, 11: 4}


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(sorted(DTYPES)))

    def per_dimension(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    stride = [16 * s for s in per_dimension(1, 2**36 - 1)]
    stride[0] = DTYPES[dtype] // 8
    return {
        "base": 16 * draw(st.integers(1, 2**40)),
        "dtype": dtype,
        "dim": per_dimension(1, 2**32),
        "stride": stride,
        "box": per_dimension(1, 256),
        "elem_stride": per_dimension(1, 8),
        "swizzle": draw(st.sampled_from([0, 32, 64, 128])),
    }


@given(descriptions())
def test_encode_and_decode_are_inverse(fields: dict[str, Any]) -> None:
    got = engine.decode_tensormap(engine.encode_tensormap(**fields))
    assert got == fields | {"rank": len(fields["dim"]), "elem_bits": DTYPES[fields["dtype"]]}


@pytest.mark.parametrize(
    ("word", "bit", "reason"),
    [
        (1, 0, "unknown bits"),
        (1, 11, "interleaved"),
        (1, 15, "NaN fill"),
        (1, 16, "data type"),
        (1, 19, "swizzle atoms"),
        (1, 20, "unknown bits"),
        (1, 22, "unknown bits"),
        (3, 48, "reserved"),
        (6, 47, "reserved"),
        (7, 40, "reserved"),
    ],
)
def test_refuses_what_it_cannot_execute(word: int, bit: int, reason: str) -> None:
    raw = raw_map()
    raw[8 * word + bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=reason):
        engine.decode_tensormap(raw)


def test_refuses_types_ranks_and_null() -> None:
    for dtype in (8, 14, 15):
        with pytest.raises(ValueError, match="data type"):
            engine.decode_tensormap(raw_map(dtype=dtype))
    raw = raw_map()
    raw[8] |= 0x50
    with pytest.raises(ValueError, match="rank 6"):
        engine.decode_tensormap(raw)
    with pytest.raises(ValueError, match="null"):
        engine.decode_tensormap(np.zeros(128, np.uint8))


@pytest.mark.parametrize(
    ("fields", "coords", "shared", "store", "reason"),
    [
        ({}, [0, 0], SHARED + 64, False, "multiple of 128"),
        ({"base": BASE + 8}, [0, 0], SHARED, False, "global address"),
        ({"box": [12, 8]}, [0, 0], SHARED, False, "multiple of 16 bytes"),
        ({"swizzle": 32, "box": [32, 8]}, [0, 0], SHARED, False, "longer than its swizzle"),
        ({}, [4, 0], SHARED, False, "innermost coordinate"),
        ({}, [0, -1], SHARED, True, "negative"),
        ({}, [-8, 0], SHARED, True, "negative"),
    ],
)
def test_what_the_hardware_faults_on(
    fields: dict[str, Any], coords: list[int], shared: int, store: bool, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        engine.check_tma(raw_map(**fields), coords, shared, store=store)


def test_loads_may_start_before_the_tensor_and_any_128_bytes() -> None:
    engine.check_tma(raw_map(swizzle=128), [-8, -3], SHARED + 128)
    engine.check_tma(raw_map(), [0, 100], SHARED, store=True)


def expected_bytes(fields: dict[str, Any], coords: list[int], shared: int, store: bool) -> dict[int, int | None]:
    """Shared address -> global address (None: out of bounds) of every byte of a tile, from the definition."""
    bits, swizzle = DTYPES[fields["dtype"]], fields["swizzle"]
    counts = [-(-b // s) for b, s in zip(fields["box"], fields["elem_stride"], strict=True)]
    row_bytes = fields["box"][0] * bits // 8
    extent_bytes = fields["dim"][0] * bits // 8
    start = coords[0] * bits // 8
    pitch = max(row_bytes, swizzle)
    out: dict[int, int | None] = {}
    rows = itertools.product(*(range(n) for n in reversed(counts[1:])))
    for number, reversed_row in enumerate(rows):
        position = [
            c + i * s for c, i, s in zip(coords[1:], reversed_row[::-1], fields["elem_stride"][1:], strict=True)
        ]
        inside = all(0 <= p < d for p, d in zip(position, fields["dim"][1:], strict=True))
        row = fields["base"] + sum(p * s for p, s in zip(position, fields["stride"][1:], strict=True))
        for byte in range(row_bytes):
            x = start + byte
            limit = -(-extent_bytes // 16) * 16 if store else extent_bytes
            line, column = divmod(shared + number * pitch + byte, 128)
            chunks = max(swizzle // 16, 1)
            span, chunk = divmod(column // 16, chunks)
            address = line * 128 + (span * chunks + (chunk ^ line % chunks)) * 16 + column % 16
            assert address not in out
            out[address] = row + x if inside and 0 <= x < limit else None
    return out


@st.composite
def tiles(draw: st.DrawFn) -> tuple[dict[str, Any], list[int], int, bool]:
    rank = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([0, 2, 10, 4, 11]))
    bits = DTYPES[dtype]
    per_unit = 128 // bits  # elements in 16 bytes
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    units = draw(st.integers(1, swizzle // 16 if swizzle else min(10, 256 // per_unit)))
    store = draw(st.booleans())
    box = [units * per_unit, *draw(st.lists(st.integers(1, 5), min_size=rank - 1, max_size=rank - 1))]
    dim = draw(st.lists(st.integers(1, 40), min_size=rank, max_size=rank))
    if bits == 4:
        dim[0] += dim[0] % 2
    stride = [bits // 8, *(16 * draw(st.integers(1, 20)) for _ in range(rank - 1))]
    low = 0 if store else -2
    coords = [per_unit * draw(st.integers(low, 4)), *(draw(st.integers(low, 6)) for _ in range(rank - 1))]
    fields = {
        "base": BASE,
        "dtype": dtype,
        "dim": dim,
        "stride": stride,
        "box": box,
        "elem_stride": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
        "swizzle": swizzle,
    }
    fields["elem_stride"][0] = 1
    return fields, coords, SHARED + 128 * draw(st.integers(0, 9)), store


@settings(max_examples=200, deadline=None)
@given(tiles())
def test_every_byte_of_a_tile_once(tile: tuple[dict[str, Any], list[int], int, bool]) -> None:
    fields, coords, shared, store = tile
    raw = engine.encode_tensormap(**fields)
    engine.check_tma(raw, coords, shared, store=store)
    got: dict[int, int | None] = {}
    for address, at, length, oob in engine.tile_chunks(raw, coords, shared, store=store):
        assert length > 0
        for byte in range(length):
            assert at + byte not in got
            got[at + byte] = None if oob else address + byte
    expected = expected_bytes(fields, coords, shared, store)
    assert got == expected
    assert engine.tile_bytes(raw) == len(expected)


def test_rows_shorter_than_the_swizzle_leave_gaps() -> None:
    """Seen on an H200: 48-byte rows with the 128-byte swizzle lie 128 bytes apart, and only the 48 are counted."""
    raw = raw_map(dtype=0, stride=[1, 256], box=[48, 3], swizzle=128)
    chunks = engine.tile_chunks(raw, [0, 0], SHARED)
    assert [chunk[1:3] for chunk in chunks] == [
        (SHARED, 48),
        (SHARED + 128 + 16, 16),
        (SHARED + 128, 16),
        (SHARED + 128 + 48, 16),
        (SHARED + 256 + 32, 32),
        (SHARED + 256, 16),
    ]
    assert engine.tile_bytes(raw) == 144


def test_stores_write_whole_sixteen_byte_units() -> None:
    """Seen on an H200: an extent of 9 elements of 2 bytes is loaded as 18 bytes, but stored as 32."""
    raw = raw_map(dim=[9, 4], box=[16, 1])
    assert [(c[2], c[3]) for c in engine.tile_chunks(raw, [0, 0], SHARED)] == [(18, False), (14, True)]
    assert [(c[2], c[3]) for c in engine.tile_chunks(raw, [0, 0], SHARED, store=True)] == [(32, False)]


def test_unswizzled_rows_stay_whole() -> None:
    chunks = engine.tile_chunks(raw_map(box=[64, 3]), [0, 1], SHARED)
    assert chunks == [(BASE + 256 * (i + 1), SHARED + 128 * i, 128, False) for i in range(3)]
