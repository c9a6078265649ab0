"""A trace as an SVG for reports: a bar of where the time went, and a lane for each SM."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from .attribution import CATEGORIES
from .colours import CATEGORY_COLOURS

if TYPE_CHECKING:
    from .trace import Trace

WIDTH, LEFT, RIGHT, BAR, LANE = 1200, 60, 30, 30, 10
#: SMs that have a lane; of more, evenly spread ones.
MOST_LANES = 48
#: Pieces of a lane that are narrower than this, in pixels, are drawn together with their neighbours.
_LEAST = 0.3


def picture(trace: Trace) -> str:
    """The SVG, which needs nothing else. Equal traces give equal text."""
    pieces = trace.attribution
    sms = np.unique(np.linspace(0, trace.plan.num_sms - 1, min(trace.plan.num_sms, MOST_LANES)).round().astype(int))
    top = 120
    height = top + LANE * len(sms) + 20
    scale = (WIDTH - LEFT - RIGHT) / (trace.total_us or 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        "<style>text { font: 11px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16">{escape(_title(trace, len(sms)))}</text>',
        *_bar(pieces.totals(), trace),
        *_axis(trace.total_us, scale, top, height - 16),
    ]
    for lane, sm in enumerate(sms.tolist()):
        y = top + lane * LANE
        parts.append(f'<text x="4" y="{y + 9}">SM {sm}</text>')
        mine = np.flatnonzero(pieces.sm == sm)
        parts += _lane(pieces.category[mine].tolist(), pieces.begin[mine].tolist(), pieces.end[mine].tolist(), y, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _title(trace: Trace, lanes: int) -> str:
    plan = trace.plan
    shown = "" if lanes == plan.num_sms else f", {lanes} of them shown"
    return f"{trace.where}, {plan.target.name}, {plan.num_sms} SMs{shown}: {trace.total_us:.2f} µs traced"


def _bar(totals: dict[str, float], trace: Trace) -> Iterator[str]:
    """All SMs together, with the legend."""
    whole = sum(totals.values()) or 1.0
    x, label = float(LEFT), LEFT
    for name in CATEGORIES:
        width = (WIDTH - LEFT - RIGHT) * totals[name] / whole
        us = totals[name] / trace.plan.num_sms
        yield (
            f'<rect x="{x:.1f}" y="26" width="{width:.1f}" height="{BAR}" fill="{CATEGORY_COLOURS[name]}">'
            f"<title>{name}: {us:.2f} µs</title></rect>"
        )
        x += width
        yield f'<rect x="{label}" y="66" width="10" height="10" fill="{CATEGORY_COLOURS[name]}"/>'
        yield f'<text x="{label + 14}" y="75">{name}</text><text x="{label + 14}" y="89">{us:.2f} µs</text>'
        label += (WIDTH - LEFT) // len(CATEGORIES)


def _axis(total: float, scale: float, top: int, bottom: int) -> Iterator[str]:
    for part in range(6):
        x = LEFT + part * total / 5 * scale
        yield f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{top - 9}" text-anchor="middle">{part * total / 5:.1f} µs</text>'


def _lane(categories: list[int], begins: list[float], ends: list[float], y: int, scale: float) -> Iterator[str]:
    """Rectangles; neighbours that nobody could tell apart become one, in the colour of the longest."""
    group: dict[int, float] = {}
    begin = None
    for index, (category, first, after) in enumerate(zip(categories, begins, ends, strict=True)):
        begin = first if begin is None else begin
        group[category] = group.get(category, 0.0) + after - first
        wide = index + 1 < len(ends) and (ends[index + 1] - begins[index + 1]) * scale >= _LEAST
        if (after - begin) * scale < _LEAST and index + 1 < len(ends) and not wide:
            continue
        colour = CATEGORY_COLOURS[CATEGORIES[max(group, key=group.__getitem__)]]
        width = (after - begin) * scale
        yield (
            f'<rect x="{LEFT + begin * scale:.2f}" y="{y}" width="{width:.2f}" height="{LANE - 1}" fill="{colour}"/>'
        )
        group, begin = {}, None
