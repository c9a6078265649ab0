"""Distributions for the tests: metadata and modules in a folder of `sys.path`, as an installer leaves them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution for the duration of the test; returns the folder that is on `sys.path`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def write(
        name: str,
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        extras: Sequence[str] = (),
        entry_points: Mapping[str, Mapping[str, str]] | str = "",
        modules: Mapping[str, str] | None = None,
    ) -> Path:
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: Summary of {name}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        if not isinstance(entry_points, str):
            entry_points = "\n".join(
                "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
                for group, entries in entry_points.items()
            )
        (folder / "entry_points.txt").write_text(entry_points)
        for module, source in (modules or {}).items():
            (site / f"{module}.py").write_text(textwrap.dedent(source))
        return site

    return write
