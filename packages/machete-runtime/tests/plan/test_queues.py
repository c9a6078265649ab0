"""Queues of tile ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machete.megakernel.plan.queues import Queues, build_queues


def tiles_of(queues: Queues, op: int) -> list[int]:
    """Every tile of an op that some SM runs."""
    return [
        first + i * step for row_op, first, count, step in queues.rows.tolist() for i in range(count) if row_op == op
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 9))
def test_every_tile_runs_exactly_once(tiles, num_sms):
    queues = build_queues(tiles, num_sms)
    for op, total in enumerate(tiles):
        assert sorted(tiles_of(queues, op)) == list(range(total))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 9))
def test_each_sm_runs_ops_in_list_order_and_an_even_share_of_all_tiles(tiles, num_sms):
    queues = build_queues(tiles, num_sms)
    assert queues.num_sms == num_sms
    for sm in range(num_sms):
        ops = queues.of_sm(sm)[:, 0].tolist()
        assert ops == sorted(set(ops)), "one range per op"
    per_sm = queues.tiles_per_sm()
    assert per_sm.sum() == sum(tiles)
    assert per_sm.max() - per_sm.min() <= 1, "partial waves fall on different SMs"
    assert queues.ranges_per_op(len(tiles)).tolist() == [min(total, num_sms) for total in tiles]


def test_an_op_with_no_tiles_has_no_instruction():
    assert build_queues([0], 4).rows.shape == (0, 4)


@pytest.mark.parametrize("tiles", [132, 2**21, 2**31 - 1])
def test_the_number_of_instructions_does_not_follow_the_number_of_tiles(tiles):
    queues = build_queues([tiles], 132)
    assert len(queues.rows) == 132
    assert queues.tiles_per_sm().sum() == tiles


def test_tables_are_int32_and_equal_queues_compare_equal():
    one, same, other = build_queues([7, 3], 4), build_queues([7, 3], 4), build_queues([7, 4], 4)
    assert one.begin.dtype == one.rows.dtype == np.int32
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
