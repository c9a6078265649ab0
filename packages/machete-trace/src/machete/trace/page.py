"""A trace as one HTML page that needs nothing else: a timeline to zoom into, and what is under the pointer."""

from __future__ import annotations

import base64
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from .attribution import CATEGORIES
from .buffer import roles_of
from .colours import CATEGORY_COLOURS, SPAN_COLOURS
from .events import PHASES, TYPES, WAITS

if TYPE_CHECKING:
    from .trace import Trace

_PLACE = "/*DATA*/"


def page(trace: Trace) -> str:
    """The page. Equal traces give equal text."""
    template = files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")
    # Inside of a script element nothing may look like its end.
    return template.replace(_PLACE, json.dumps(_data(trace)).replace("</", "<\\/"))


def _data(trace: Trace) -> dict[str, Any]:
    plan, pieces, spans = trace.plan, trace.attribution, trace.spans
    totals, roles = pieces.totals(), roles_of(plan)
    spans = spans.where(spans.type != TYPES.index("role"))
    wall = "" if trace.wall_us is None else f", {trace.wall_us:.2f} µs by the clock on the wall"
    return {
        "title": f"{trace.where}, {plan.target.name}, {plan.num_sms} SMs: {trace.total_us:.2f} µs traced{wall}",
        "total_us": trace.total_us,
        "sms": plan.num_sms,
        "roles": list(roles),
        "ops": [plan.kinds[op.kind].name for op in plan.ops],
        "categories": [
            {"name": name, "colour": CATEGORY_COLOURS[name], "us": totals[name] / plan.num_sms} for name in CATEGORIES
        ],
        "types": [
            {
                "name": name,
                "colour": SPAN_COLOURS[name],
                "title": f"waits: {name}" if name in WAITS else name,
                "ranges": name in PHASES,
            }
            for name in TYPES[:-1]
        ],
        "states": _table(pieces.sm, pieces.category, pieces.op, None, pieces.begin, pieces.end),
        "spans": _table(spans.sm * len(roles) + spans.role, spans.type, spans.op, spans.tile, spans.begin, spans.end),
    }


def _table(
    lane: np.ndarray, kind: np.ndarray, op: np.ndarray, tile: np.ndarray | None, begin: np.ndarray, end: np.ndarray
) -> dict[str, str]:
    columns = {"lane": lane.astype("<i4"), "kind": kind.astype("u1"), "op": op.astype("<i4")}
    if tile is not None:
        columns["tile"] = tile.astype("<i4")
    columns |= {"begin": begin.astype("<f4"), "end": end.astype("<f4")}
    order = np.lexsort((begin, lane))
    return {name: base64.b64encode(column[order].tobytes()).decode() for name, column in columns.items()}
