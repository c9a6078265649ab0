"""The picture for reports: well-formed, the same for the same trace, and true to the totals."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from machete.trace import Trace
from machete.trace.attribution import CATEGORIES
from machete.trace.picture import WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"


def test_the_bar_shows_the_totals(trace: Trace) -> None:
    text = picture(trace)
    assert text == picture(trace)
    root = ElementTree.fromstring(text)
    titled = [each for each in root.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    report = trace.report()
    assert [each.find(f"{SVG}title").text for each in titled] == [
        f"{name}: {report.us[name]:.2f} µs" for name in CATEGORIES
    ]
    widths = [float(each.attrib["width"]) for each in titled]
    whole = sum(widths)
    for name, width in zip(CATEGORIES, widths, strict=True):
        assert width / whole == pytest.approx(report.us[name] / report.traced_us, abs=0.001)


def test_every_sm_has_a_lane_that_ends_with_the_launch(trace: Trace) -> None:
    root = ElementTree.fromstring(picture(trace))
    lanes: dict[str, list[tuple[float, float]]] = {}
    for each in root.iter(f"{SVG}rect"):
        if each.attrib["height"] == "9":
            lanes.setdefault(each.attrib["y"], []).append((float(each.attrib["x"]), float(each.attrib["width"])))
    assert len(lanes) == 4
    for pieces in lanes.values():
        assert pieces[0][0] == pytest.approx(60)
        assert pieces[-1][0] + pieces[-1][1] == pytest.approx(WIDTH - 30, abs=0.1)
