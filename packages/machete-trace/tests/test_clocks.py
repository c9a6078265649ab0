"""SM clocks with known offsets and rates are aligned to one time."""

from __future__ import annotations

import numpy as np
import pytest

from machete.trace.buffer import HEADER_WORDS, SAMPLE_WORD, SAMPLE_WORDS
from machete.trace.clocks import aligned


@pytest.mark.parametrize("epoch", [0, 1_796_000_000 * 10**9])  # a GPU's timer counts from 1970
@pytest.mark.parametrize("start", [0, 2**32 - 1000, 123456789])
def test_clocks_are_aligned(start: int, epoch: int) -> None:
    """Clocks of 1.5 to 1.98 GHz, one of which wraps, timer steps of 32 ns, and 60 cycles between two reads."""
    gigahertz = np.array([1.5, 1.755, 1.98])
    offsets = np.array([start, start + 77, 5])
    headers = np.zeros((3, HEADER_WORDS), dtype=np.int64)
    samples = headers[:, SAMPLE_WORD : SAMPLE_WORD + 2 * SAMPLE_WORDS].reshape(3, 2, SAMPLE_WORDS)
    for number, moment in enumerate((3200, 403200)):
        clock = (offsets + np.round(moment * gigahertz)).astype(np.int64)
        samples[:, number, 0] = epoch + moment
        samples[:, number, 1] = ((clock - 30) & 0xFFFFFFFF) | ((clock + 30) & 0xFFFFFFFF) << 32
        samples[:, number, 2] = 17 | 32 << 32
    first_clock, first_time, rate, alignment = aligned(headers)
    assert np.allclose(rate, 1 / gigahertz, rtol=1e-5)
    for moment in (5000, 200000, 390000):
        clock = (offsets + np.round(moment * gigahertz)).astype(np.int64) & 0xFFFFFFFF
        since = (clock - first_clock.astype(np.int64)) & 0xFFFFFFFF
        assert np.allclose(3200 + first_time + rate * since, moment, atol=alignment.error_ns / 2)
    assert alignment.timer_step_ns == 32
    assert alignment.error_ns == pytest.approx(60 / 1.5)
