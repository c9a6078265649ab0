"""How the root conftest.py selects the tests that claim an architecture, on a small repository of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dev_environment import REPOSITORY

TESTS = """
import pytest

def test_of_every_architecture(arch, device):
    assert device in ("cpu", "cuda")

@pytest.mark.archs("sm_90a")
def test_of_one(arch):
    assert arch == "sm_90a"

@pytest.mark.archs("sm_120a")
def test_of_one_without_fixture():
    pass

@pytest.mark.parametrize(("arch", "n"), [("sm_90a", 1), ("sm_100a", 2)])
def test_by_hand(arch, n):
    assert (arch, n) in [("sm_90a", 1), ("sm_100a", 2)]

@pytest.mark.archs("sm_120a")
def test_skipped(arch):
    pytest.skip("not here")

def test_of_none():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(REPOSITORY / "conftest.py", tmp_path)
    (tmp_path / "test_small.py").write_text(TESTS)
    marks = [f"{mark}: claims it" for mark in ("sm90", "sm100", "sm120", "archs")]
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nmarkers =\n  " + "\n  ".join(marks))
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *arguments]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return result.returncode, result.stdout


def passed(output: str) -> int:
    found = re.search(r"(\d+) passed", output)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 8),
        (["--arch", "sm_100a"], 2),
        (["--arch", "sm_120a"], 2),
        (["-m", "sm100"], 2),
        (["--arch", "sm_90a", "-n", "1"], 3),
    ],
)
def test_the_tests_that_claim_an_architecture_are_selected(folder: Path, arguments: list[str], count: int) -> None:
    status, output = run(folder, *arguments)
    assert status == 0, output
    assert passed(output) == count, output


def test_the_report_says_where_they_ran(folder: Path) -> None:
    _, output = run(folder, "--arch", "sm_100a")
    assert re.search(r"^sm_100a: runs on the (simulator|card)", output, re.MULTILINE), output
    assert re.search(r"^sm_100a: 2 tests ran on the (simulator|card)", output, re.MULTILINE), output


@pytest.mark.parametrize(
    "selected", [["-k", "test_of_none"], ["-k", "test_skipped"], ["-k", "test_skipped", "-n", "1"]]
)
def test_nothing_executed_is_a_failure(folder: Path, selected: list[str]) -> None:
    status, output = run(folder, "--arch", "sm_120a", *selected)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, output
    assert "no test that claims sm_120a was executed" in output


def test_an_unknown_architecture_in_the_mark_is_refused(folder: Path) -> None:
    (folder / "test_small.py").write_text(TESTS.replace('archs("sm_90a")', 'archs("sm_91")'))
    status, output = run(folder)
    assert status != 0
    assert "archs('sm_91',) names none of sm_90a, sm_100a, sm_120a" in output
