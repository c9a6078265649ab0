"""A sample of `tools/random_graphs.py`; the full run is a command (docs/contributing.md)."""

from __future__ import annotations

import random

import pytest

from random_graphs import check, draw


@pytest.mark.parametrize("seed", range(12))
def test_random_graph_equals_torch(arch: str, device: str, seed: int) -> None:
    generator = random.Random(f"{arch}{seed}")
    target = arch if device == "cpu" else None
    check(draw(generator, target), seed, device, target, generator.choice([1, 2, 3, 5]))
