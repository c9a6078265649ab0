"""`machete plan`: the plan of a file's ops, printed and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from machete.megakernel.cli import application

OPS = """
import torch
from machete.megakernel import Op
from sizes import N

class CopyOp(Op):
    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    def compute(self, tile_N, x, y): ...

x, y, z = torch.zeros(N), torch.zeros(N), torch.zeros(N)
made = [CopyOp._schedule_single(tile_sizes={"N": 100}, x=a, y=b) for a, b in ((x, y), (y, z))]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text("N = 1000\n")
    path = tmp_path / "model.py"
    path.write_text(OPS + "OPS = made\n")
    return path


def run(*arguments: object):
    return CliRunner().invoke(application(), ["plan", *map(str, arguments)])


def test_it_prints_the_plan_and_what_to_expect(file: Path) -> None:
    answer = run(file)
    assert answer.exit_code == 0, answer.output
    assert "plan for sm_90a, 132 SMs, static: 2 ops of 1 kinds" in answer.output
    assert "10 tiles in 10 groups" in answer.output
    assert "expected: " in answer.output


def test_it_draws_the_plan(file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    answer = run(file, "--svg", picture, "--arch", "sm_120a", "--num-sms", 3, "--schedule", "dynamic")
    assert answer.exit_code == 0, answer.output
    assert "plan for sm_120a, 3 SMs, dynamic" in answer.output
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_ops_may_be_a_function(file: Path) -> None:
    file.write_text(OPS + "def ops():\n    return made\n")
    assert run(file).exit_code == 0


@pytest.mark.parametrize(
    ("ending", "arguments", "reason"),
    [
        pytest.param("", [], "defines neither ops() nor OPS", id="no ops"),
        pytest.param("OPS = []\n", [], "no ops", id="an empty list"),
        pytest.param("OPS = 3\n", [], "no list of scheduled ops", id="no list"),
        pytest.param("OPS = made[0]\n", [], "no list of scheduled ops", id="a single op"),
        pytest.param("OPS = [made]\n", [], "no list of scheduled ops", id="nested lists"),
        pytest.param("\n\n1 / 0\n", [], "cannot be run: ZeroDivisionError", id="an exception"),
        pytest.param("def ops():\n    raise SystemExit(3)\n", [], "cannot be run: SystemExit: 3", id="an exit"),
        pytest.param("OPS = (\n", [], "cannot be run: SyntaxError", id="a syntax error"),
        pytest.param("OPS = made\n", ["--svg", "no/such/folder.svg"], "cannot write no/such", id="no such folder"),
        pytest.param("OPS = made\n", ["--arch", "sm_80"], "unknown architecture 'sm_80'", id="an unknown architecture"),
        pytest.param("OPS = made\n", ["--num-sms", 0], "num_sms=0", id="no SMs"),
        pytest.param("OPS = made\n", ["--schedule", "fast"], "schedule='fast'", id="an unknown schedule"),
    ],
)
def test_what_is_wrong_is_said(file: Path, ending: str, arguments: list[object], reason: str) -> None:
    file.write_text(OPS + ending)
    answer = run(file, *arguments)
    assert answer.exit_code == 1
    assert reason in answer.output
    assert "Traceback" not in answer.output
