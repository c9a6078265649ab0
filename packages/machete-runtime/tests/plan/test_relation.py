"""Which groups of tiles meet, against brute force over elements; and how finely ops are cut."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.plan.grouping import Grouping
from machete.megakernel.plan.relation import TiledAccess, TiledAxis, cut, meeting


def access(address: int, shape: tuple[int, ...], strides: tuple[int, ...], sizes: dict[int, int]) -> TiledAccess:
    """Elements of 4 bytes; `sizes` maps axes to tile sizes, in the order of the tiled dims."""
    axes = tuple(TiledAxis(axis, dim, size) for dim, (axis, size) in enumerate(sizes.items()))
    tiles = tuple(-(-shape[axis] // size) for axis, size in sizes.items())
    return TiledAccess(Footprint(4 * address, shape, tuple(4 * s for s in strides), 4), axes, tiles)


def elements(one: TiledAccess, grouping: Grouping) -> list[set[int]]:
    """For each group the addresses of its elements."""
    tiles = np.arange(grouping.num_tiles)
    found: list[set[int]] = [set() for _ in range(grouping.count)]
    for tile, group in zip(tiles.tolist(), grouping.of(tiles).tolist(), strict=True):
        index = np.unravel_index(tile, grouping.tiles)
        ranges = [range(extent) for extent in one.footprint.shape]
        for tiled in one.axes:
            first = int(index[tiled.dim]) * tiled.size
            ranges[tiled.axis] = range(first, min(first + tiled.size, one.footprint.shape[tiled.axis]))
        found[group] |= {
            one.footprint.address + sum(i * s for i, s in zip(point, one.footprint.strides, strict=True))
            for point in itertools.product(*ranges)
        }
    return found


def brute_force(one: TiledAccess, one_groups: Grouping, other: TiledAccess, other_groups: Grouping) -> np.ndarray:
    mine, theirs = elements(one, one_groups), elements(other, other_groups)
    return np.array([[bool(a & b) for b in theirs] for a in mine])


def view(draw: random.Random, aligned: bool) -> TiledAccess:
    """A matrix, tiled along some of its dims: a slice of one 16 × 16 matrix, or any strided view."""
    rows, columns = draw.randint(1, 8), draw.randint(1, 8)
    if aligned:
        strides, address = (16, 1), 16 * draw.randint(0, 8) + draw.randint(0, 8)
    else:
        strides = draw.choice([(16, 1), (8, 1), (1, 8), (1, 16), (32, 2), (columns, 1), (12, 3), (0, 1)])
        address = draw.randint(0, 40)
    axes = draw.choice([(0,), (1,), (0, 1), (1, 0)])
    return access(address, (rows, columns), strides, {axis: draw.randint(1, 4) for axis in axes})


def grouped(draw: random.Random, one: TiledAccess) -> Grouping:
    return Grouping(one.tiles, tuple(draw.randint(1, n) for n in one.tiles))


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.booleans())
def test_groups_that_share_an_element_meet_and_among_slices_no_others(seed, aligned):
    draw = random.Random(seed)
    one, other = view(draw, aligned), view(draw, aligned)
    one_groups, other_groups = grouped(draw, one), grouped(draw, other)
    found = meeting(one, one_groups, other, other_groups)
    exact = brute_force(one, one_groups, other, other_groups)
    assert not (exact & ~found).any(), "common elements are missed"
    if aligned:
        assert (found == exact).all(), "slices of one matrix are decided exactly"


MATRIX = {"address": 0, "shape": (12, 16), "strides": (16, 1)}
FLAT = {"address": 0, "shape": (192,), "strides": (1,)}


@pytest.mark.parametrize(
    ("producer", "consumer", "mine", "theirs"),
    [
        pytest.param(access(**FLAT, sizes={0: 8}), access(**FLAT, sizes={0: 8}), {0: 1}, {0: 1}, id="tile by tile"),
        pytest.param(access(**FLAT, sizes={0: 8}), access(**FLAT, sizes={0: 24}), {0: 3}, {0: 1}, id="three by one"),
        pytest.param(access(**FLAT, sizes={0: 24}), access(**FLAT, sizes={0: 8}), {0: 1}, {0: 3}, id="one by three"),
        pytest.param(access(**FLAT, sizes={0: 8}), access(**FLAT, sizes={0: 12}), {0: 1}, {0: 1}, id="two by three"),
        pytest.param(
            access(**MATRIX, sizes={0: 2, 1: 4}), access(**MATRIX, sizes={0: 4}), {0: 2}, {0: 1}, id="row blocks"
        ),
        pytest.param(access(**MATRIX, sizes={0: 2, 1: 4}), access(**MATRIX, sizes={1: 8}), {1: 2}, {0: 1}, id="heads"),
        pytest.param(access(**MATRIX, sizes={0: 2}), access(**MATRIX, sizes={1: 4}), {}, {}, id="rows and columns"),
        pytest.param(
            access(**MATRIX, sizes={0: 2}), access(**FLAT, sizes={0: 16}), {0: 1}, {0: 1}, id="rows and flat tiles"
        ),
        pytest.param(access(**FLAT, sizes={0: 8}), access(**FLAT, sizes={}), {}, {}, id="all of it"),
        pytest.param(access(**FLAT, sizes={0: 8}), access(64, (64,), (1,), sizes={}), {0: 8}, {}, id="a third of it"),
        pytest.param(
            access(**MATRIX, sizes={0: 2, 1: 4}),
            access(0, (16, 12), (1, 16), sizes={1: 2}),
            {0: 1},
            {0: 1},
            id="rows of a transposed matrix",
        ),
    ],
)
def test_ops_are_cut_as_finely_as_their_relation_needs(producer, consumer, mine, theirs):
    found = cut(((producer, consumer),))
    assert (dict(found.producer), dict(found.consumer)) == (mine, theirs)
    assert found.whole == (not mine and not theirs)


def test_what_two_tensors_need_together_is_not_cut_apart():
    """A gated unit reads the gate half and the up half of one matrix: each row block needs all of its columns."""
    matrix = access(**MATRIX, sizes={0: 2, 1: 4})
    gate, up = (access(first, (12, 8), (16, 1), sizes={0: 4}) for first in (0, 8))
    assert cut(((matrix, gate),)).producer == ((1, 2), (0, 2))
    assert cut(((matrix, gate), (matrix, up))).producer == ((0, 2),)
