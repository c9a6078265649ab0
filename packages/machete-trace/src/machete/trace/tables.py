"""A report as text, by rich."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table

from .attribution import CATEGORIES
from .report import Report, Share

#: Ops of a graph that a table shows one by one; of more, those that took longest.
MOST_OPS = 40
_SHOWN = {
    "streaming": "streaming",
    "math": "math",
    "dependency": "dependency",
    "page": "page",
    "barrier": "barrier",
    "imbalance": "imbalance",
    "signal": "signal",
    "unattributed": "between",
}


def tables_of(report: Report) -> Group:
    """Everything that a report says, for a rich console."""
    parts: list[Table | str] = [_head(report), _categories(report), _overlap(report)]
    if report.layers:
        parts.append(_shares("Layers", report.layers, len(report.layers)))
    parts.append(_shares("Ops", report.ops, MOST_OPS))
    parts.append(_savings(report))
    return Group(*parts)


def text_of(report: Report) -> str:
    """The same as plain text."""
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(tables_of(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def _head(report: Report) -> str:
    lines = [
        (
            f"{report.where}, {report.target}, {report.num_sms} SMs, {report.schedule}: {len(report.ops)} ops, "
            f"{report.traced_us:.2f} µs traced"
        ),
    ]
    total = sum(report.us.values())
    if report.wall_us is None or report.reconciliation is None:
        lines.append(f"categories sum to {total:.2f} µs; nobody measured the wall time")
    else:
        lines.append(
            f"categories sum to {total:.2f} µs; the launch took {report.wall_us:.2f} µs by the clock on the wall, "
            f"{100 * report.reconciliation:.2f} % apart"
        )
    alignment = report.alignment
    lines.append(
        f"clocks of the SMs agree to {alignment.error_ns:.0f} ns (timer step {alignment.timer_step_ns:.0f} ns); "
        f"the earliest wait ended {alignment.early_ns:.0f} ns before its signal"
    )
    ring = report.ring
    if ring.ahead_most:
        lines.append(
            f"KiB of an SM's ring, of {ring.capacity / 1024:.0f}: {ring.ahead_mean / 1024:.1f} ahead of compute "
            f"({ring.ahead_most / 1024:.1f} at most), {ring.in_flight_mean / 1024:.1f} on their way "
            f"({ring.in_flight_most / 1024:.1f} at most)"
        )
    if report.lost:
        lines.append(f"the buffer was too small: {report.lost} events are lost, and their time is unattributed")
    return "\n".join(lines)


def _categories(report: Report) -> Table:
    table = Table(title="Where the time went", title_justify="left")
    table.add_column("category")
    table.add_column("µs", justify="right")
    table.add_column("of all", justify="right")
    total = sum(report.us.values()) or 1.0
    for name in CATEGORIES:
        table.add_row(name, f"{report.us[name]:.2f}", f"{100 * report.us[name] / total:.1f} %")
    table.add_section()
    floor = report.floor
    table.add_row("floor: bytes", f"{floor.bytes_us:.2f}", f"{floor.nbytes / 1e6:.1f} MB")
    table.add_row("floor: FLOPs", f"{floor.flops_us:.2f}", f"{floor.flops / 1e9:.1f} G")
    table.add_row("gap to the floor", f"{total - floor.us:.2f}", f"{100 * (total - floor.us) / total:.1f} %")
    return table


def _overlap(report: Report) -> Table:
    table = Table(title="Meanwhile (beside compute, not added)", title_justify="left")
    table.add_column("role")
    table.add_column("µs", justify="right")
    for name, us in report.overlap_us.items():
        table.add_row(name, f"{us:.2f}")
    return table


def _shares(title: str, shares: Sequence[Share], most: int) -> Table:
    chosen = sorted(sorted(shares, key=lambda share: -share.total_us)[:most], key=lambda share: share.ops)
    left = f", the {most} that took longest of {len(shares)}" if len(shares) > most else ""
    table = Table(
        title=f"{title}: µs, the mean over all SMs, beside the floors of bytes and FLOPs{left}", title_justify="left"
    )
    table.add_column(title.lower()[:-1], no_wrap=True)
    for name in ("tiles", *_SHOWN.values(), "sum", "bytes", "FLOPs", "gap"):
        table.add_column(name, justify="right")
    for share in chosen:
        name = f"{share.ops[0]} {share.name}" if len(share.ops) == 1 else share.name
        cells = [f"{share.us[category]:.2f}" for category in _SHOWN]
        gap = share.total_us - share.floor.us
        floors = (f"{share.floor.bytes_us:.2f}", f"{share.floor.flops_us:.2f}", f"{gap:.2f}")
        table.add_row(name, str(share.tiles), *cells, f"{share.total_us:.2f}", *floors)
    return table


def _savings(report: Report) -> Table:
    table = Table(title="What would save most", title_justify="left")
    table.add_column("µs", justify="right")
    table.add_column("category")
    table.add_column("change", overflow="fold")
    for saving in report.savings:
        table.add_row(f"{saving.us:.2f}", saving.category, saving.advice)
    return table
