"""The report: exclusive categories that add up, floors, and the changes that would save most."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from machete.megakernel import Megakernel
from machete.trace import Trace
from machete.trace.attribution import CATEGORIES, attribute
from small_ops import Scale, StreamAdd


def test_pieces_of_an_sm_follow_each_other_without_a_gap(trace: Trace) -> None:
    pieces = attribute(trace)
    for sm in range(4):
        mine = np.flatnonzero(pieces.sm == sm)
        assert pieces.begin[mine[0]] == 0
        assert np.allclose(pieces.begin[mine[1:]], pieces.end[mine[:-1]])
        assert pieces.end[mine[-1]] == pytest.approx(trace.total_us)


def test_ops_and_what_is_in_no_op_make_up_the_whole(trace: Trace) -> None:
    report = trace.report()
    assert sum(report.us.values()) == pytest.approx(report.traced_us)
    for category in CATEGORIES:
        in_ops = sum(share.us[category] for share in report.ops)
        if category in ("tail", "launch"):
            assert in_ops == 0
        elif category not in ("imbalance", "unattributed"):
            assert in_ops == pytest.approx(report.us[category])
    assert report.us["signal"] > 0
    assert len(report.savings) == 3
    assert report.savings[0].us >= report.savings[1].us >= report.savings[2].us > 0


def test_floors_count_every_byte_once() -> None:
    """Two layers that read the same weights: a graph reads them once, each op by itself does too."""
    n = 4096
    x, y, z, weights = (torch.zeros(n) for _ in range(4))
    ops = [
        *StreamAdd.schedule(x=x, y=weights, z=y),
        *Scale.schedule(x=y, y=z),
        *StreamAdd.schedule(x=z, y=weights, z=y),
        *Scale.schedule(x=y, y=z),
    ]
    kernel = Megakernel(ops, trace=True)
    report = Trace.of(kernel, kernel.run()).report()
    assert [share.floor.nbytes for share in report.ops] == [3 * 4 * n, 2 * 4 * n] * 2
    assert report.floor.nbytes == 4 * n * (4 + 2), "x, weights, y and z are read, y and z are written"
    assert [share.ops for share in report.layers] == [(0, 1), (2, 3)]
    assert report.layers[0].total_us == pytest.approx(sum(share.total_us for share in report.ops[:2]))


def test_text_and_json_say_the_same(trace: Trace) -> None:
    report = trace.report()
    data = json.loads(report.to_json())
    assert data["us"] == report.us
    assert data["reconciliation"] == report.reconciliation
    assert len(data["ops"]) == 4
    text = str(report)
    for name in CATEGORIES:
        assert name in text
    assert f"{report.traced_us:.2f} µs traced" in text
    assert report.savings[0].advice[:40] in text.replace("\n", " ")
    assert "Scale" in text
