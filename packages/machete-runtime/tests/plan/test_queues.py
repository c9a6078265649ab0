"""Queues of tile ranges: dealt to SMs, or to be fetched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machete.megakernel.plan.grouping import Grouping
from machete.megakernel.plan.queues import COUNT, FIRST, OP, STEP, Queues, Ranges, chunks, deal, joined

tilings = st.lists(st.integers(1, 7), min_size=1, max_size=3).flatmap(
    lambda tiles: st.tuples(*(st.integers(1, n) for n in tiles)).map(lambda block: Grouping(tuple(tiles), block))
)


def whole(tiles: int) -> Grouping:
    return Grouping.whole((tiles,))


def equal(grouping: Grouping, num_sms: int, start: int = 0) -> Ranges:
    """Dealt to SMs that are all free."""
    return deal(grouping, np.zeros(num_sms), np.zeros(num_sms), start, 1.0, blocked=False)


def in_turn(tiles: list[int], num_sms: int) -> Queues:
    """Ops of equal tiles that do not depend on each other, one after another."""
    busy, ranges, start = np.zeros(num_sms), [], 0
    for total in tiles:
        ranges.append(deal(whole(total), busy, busy, start, 1.0, blocked=False))
        busy = busy + np.bincount(ranges[-1].sm, ranges[-1].count, num_sms)
        start = (start + total) % num_sms
    return joined(ranges, num_sms)[0]


def tiles_of(ranges: Ranges) -> list[int]:
    table = zip(ranges.first.tolist(), ranges.count.tolist(), ranges.step.tolist(), strict=True)
    return [first + i * step for first, count, step in table for i in range(count)]


@given(tilings, st.lists(st.integers(0, 9), min_size=1, max_size=9), st.booleans())
def test_every_tile_is_dealt_once_and_no_range_crosses_a_group(grouping, busy, blocked):
    available = np.array(busy, dtype=float)
    ranges = deal(grouping, available, available, 0, 1.5, blocked)
    assert sorted(tiles_of(ranges)) == list(range(grouping.num_tiles))
    assert set(ranges.sm.tolist()) <= set(range(len(busy)))
    for first, count, step, group in zip(ranges.first, ranges.count, ranges.step, ranges.group, strict=True):
        assert set(grouping.of(first + np.arange(count) * step).tolist()) == {group}


@given(tilings, st.integers(1, 9))
def test_chunks_are_the_tiles_in_order_of_groups(grouping, size):
    ranges = chunks(grouping, size)
    assert sorted(tiles_of(ranges)) == list(range(grouping.num_tiles))
    assert ranges.group.tolist() == sorted(ranges.group.tolist())
    assert ranges.count.max() <= size
    assert not ranges.sm.any(), "one queue"


@given(tilings, st.integers(1, 9), st.integers(1, 40))
def test_merged_groups_keep_within_their_instructions(grouping, num_sms, rows):
    merged = grouping.bounded(num_sms, rows)
    ranges = equal(merged, num_sms)
    assert len(ranges.first) <= merged.most_rows(num_sms)
    assert merged.count == 1 or merged.most_rows(num_sms) <= rows
    tiles = np.arange(grouping.num_tiles)
    pairs = set(zip(grouping.of(tiles).tolist(), merged.of(tiles).tolist(), strict=True))
    assert len(pairs) == grouping.count or grouping.count > merged.count, "groups are merged, not cut"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 9))
def test_each_sm_runs_ops_in_list_order_and_an_even_share_of_all_tiles(tiles, num_sms):
    queues = in_turn(tiles, num_sms)
    assert queues.count == num_sms
    for sm in range(num_sms):
        ops = queues.of_sm(sm)[:, OP].tolist()
        assert ops == sorted(set(ops)), "one range per op"
    per_sm = queues.tiles_per_queue()
    assert per_sm.sum() == sum(tiles)
    assert per_sm.max() - per_sm.min() <= 1, "partial waves fall on different SMs"
    assert queues.ranges_per_op(len(tiles)).tolist() == [min(total, num_sms) for total in tiles]


def test_sms_that_are_behind_catch_up_with_neighbouring_tiles():
    available = np.array([10.0, 0.0, 5.0])
    ranges = deal(whole(12), available, available, 0, 1.0, blocked=False)
    end = available + np.bincount(ranges.sm, ranges.count)
    assert end.tolist() == [10, 9, 8], "12 tiles for the two that are behind"
    assert len(ranges.sm) <= 4
    ranges = deal(whole(20), available, available, 0, 1.0, blocked=False)
    assert sorted(available + np.bincount(ranges.sm, ranges.count)) == [11, 12, 12]


def test_unequal_ops_balance():
    """A long op on two of four SMs: the next op goes to the others first."""
    busy = np.array([8.0, 8.0, 0.0, 0.0])
    ranges = deal(whole(8), busy, busy, 0, 2.0, blocked=False)
    assert (busy + 2.0 * np.bincount(ranges.sm, ranges.count, 4)).tolist() == [8, 8, 8, 8]


def test_ranges_with_state_are_neighbours():
    ranges = deal(Grouping((10,), (5,)), np.zeros(4), np.zeros(4), 0, 1.0, blocked=True)
    table = sorted(zip(ranges.first.tolist(), ranges.count.tolist(), ranges.sm.tolist(), strict=True))
    assert table == [(0, 3, 0), (3, 2, 1), (5, 1, 1), (6, 2, 2), (8, 2, 3)]


def test_an_op_with_no_tiles_has_no_instruction():
    assert in_turn([0], 4).rows.shape == (0, 7)


@pytest.mark.parametrize("tiles", [132, 2**21, 2**31 - 1])
def test_the_number_of_instructions_does_not_follow_the_number_of_tiles(tiles):
    queues = in_turn([tiles], 132)
    assert len(queues.rows) == 132
    assert queues.tiles_per_queue().sum() == tiles


@pytest.mark.parametrize(
    ("tiles", "block", "rows"),
    [
        pytest.param((4, 6), (1, 6), [(0, 6, 1), (6, 6, 1), (12, 6, 1), (18, 6, 1)], id="row blocks are contiguous"),
        pytest.param((4, 3), (4, 1), [(0, 4, 3), (1, 4, 3), (2, 4, 3)], id="columns are strided"),
        pytest.param((2, 4), (2, 2), [(0, 2, 1), (2, 2, 1), (4, 2, 1), (6, 2, 1)], id="boxes are lines"),
        pytest.param((3, 2, 2), (3, 1, 2), [(0, 3, 4), (1, 3, 4), (2, 3, 4), (3, 3, 4)], id="heads in the middle"),
    ],
)
def test_groups_of_several_dims(tiles, block, rows):
    ranges = equal(Grouping(tiles, block), 1)
    assert sorted(zip(ranges.first.tolist(), ranges.count.tolist(), ranges.step.tolist(), strict=True)) == rows


def test_tables_are_int32_and_equal_queues_compare_equal():
    one, same, other = in_turn([7, 3], 4), in_turn([7, 3], 4), in_turn([7, 4], 4)
    assert one.begin.dtype == one.rows.dtype == np.int32
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.rows[:, [FIRST, COUNT, STEP]].min() >= 0


@given(
    tiles=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    length=st.integers(1, 12),
    num_sms=st.integers(1, 7),
)
def test_panels_hand_out_every_tile_once(tiles: list[int], axis: int, length: int, num_sms: int) -> None:
    grouping = Grouping.whole(tuple(tiles))
    lines = grouping.panels(axis % len(tiles), length)
    ranges = deal(grouping, np.zeros(num_sms), np.zeros(num_sms), 0, 1.0, False, lines)
    assert sorted(tiles_of(ranges)) == list(range(grouping.num_tiles))


def test_tiles_of_a_panel_run_side_by_side() -> None:
    """Six SMs and panels of three rows: two columns of a panel at a time."""
    grouping = Grouping.whole((4, 4))
    ranges = deal(grouping, np.zeros(6), np.zeros(6), 0, 1.0, False, grouping.panels(0, 3))
    first = [ranges.first[ranges.sm == sm][0] for sm in range(6)]
    assert [divmod(int(tile), 4) for tile in first] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
