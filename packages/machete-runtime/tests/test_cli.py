"""The command `machete`, and the subcommands that other packages add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from machete.megakernel import cli, registry
from machete.megakernel.abi.version import ABI

Install = Callable[..., Path]

FITTING = f"machete-runtime>={ABI[0]}.{ABI[1]}"
TOO_NEW = f"machete-runtime>={ABI[0] + 1}.0"

PLUGIN = """
    import typer

    app = typer.Typer(help="Replays launches.")

    @app.callback()
    def main():
        pass

    @app.command()
    def show(file: str, deep: bool = False):
        print("show", file, deep)
        raise typer.Exit(7)

    def report(count: int, name: str = "-"):
        "Write a report."
        print("report", count, name)
"""


@pytest.fixture(autouse=True)
def forget_fake_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test writes its own modules."""
    for name in ("fake_ops", "fake_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.application(), list(arguments), env={"COLUMNS": "200"}, prog_name="machete")


def add_command(install: Install, name: str, target: str, distribution: str = "fake-plugin", **more: object) -> None:
    install(distribution, entry_points={cli.GROUP: {name: target}}, **more)


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "ops" in result.stdout
    assert "version" in result.stdout


def test_version_shows_the_abi_and_what_is_installed(install: Install) -> None:
    install("machete-fake", version="4.5")
    lines = run("version").stdout.splitlines()
    assert f"Op ABI {ABI[0]}.{ABI[1]}" in lines
    assert "machete-fake 4.5" in lines
    assert any(line.startswith("torch 2.") for line in lines)


def test_ops_is_a_table(install: Install) -> None:
    install("fake-ops", requires=[FITTING], entry_points={registry.GROUP: {"fake-good": "fake_ops:Scale"}})
    install("fake-old", requires=[TOO_NEW], entry_points={registry.GROUP: {"fake-bad": "fake_ops:[red]"}})
    result = run("ops")
    assert result.exit_code == 0
    [good] = [line for line in result.stdout.splitlines() if "fake-good" in line]
    [bad] = [line for line in result.stdout.splitlines() if "fake-bad" in line]
    assert "available" in good
    assert "fake-ops" in good
    assert "rejected" in bad
    assert f"fake-old needs Op ABI {ABI[0] + 1}.0" in bad


def test_ops_as_json(install: Install) -> None:
    install("fake-ops", requires=[FITTING], entry_points={registry.GROUP: {"fake-good": "fake_ops:Scale"}})
    listed = json.loads(run("ops", "--json").stdout)
    assert listed["abi"] == f"{ABI[0]}.{ABI[1]}"
    assert {
        "name": "fake-good",
        "source": "fake_ops:Scale",
        "distribution": "fake-ops",
        "version": "1.0",
        "abi": f"{ABI[0]}.{ABI[1]}",
        "status": "available",
        "reason": "",
    } in listed["ops"]


def test_ops_load_imports_and_keeps_stdout_clean(install: Install) -> None:
    install(
        "fake-ops",
        requires=[FITTING],
        entry_points={registry.GROUP: {"fake-bad": "fake_ops:Scale"}},
        modules={"fake_ops": "print('hello'); raise RuntimeError('no luck')"},
    )
    [row] = [row for row in json.loads(run("ops", "--json", "--load").stdout)["ops"] if row["name"] == "fake-bad"]
    assert row["status"] == "rejected"
    assert "RuntimeError: no luck" in row["reason"]


def test_a_typer_app_is_a_subcommand(install: Install) -> None:
    add_command(install, "replay", "fake_plugin:app", modules={"fake_plugin": PLUGIN})
    listed = run("--help").stdout
    assert "Summary of fake-plugin" in listed
    result = run("replay", "show", "a.json", "--deep")
    assert (result.stdout, result.exit_code) == ("show a.json True\n", 7)
    own_help = run("replay", "show", "--help").stdout
    assert "machete replay show" in own_help
    assert "--deep" in own_help


def test_a_function_is_a_subcommand(install: Install) -> None:
    add_command(install, "report", "fake_plugin:report", modules={"fake_plugin": PLUGIN})
    result = run("report", "--name", "x", "3")
    assert (result.stdout, result.exit_code) == ("report 3 x\n", 0)
    assert "Write a report." in run("report", "--help").stdout
    assert run("report", "three").exit_code == 2


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("import sys; sys.exit('leaving')", "SystemExit: leaving"),
        ("app = 3", "TypeError: neither a typer.Typer nor a function, but 3"),
    ],
)
def test_a_broken_plugin_is_a_warning(install: Install, module: str, problem: str) -> None:
    add_command(install, "replay", "fake_plugin:app", modules={"fake_plugin": module})
    assert run("--help").exit_code == 0
    assert run("ops").exit_code == 0
    result = run("replay", "show")
    assert result.exit_code == 1
    assert result.stderr == f"warning: `replay` of fake-plugin 1.0 is broken: {problem}\n"


def test_plugins_do_not_replace_commands(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    add_command(install, "version", "fake_plugin:app")
    add_command(install, "replay", "fake_plugin:app", "another-plugin")
    add_command(install, "replay", "fake_plugin:app", "some-plugin")
    result = run("version")
    assert result.exit_code == 0
    assert "Op ABI" in result.stdout
    assert capsys.readouterr().err.splitlines() == [
        "warning: `replay` of some-plugin is left out: another-plugin has a command of that name",
        "warning: `version` of fake-plugin is left out: machete-runtime has a command of that name",
    ]


def test_broken_metadata_is_a_warning(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fake-plugin", entry_points=f"[{cli.GROUP}]\nno equals sign\n")
    result = run("version")
    assert result.exit_code == 0
    assert capsys.readouterr().err.startswith("warning: the metadata of fake_plugin-1.0.dist-info cannot be read")


@pytest.mark.parametrize("arguments", [["--help"], ["ops"], ["ops", "--json"], ["version"]])
def test_it_starts_without_torch_the_dsl_and_any_plugin(install: Install, arguments: list[str]) -> None:
    boom = {"fake_plugin": "raise AssertionError", "fake_ops": "raise AssertionError"}
    add_command(install, "replay", "fake_plugin:app", modules=boom)
    site = install("fake-ops", requires=[FITTING], entry_points={registry.GROUP: {"fake-good": "fake_ops:Scale"}})
    program = (
        "import sys\nfrom machete.megakernel.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
    )
    imported = set(answer.stderr.split())
    assert "machete.megakernel.cli" in imported
    assert not imported & {"torch", "cutlass", "cuda", "numpy", "networkx", "fake_plugin", "fake_ops"}
