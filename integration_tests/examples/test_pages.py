"""The first example of a page in docs/, run as printed but for `device=`: on the card, or on the simulator."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from machete.megakernel.launch import compilation

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the page's example, in an empty folder, with an empty cache; returns its names."""
    monkeypatch.setenv("MACHETE_CACHE", "on")
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(page: str) -> dict[str, Any]:
        code = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL)[0]
        if not torch.cuda.is_available():
            code = code.replace('"cuda"', '"cpu"')
        file = tmp_path / "example.py"
        file.write_text(code)
        compilation.forget()
        return runpy.run_path(str(file))

    return run


def test_kernel_cache(run: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    run("kernel-cache")
    assert "compiled in" in capsys.readouterr().out
    run("kernel-cache")
    assert "found" in capsys.readouterr().out


def test_saved_kernels(run: Callable[[str], dict[str, Any]]) -> None:
    names = run("saved-kernels")
    assert torch.equal(names["result"], names["a"] + names["b"])


def test_lowerings(run: Callable[[str], dict[str, Any]]) -> None:
    names = run("lowerings")
    assert [row.difference for row in names["comparison"].rows] == [0.0, 0.0, 0.0]
    total = (names["x"] + names["branch"]).double()
    expected = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    assert ((names["y"].double() - expected).norm() / expected.norm()).item() < 1e-5


def test_autograd(run: Callable[[str], dict[str, Any]]) -> None:
    names = run("autograd")
    x, w = names["x"].detach(), names["w"].detach()
    assert torch.allclose(names["x"].grad, 2 * x * w * w)
    assert torch.allclose(names["w"].grad, 2 * x * x * w)


def test_simulator_trace(tmp_path: Path) -> None:
    """The page shows what the command prints, to the letter: a seed is one execution."""
    page = (DOCS / "simulator.md").read_text()
    shown = re.findall(r"```console\n\$ (machete-sim trace .*)\n((?:.*\n)*?)```", page)
    [(command, printed)] = shown
    arguments = command.replace("trace.json", str(tmp_path / "trace.json")).split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "machete.sim.programs", *arguments],
        cwd=DOCS.parent,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == printed
    assert {event["ph"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]} == {"M", "X"}
