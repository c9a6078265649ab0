"""A plan as a picture: one lane for each SM, a box for each range of tiles, and where SMs wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.queues import COUNT, FIRST, OP, STEP, WAITS
from machete.megakernel.plan.timeline import Timeline, timeline

WIDTH = 1200
LEFT, TOP, LANE, LINE = 60, 40, 14, 18
#: Degrees of hue from one kind to the next; the golden angle keeps neighbours apart.
HUE_STEP = 137.5


def picture(plan: Plan) -> str:
    """The plan as a self-contained SVG. Equal plans give equal text.

    Time runs to the right, as the cost model sees it. The boxes of one kind have one colour; a grey line is an SM that
    waits. Pointing at a box tells op, tiles, waits and times.
    """
    times = timeline(plan)
    scale = (WIDTH - LEFT - 20) / (times.total_us or 1.0)
    lanes = TOP + plan.num_sms * LANE
    height = lanes + 30 + LINE * (len(plan.kinds) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        "<style>text { font: 11px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="14">{escape(str(plan).splitlines()[0])}</text>',
        *_axis(times, scale, lanes),
        *(f'<text x="4" y="{TOP + sm * LANE + 11}">SM {sm}</text>' for sm in range(plan.num_sms)),
        *_boxes(plan, times, scale),
        *_legend(plan, lanes + 30),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _colour(kind: int) -> str:
    return f"hsl({kind * HUE_STEP % 360:g},60%,{(62, 72, 54)[kind // 8 % 3]}%)"


def _axis(times: Timeline, scale: float, bottom: int) -> Iterator[str]:
    """Lines at round times."""
    total = times.total_us or 1.0
    step = 10.0 ** math.floor(math.log10(total))
    while total / step < 5:
        step /= 2
    for i in range(int(total / step) + 1):
        x = LEFT + i * step * scale
        yield f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 10}" text-anchor="middle">{i * step:g} µs</text>'


def _boxes(plan: Plan, times: Timeline, scale: float) -> Iterator[str]:
    rows = plan.queues.rows.tolist()
    columns = (values.tolist() for values in (times.sm, times.turned, times.begin, times.end))
    for row, sm, turned, begin, end in zip(rows, *columns, strict=True):
        y, x = TOP + sm * LANE, LEFT + begin * scale
        if begin > turned:
            middle = y + LANE / 2
            yield (
                f'<line x1="{LEFT + turned * scale:.2f}" y1="{middle}" x2="{x:.2f}" y2="{middle}" '
                f'stroke="#999" stroke-dasharray="2 2"><title>waits {begin - turned:.2f} µs</title></line>'
            )
        name = plan.kinds[plan.ops[row[OP]].kind].name.rpartition(".")[2]
        tiles = f"tile {row[FIRST]}" if row[COUNT] == 1 else f"{row[COUNT]} tiles from {row[FIRST]}, {row[STEP]} apart"
        waits = len(plan.waits[row[WAITS]])
        title = f"op {row[OP]} {name}: {tiles}; {waits} waits; {begin:.2f} to {end:.2f} µs"
        yield (
            f'<rect x="{x:.2f}" y="{y + 1}" width="{(end - begin) * scale:.2f}" height="{LANE - 2}" '
            f'fill="{_colour(plan.ops[row[OP]].kind)}" stroke="white" stroke-width="0.5">'
            f"<title>{escape(title)}</title></rect>"
        )


def _legend(plan: Plan, top: int) -> Iterator[str]:
    for kind in plan.kinds:
        y = top + LINE * kind.index
        ops = sum(op.kind == kind.index for op in plan.ops)
        yield f'<rect x="{LEFT}" y="{y - 10}" width="12" height="12" fill="{_colour(kind.index)}"/>'
        yield f'<text x="{LEFT + 18}" y="{y}">{escape(kind.name)}: {ops} ops</text>'
