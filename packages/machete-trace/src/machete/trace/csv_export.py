"""A trace as a table for analysis: one line for each span and wait."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TextIO

from .buffer import ROLES
from .events import TYPES, WAITS

if TYPE_CHECKING:
    from .trace import Trace

COLUMNS = ("sm", "role", "what", "is_wait", "begin_us", "end_us", "instruction", "op", "kind", "tile", "value")


def write_csv(trace: Trace, file: TextIO) -> None:
    """One line for each span, by SM, role and time. Numbers that do not apply are empty.

    `what` is the type of a span, or the cause of a wait (`events.TYPES`); `instruction` the row in the plan's queues.
    """
    spans = trace.spans
    names = [trace.plan.kinds[op.kind].name for op in trace.plan.ops]
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    columns = (spans.sm, spans.role, spans.type, spans.begin, spans.end, spans.row, spans.op, spans.tile, spans.value)
    for sm, role, kind, begin, end, row, op, tile, value in zip(*(c.tolist() for c in columns), strict=True):
        what = TYPES[kind]
        inside = op >= 0
        table.writerow(
            (
                sm,
                ROLES[role],
                what,
                int(what in WAITS),
                f"{begin:.4f}",
                f"{end:.4f}",
                row if inside else "",
                op if inside else "",
                names[op] if inside else "",
                tile if tile >= 0 else "",
                value,
            )
        )
