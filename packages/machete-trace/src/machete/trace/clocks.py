"""One time base for the clocks of all SMs.

Each SM counts cycles from a start of its own. The watcher of every SM looks at the global timer twice, when it begins
and when it ends, each time waiting until the timer changes: at that moment the timer is exact, whatever its step. What
remains is that the change was seen between two reads of the SM's clock. Between the two moments time goes linearly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .buffer import SAMPLE_WORD, SAMPLE_WORDS


@dataclass(frozen=True)
class Alignment:
    """How well the SMs' clocks are aligned; times in ns.

    Attributes:
        error_ns: bound on the error between two SMs: the largest time between the two reads of a clock between which
            the global timer changed.
        timer_step_ns: by how much the global timer changes at a time.
        ns_per_cycle: least and most among the SMs.
        early_ns: how much the earliest wait ended before what it waited for was signalled, as the aligned clocks have
            it. Nothing does, so it is a second, independent look at the error; 0 where no wait ended too early.
    """

    error_ns: float
    timer_step_ns: float
    ns_per_cycle: tuple[float, float]
    early_ns: float = 0.0


def aligned(headers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Alignment]:
    """From the headers, int64[SMs, words], of all SMs: clock uint32[SMs] and time float64[SMs] of the first sample, ns
    per cycle float64[SMs], and how good that is. Times are ns since the earliest of these samples: a global timer that
    counts from 1970 has no room in a float64 for less than 256 ns."""
    samples = headers[:, SAMPLE_WORD : SAMPLE_WORD + 2 * SAMPLE_WORDS].reshape(len(headers), 2, SAMPLE_WORDS)
    times = samples[:, :, 0]
    clocks = samples[:, :, 1].astype(np.uint64)
    before, after = (clocks & 0xFFFFFFFF).astype(np.int64), (clocks >> 32).astype(np.int64)
    bracket = (after - before) & 0xFFFFFFFF
    middle = (before + bracket // 2) & 0xFFFFFFFF
    cycles = (middle[:, 1] - middle[:, 0]) & 0xFFFFFFFF
    rate = (times[:, 1] - times[:, 0]) / np.maximum(cycles, 1)
    step = (samples[:, :, 2].astype(np.uint64) >> 32).astype(np.int64)
    return (
        middle[:, 0].astype(np.uint32),
        (times[:, 0] - times[:, 0].min()).astype(np.float64),
        rate,
        Alignment(
            error_ns=float((bracket * rate[:, None]).max()),
            timer_step_ns=float(step.min()),
            ns_per_cycle=(float(rate.min()), float(rate.max())),
        ),
    )
