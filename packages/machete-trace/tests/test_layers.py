"""Layers are found in the order of kinds."""

from __future__ import annotations

import pytest

from machete.trace.layers import layers_of


@pytest.mark.parametrize(
    ("kinds", "layers"),
    [
        ([0, 1, 0, 1, 0, 1], [(0, 2), (2, 4), (4, 6)]),
        ([5, 0, 1, 2, 0, 1, 2, 6], [(1, 4), (4, 7)]),
        ([0, 0, 1, 0, 0, 1, 0, 0, 1], [(0, 3), (3, 6), (6, 9)]),
        ([3, 3, 3, 3], [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ([0, 1, 2, 3], []),
        ([0], []),
        ([], []),
    ],
)
def test_layers(kinds: list[int], layers: list[tuple[int, int]]) -> None:
    assert [(each.start, each.stop) for each in layers_of(kinds)] == layers
