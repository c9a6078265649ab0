"""`machete-sim run`, `machete-sim trace` and `pytest --machete-sim`, as they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from machete.sim.programs.cli import app

pytest_plugins = ["pytester"]

PROGRAM = """
import sys
import cutlass, cutlass.cute as cute, torch
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def fill_kernel(y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = cutlass.Float32(3.0)

@cute.jit
def fill(y: cute.Tensor):
    fill_kernel(y).launch(grid=(1, 1, 1), block=(32, 1, 1))

def run(count):
    y = torch.zeros(count, device="cuda")
    fill(from_dlpack(y))
    return y.cpu()
"""


def machete_sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "machete.sim.programs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_script_runs_with_its_arguments_once_for_each_seed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + "\nassert __name__ == '__main__'\nprint(sys.argv[1:], run(32).sum().item())\n")
    done = machete_sim("run", "--arch", "sm_120a", "--seeds", "2", str(script), "--rows", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['--rows', '8'] 96.0"] * 2
    assert "sm_120a, seed 0: 1 launch" in done.stderr
    assert "sm_120a, seed 1: 1 launch" in done.stderr


def test_a_failing_kernel_fails_the_command_and_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + "\nrun(20)\n")
    done = machete_sim("run", "--seeds", "3", str(script))
    assert done.returncode == 1
    assert "failed with --seed 0" in done.stderr
    assert "out of bounds" in done.stderr
    assert "script.py:9" in done.stderr


RACE = PROGRAM.replace("cutlass.Float32(3.0)", "cutlass.Float32(thread // 32)").replace("y[thread]", "y[thread % 32]")


def test_a_race_is_reported_to_people_and_to_programs(tmp_path: Path) -> None:
    script, found = tmp_path / "script.py", tmp_path / "found.json"
    script.write_text(RACE.replace("block=(32, 1, 1)", "block=(64, 1, 1)") + "\nrun(32)\n")
    done = machete_sim("run", "--seeds", "2", "--json", str(found), str(script))
    assert done.returncode == 1
    assert "========= race: this write of global memory" in done.stderr
    assert "what to do" in done.stderr
    (report,) = json.loads(found.read_text())
    assert report["kind"] == "race"
    assert report["place"]["source"] == report["others"][0]["place"]["source"] == "script.py:9"
    assert machete_sim("run", "--check", "memory", "--json", str(found), str(script)).returncode == 0
    assert json.loads(found.read_text()) == []


def test_a_test_program_is_traced_with_its_lines(tmp_path: Path) -> None:
    script, found = tmp_path / "test_script.py", tmp_path / "trace.json"
    script.write_text(PROGRAM + "\ndef test():\n    run(32)\n    run(20)\n")
    done = machete_sim(
        "trace", "-o", str(found), "--launches", "1", "-m", "pytest", "-p", "no:cacheprovider", str(script)
    )
    assert done.returncode == 1  # the second launch is out of bounds
    assert "  warp  0 |" in done.stdout
    assert "1 more launches are not printed" in done.stderr
    events = json.loads(found.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    assert "test_script.py:9" in {event["name"] for event in events}


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_the_program_s(tmp_path: Path, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.exit({status})")
    assert CliRunner().invoke(app, ["run", str(script)]).exit_code == status


def test_a_module_runs_like_python_m() -> None:
    assert CliRunner().invoke(app, ["run", "-q", "-m", "json.tool", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["run", "no_such_file.py"], "no such file"), (["run", "--arch", "sm_80", __file__], "is not simulated")],
)
def test_what_cannot_run_is_said(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(("module", "distribution"), [("torch", "torch"), ("cutlass", "nvidia-cutlass-dsl")])
def test_a_missing_package_is_named(module: str, distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    result = CliRunner().invoke(app, ["run", __file__])
    assert result.exit_code == 2
    assert f"pip install {distribution}" in result.output


def test_tests_for_a_gpu_run_on_a_simulated_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(kernels=PROGRAM)
    pytester.makepyfile(
        """
        import pytest, torch
        from kernels import run

        @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        @pytest.mark.parametrize("count", [32, 64])
        def test_fill(count):
            assert torch.cuda.get_device_capability() == (10, 0)
            assert run(count).sum() == 96

        def test_too_small(simulation):
            run(8)
        """
    )
    result = pytester.runpytest_subprocess("--machete-sim", "sm_100a", "--machete-sim-seeds", "2", "-p", "no:xdist")
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(["*cuda:0 is a simulated sm_100a*", "*out of bounds*", "machete-sim: sm_100a*"])


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--machete-sim", "sm_80"), "is not simulated"), ((), "needs a simulated GPU")],
)
def test_wrong_use_of_the_plugin_is_said(pytester: pytest.Pytester, options: tuple[str, ...], message: str) -> None:
    pytester.makepyfile("def test(simulation): ...")
    result = pytester.runpytest_subprocess(*options, "-p", "no:xdist")
    assert result.ret != 0
    assert message in result.stdout.str() + result.stderr.str()
