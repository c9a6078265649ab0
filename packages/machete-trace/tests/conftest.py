"""Traced kernels that tests look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from machete.megakernel import Megakernel
from machete.trace import Trace
from small_ops import ReverseTiles, Scale, StreamAdd, StreamTotal

N = 5000


def mixed_ops(device: str) -> list:
    """Every shape of op, each after the one before: plain, streaming with and without results, a scratch page."""
    x = (torch.arange(N) % 7).float().to(device)
    y, z, reversed_z = (torch.zeros(N, device=device) for _ in range(3))
    total = torch.zeros(1, device=device)
    return [
        *Scale.schedule(x=x, y=y),
        *StreamAdd.schedule(x=x, y=y, z=z),
        *StreamTotal.schedule(x=z, s=total),
        *ReverseTiles.schedule(x=z, y=reversed_z),
    ]


@pytest.fixture(scope="session")
def traced() -> Callable[..., tuple[Megakernel, Trace]]:
    """A kernel of `mixed_ops` that has run, and its trace; made once for the same arguments."""
    made: dict[tuple, tuple[Megakernel, Trace]] = {}

    def make(device: str, arch: str, **options: Any) -> tuple[Megakernel, Trace]:
        key = (device, arch, *sorted(options.items()))
        if key not in made:
            kernel = Megakernel(
                mixed_ops(device), arch=arch if device == "cpu" else None, num_sms=4, trace=True, **options
            )
            made[key] = kernel, Trace.of(kernel, kernel.run())
        return made[key]

    return make


@pytest.fixture(scope="session")
def trace(traced: Callable[..., tuple[Megakernel, Trace]]) -> Trace:
    """One of them, from the simulator."""
    return traced("cpu", "sm_90a")[1]
