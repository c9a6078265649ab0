"""The environment variables that the simulator reads."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from machete.sim.errors import UnsupportedLaunch

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_what_is_announced_reads_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`machete doctor` knows the variable by its entry point."""
    entry_points = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["machete.settings"]
    [(name, value)] = entry_points.items()
    read = EntryPoint(name, value, "machete.settings").load()
    monkeypatch.delenv(name, raising=False)
    assert read() == "races"
    monkeypatch.setenv(name, "memory")
    assert read() == "memory"
    monkeypatch.setenv(name, "nonsense")
    with pytest.raises(UnsupportedLaunch, match=name):
        read()
