"""The timeline page in a real browser: what it draws, zooms into, and says about what is under the pointer."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from machete.trace import Trace
from machete.trace.attribution import CATEGORIES, attribute
from machete.trace.buffer import roles_of
from machete.trace.colours import CATEGORY_COLOURS
from machete.trace.page import page as page_of

LEFT, TOP, LANE, ROLE_LANE = 110, 22, 14, 11  # of timeline.html, in pixels
WIDTH = 1200


def test_the_page_needs_nothing_else_and_is_the_same_again(trace: Trace) -> None:
    text = page_of(trace)
    assert text == page_of(trace)
    assert not re.search(r"(?:src|href|url)\s*[=(]", text)
    assert "http" not in text
    assert "DATA" not in text


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium of the system, driven by playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        # `nox -s browser` sets this: whoever asks for these tests is not told that they passed.
        assert "MACHETE_BROWSER" not in os.environ, "there is no chromium on PATH (Debian: apt-get install chromium)"
        pytest.skip("there is no chromium on PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, trace: Trace, tmp_path: Path) -> Iterator:
    file = tmp_path / "timeline.html"
    file.write_text(page_of(trace), encoding="utf-8")
    page = browser.new_page(viewport={"width": WIDTH, "height": 500})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: request.url.startswith("file:") or errors.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert not errors


def place(page, trace: Trace, time: float, lane: int, height: int) -> tuple[float, float]:
    """Where a moment of a lane is on the screen, as long as the whole launch is shown."""
    box = page.locator("#canvas").bounding_box()
    x = box["x"] + LEFT + time / trace.total_us * (box["width"] - LEFT)
    return x, box["y"] + TOP + lane * height + height / 2 - 1


PIXEL = "([x, y]) => [...document.getElementById('canvas').getContext('2d').getImageData(x, y, 1, 1).data]"


def test_it_draws_where_the_time_went(page, trace: Trace, tmp_path: Path) -> None:
    assert page.locator("#title").inner_text().startswith("cpu, sm_90a, 4 SMs")
    assert page.locator("#legend span").count() == len(CATEGORIES)
    page.screenshot(path=tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size > 5000
    width = page.locator("#canvas").bounding_box()["width"]
    pieces = attribute(trace)
    longest = [int(np.argmax(np.where(pieces.sm == sm, pieces.duration, 0))) for sm in range(4)]
    for sm, piece in enumerate(longest):
        middle = (pieces.begin[piece] + pieces.end[piece]) / 2
        x = round(LEFT + middle / trace.total_us * (width - LEFT))
        red, green, blue, _ = page.evaluate(PIXEL, [x, TOP + sm * LANE + LANE // 2])
        colour = f"#{red:02x}{green:02x}{blue:02x}"
        assert colour == CATEGORY_COLOURS[CATEGORIES[pieces.category[piece]]]


def test_it_zooms_around_the_pointer_and_back(page, trace: Trace) -> None:
    def shown() -> tuple[float, float]:
        begin, end = re.findall(r"[\d.]+", page.locator("#range").inner_text())
        return float(begin), float(end)

    whole = shown()
    assert whole == pytest.approx((0, trace.total_us), abs=0.001)
    time = trace.total_us / 4
    page.mouse.move(*place(page, trace, time, 1, LANE))
    page.mouse.wheel(0, -500)
    page.wait_for_function("document.getElementById('range').textContent.slice(0, 5) !== '0.000'")
    begin, end = shown()
    assert begin < time < end
    assert end - begin == pytest.approx(trace.total_us / np.e, rel=0.05)
    page.locator("#out").click()
    assert shown() == whole


def test_it_says_what_is_under_the_pointer(page, trace: Trace) -> None:
    page.locator("#mode").select_option("roles")
    for what, role in (("compute", "compute"), ("data", "compute"), ("store", "storer")):
        spans = trace.spans.of(what, role=role)
        longest = int(np.argmax(spans.end - spans.begin))
        moment = _by_itself(trace, spans, longest)
        roles = roles_of(trace.plan)
        lane = int(spans.sm[longest]) * len(roles) + roles.index(role)
        page.mouse.move(*place(page, trace, moment, lane, ROLE_LANE))
        tip = page.locator("#tip").inner_text()
        op = int(spans.op[longest])
        assert tip.startswith(f"SM {spans.sm[longest]} {role}: "), tip
        assert f"op {op}: {trace.plan.kinds[trace.plan.ops[op].kind].name}" in tip
        assert f": {'waits: ' if what == 'data' else ''}{what}" in tip
        assert f"tile {spans.tile[longest]}" in tip


def _by_itself(trace: Trace, spans, index: int) -> float:
    """The middle of the longest part of a span in which nothing else is: there the page names the span."""
    mine, begin, end = trace.spans, spans.begin[index], spans.end[index]
    inside = (mine.sm == spans.sm[index]) & (mine.role == spans.role[index]) & (mine.begin > begin) & (mine.end <= end)
    order = np.argsort(mine.begin[inside])
    begins = np.append(mine.begin[inside][order], end)
    ends = np.maximum.accumulate(np.append(begin, mine.end[inside][order]))
    longest = int(np.argmax(begins - ends))
    return float(begins[longest] + ends[longest]) / 2
