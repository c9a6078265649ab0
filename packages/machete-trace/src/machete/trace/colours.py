"""One colour for each category, and for each type of span, wherever they are shown."""

from __future__ import annotations

from .attribution import CATEGORIES

CATEGORY_COLOURS = dict(
    zip(
        CATEGORIES,
        ("#4e79a7", "#59a14f", "#e15759", "#b07aa1", "#f28e2b", "#edc948", "#bcbd22", "#9c755f", "#76b7b2", "#d4d4d4"),
        strict=True,
    )
)

SPAN_COLOURS = {
    "role": "#eeeeee",
    "instruction": "#d4dbe6",
    "load": "#4e79a7",
    "compute": "#59a14f",
    "store": "#b6992d",
    "multiply": "#499894",
    "polling": "#f1a7a8",
    "barrier": "#f28e2b",
    "drain": "#d37295",
    "fetch": "#bab0ac",
    "slot": "#bab0ac",
    "dependency": "#e15759",
    "page": "#b07aa1",
    "throttle": "#86bcb6",
    "data": "#a0cbe8",
    "output": "#d4a6c8",
    "results": "#f1ce63",
    "position": "#bab0ac",
    "accumulator": "#d7b5a6",
    "products": "#8cd17d",
}
