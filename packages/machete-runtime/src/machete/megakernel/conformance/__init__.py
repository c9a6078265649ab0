"""Conformance suite for op packages: what the framework relies on, tried on the ops themselves.

The tests of an op package name its ops, some inputs and a reference (docs/conformance.md)::

    import torch
    from machete.megakernel.conformance import Case, Conformance
    from my_ops import ScaleOp

    def make(device):
        x = torch.randn(1000, device=device)
        y = torch.empty_like(x)
        return ScaleOp.schedule(x=x, y=y), {"x": x, "y": y}

    class TestScale(Conformance):
        cases = [Case(ScaleOp, make, reference=lambda x: {"y": 2 * x}, tolerance=1e-6)]

This module is a pytest plugin, loaded wherever the runtime is installed: importing it is cheap.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from machete.megakernel.conformance.case import Case
from machete.megakernel.conformance.suite import RAN_ON, Conformance

__all__ = ["Case", "Conformance"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say where the kernels of the suite ran: passing on the simulator is not passing on the card."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    places = Counter(
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == RAN_ON
    )
    for place, count in sorted(places.items()):
        terminalreporter.write_line(f"machete conformance: {place}: {count} launches")
