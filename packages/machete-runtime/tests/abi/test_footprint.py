"""Footprints against sets of bytes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.abi.tensor import TensorInfo


def elements(footprint: Footprint) -> list[range]:
    """The bytes of each element."""
    indices = itertools.product(*map(range, footprint.shape))
    starts = (
        footprint.address + sum(i * s for i, s in zip(index, footprint.strides, strict=True)) for index in indices
    )
    return [range(start, start + footprint.itemsize) for start in starts]


def touched(footprint: Footprint) -> set[int]:
    return {byte for element in elements(footprint) for byte in element}


@st.composite
def footprints(draw):
    """Any strides, in elements of 1, 2 or 4 bytes, at any byte address."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 14)) * itemsize for _ in shape]
    return Footprint(draw(st.integers(0, 40)), tuple(shape), tuple(strides), itemsize)


@given(footprints(), footprints())
def test_overlaps_says_whether_some_byte_is_common(one, other):
    assert one.overlaps(other) == other.overlaps(one) == bool(touched(one) & touched(other))


@given(footprints())
def test_self_overlapping_says_whether_two_elements_share_a_byte(footprint):
    assert footprint.self_overlapping() == (len(touched(footprint)) < sum(map(len, elements(footprint))))


@given(footprints())
def test_span_is_the_first_byte_and_the_one_after_the_last(footprint):
    begin, end = footprint.span
    assert (
        touched(footprint) == set()
        if begin == end
        else (min(touched(footprint)), max(touched(footprint)) + 1) == (begin, end)
    )


@st.composite
def slices(draw, extent):
    begin = draw(st.integers(0, extent - 1))
    return slice(begin, draw(st.integers(begin + 1, extent)), draw(st.integers(1, 3)))


@given(st.data())
def test_slices_and_transposes_of_one_tensor_are_decided_exactly(data):
    base = torch.arange(5 * 6 * 7).reshape(5, 6, 7)
    views = [
        base[tuple(data.draw(slices(extent)) for extent in base.shape)].permute(data.draw(st.permutations(range(3))))
        for _ in range(2)
    ]
    one, other = (TensorInfo.of("x", view) for view in views)
    common = set(views[0].flatten().tolist()) & set(views[1].flatten().tolist())
    assert one.overlaps(other) == bool(common)
    assert not one.self_overlapping()


ROWS, COLUMNS = 1 << 20, 1 << 12
LARGE = Footprint(1 << 40, (ROWS, COLUMNS), (COLUMNS * 2, 2), 2)


def columns(begin: int, end: int, step: int = 1) -> Footprint:
    return Footprint(LARGE.address + begin * 2, (ROWS, -(-(end - begin) // step)), (COLUMNS * 2, step * 2), 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param(columns(0, 2048), columns(2048, 4096), False, id="left and right half"),
        pytest.param(columns(0, 2049), columns(2048, 4096), True, id="one common column"),
        pytest.param(columns(0, 4096, 2), columns(1, 4096, 2), False, id="even and odd columns"),
        pytest.param(columns(0, 4096, 2), columns(2, 4096, 4), True, id="every second and every fourth column"),
        pytest.param(columns(0, 4096, 2), columns(1, 4096, 4), False, id="even columns and every fourth odd one"),
        pytest.param(columns(5, 6), LARGE, True, id="one column of a tensor"),
        pytest.param(
            Footprint(LARGE.address, (ROWS // 2, COLUMNS), (COLUMNS * 4, 2), 2),
            Footprint(LARGE.address + COLUMNS * 2, (ROWS // 2, COLUMNS), (COLUMNS * 4, 2), 2),
            False,
            id="even and odd rows",
        ),
    ],
)
@pytest.mark.timeout(10)  # by trying all, it would take minutes
def test_large_slices_are_decided_exactly_and_at_once(one, other, expected):
    assert one.overlaps(other) == other.overlaps(one) == expected


@pytest.mark.timeout(10)
def test_when_unsure_the_answer_is_yes():
    """n steps of about 3000 bytes reach 3001·n plus an even number up to 22·n, so never 100·3001 + 1; but that is
    a sum of four strides in too many ways to try."""
    one = Footprint(0, (200, 200, 200, 200), (3023, 3019, 3011, 3001), 1)
    other = Footprint(100 * 3001 + 1, (), (), 1)
    assert one.overlaps(other)


def test_odd_and_even_addresses_are_told_apart_however_many_sums_there_are():
    one = Footprint(0, (200, 200, 200, 200), (6046, 6038, 6022, 6002), 1)
    assert not one.overlaps(Footprint(200 * 3001 + 1, (), (), 1))
