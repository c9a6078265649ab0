"""The table of spans: one line each, with what belongs to it."""

from __future__ import annotations

import csv
import io

import pytest

from machete.trace import Trace
from machete.trace.csv_export import COLUMNS, write_csv


def test_a_line_for_each_span(trace: Trace) -> None:
    file = io.StringIO()
    write_csv(trace, file)
    lines = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == len(trace.spans)
    stores = [line for line in lines if line["what"] == "store"]
    assert {line["role"] for line in stores} == {"storer"}
    assert {line["kind"] for line in stores} == {"small_ops.StreamAdd"}
    assert sorted(int(line["tile"]) for line in stores) == list(range(trace.plan.ops[1].num_tiles))
    waits = trace.spans.of("data")
    total = sum(float(line["end_us"]) - float(line["begin_us"]) for line in lines if line["what"] == "data")
    assert total == pytest.approx(float((waits.end - waits.begin).sum()), abs=0.01)
    assert all(
        line["is_wait"] == str(int(line["what"] == "data")) for line in lines if line["what"] in ("data", "load")
    )
