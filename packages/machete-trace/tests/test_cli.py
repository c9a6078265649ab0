"""`machete trace`: a graph or a program is run, and everything about it is in a folder."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from machete.trace.cli import _run_program, app

GRAPH = """
import torch
from small_ops import Scale
x, y, z = (torch.ones(2000) for _ in range(3))
def ops():
    return Scale.schedule(x=x, y=y) + Scale.schedule(x=y, y=z)
"""
PROGRAM = """
import sys
import torch
from machete.megakernel import Megakernel
from small_ops import Scale
assert __name__ == "__main__"
x, y = (torch.ones(int(sys.argv[1])) for _ in range(2))
for factor in (2.0, 3.0):
    Megakernel(Scale.schedule(x=x, y=y, factor=factor)).run()
Megakernel(Scale.schedule(x=x, y=y))  # never run
assert y.sum() == 3 * int(sys.argv[1])
"""
FILES = {"report.json", "report.txt", "spans.csv", "timeline.html", "timeline.svg", "trace.npz", "trace.perfetto"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"}, prog_name="machete trace")


def test_a_graph_is_run_and_reported(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    out = tmp_path / "out"
    result = run("run", tmp_path / "graph.py", "--out", out, "--arch", "sm_120a", "--num-sms", 2)
    assert result.exit_code == 0, result.output
    assert "cpu, sm_120a, 2 SMs, static: 2 ops" in result.output
    assert {path.name for path in out.iterdir()} == FILES
    again = run("report", out)
    assert again.exit_code == 0
    assert again.stdout.strip() == (out / "report.txt").read_text().strip()
    as_json = json.loads(run("report", out / "trace.npz", "--json").stdout)
    assert as_json == json.loads((out / "report.json").read_text())


def test_a_graph_that_is_imported(tmp_path: Path) -> None:
    (tmp_path / "the_graph_of_this_test.py").write_text(GRAPH)
    (tmp_path / "graph.py").write_text("from the_graph_of_this_test import ops\n")
    result = run("run", tmp_path / "graph.py", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_a_program_is_run_with_its_arguments_and_its_kernels_are_traced(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out"
    result = run("run", "--out", out, tmp_path / "program.py", 3000)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["kernel-0", "kernel-1"]
    assert {path.name for path in (out / "kernel-1").iterdir()} == FILES


def test_the_last_launch_has_ended_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("")
    did: list[Any] = []
    kernel = SimpleNamespace(report="a launch", device=torch.device("cuda", 1))
    monkeypatch.setattr("machete.megakernel.tooling.traced_kernels", lambda: contextlib.nullcontext([kernel]))
    monkeypatch.setattr(torch.cuda, "synchronize", did.append)
    monkeypatch.setattr("machete.trace.trace.Trace.of", lambda kernel, report: did.append(report))
    _run_program(tmp_path / "program.py", [])
    assert did == [torch.device("cuda", 1), "a launch"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("OPS = []\n", "the list of ops is empty"),
        ("print('nothing')\n", "has run no kernel"),
    ],
)
def test_what_cannot_be_traced_is_said(source: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(source)
    result = run("run", tmp_path / "file.py", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert says in result.stderr


def test_a_file_that_is_no_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "trace.npz").write_bytes(b"no trace")
    result = run("report", tmp_path)
    assert result.exit_code == 1
    assert "is no trace" in result.stderr


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    (tmp_path / "out").write_text("a file")
    result = run("run", tmp_path / "graph.py", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert f"cannot write to {tmp_path / 'out'}" in result.stderr
