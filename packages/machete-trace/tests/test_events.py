"""Events as the kernel writes them, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from machete.trace.events import TYPE_BITS, expanded, tag


@pytest.mark.parametrize("role", ["compute", "multiplier"])
def test_a_stage_tells_of_its_wait(role: str) -> None:
    cycles = np.array([100, 250, 900], dtype=np.int64)
    words = np.array([tag("stage"), tag("stage") | 120 << TYPE_BITS, tag("compute", ends=True)], dtype=np.uint32)
    times, tags = expanded(role, cycles, words)
    assert times.tolist() == [100, 130, 250, 250, 900]
    names = [tag("stage"), tag("data"), tag("data", ends=True), tag("stage"), tag("compute", ends=True)]
    assert tags.tolist() == names


def test_the_longest_wait_is_not_taken_for_a_negative_one() -> None:
    words = np.array([tag("stage") | ((1 << (32 - TYPE_BITS)) - 1) << TYPE_BITS], dtype=np.uint32)
    times, _ = expanded("compute", np.array([1 << 27], dtype=np.int64), words)
    assert times.tolist() == [(1 << 26) + 1, 1 << 27, 1 << 27]


def test_other_roles_and_no_events_stay_as_they_are() -> None:
    words = np.array([tag("stage"), tag("load", ends=True)], dtype=np.uint32)
    times, tags = expanded("loader", np.array([1, 2]), words)
    assert (times.tolist(), tags.tolist()) == ([1, 2], words.tolist())
    times, tags = expanded("compute", np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint32))
    assert (len(times), len(tags)) == (0, 0)
