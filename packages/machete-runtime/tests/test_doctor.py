"""`machete doctor` on machines where things are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import machete.megakernel
from machete.megakernel import doctor, entry
from machete.megakernel.doctor import NOTE, OK, WRONG, Finding

SOURCES = Path(machete.megakernel.__file__).parents[2]


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_where_nothing_else_is_installed() -> None:
    """An interpreter without site-packages: a full report, and no traceback."""
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n"
        "from machete.megakernel import doctor\n"
        "ours = {'__main__', 'machete', *sys.stdlib_module_names}\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - ours\n"
        "print('foreign:', sorted(foreign))\n"
        "sys.exit(doctor.main())"
    )
    result = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "foreign: []" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    for section in ("system", "packages", "imports", "GPU", "plugins", "settings", "cache"):
        assert f"\n{section}\n" in result.stdout
    assert "wrong: packages: torch: is not installed" in result.stdout


def test_imports_that_fail_crash_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {
        "fine": "print('version 1')",
        "missing": "import no_such_module",
        "crash": "import os; os.abort()",
        "hang": "import time; time.sleep(600)",
        "noisy": "print('x' * 1_000_000); print('last')",
    }
    monkeypatch.setattr(doctor, "IMPORTS", programs)
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 5.0)
    found = by_name(iter(doctor.imports()))
    assert (found["fine"].status, found["fine"].text) == (OK, "version 1")
    assert (found["noisy"].status, found["noisy"].text) == (OK, "last")
    assert (found["missing"].status, found["missing"].text) == (
        WRONG,
        "ModuleNotFoundError: No module named 'no_such_module'",
    )
    assert found["crash"].status == WRONG
    assert "ended by signal 6" in found["crash"].text
    assert (found["hang"].status, found["hang"].text) == (WRONG, "took longer than 5 s")


def test_a_probe_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("system", "Python", OK, "there")
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setattr(doctor, "system", broken)
    monkeypatch.setattr(doctor, "imports", lambda: ())
    found = list(doctor.examine())
    assert Finding("system", "probe", WRONG, "RuntimeError: no such thing") in found
    assert {finding.section for finding in found} >= {"system", "packages", "settings"}


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "perhaps")
    monkeypatch.setenv("MACHETE_CASHE_DIR", "/tmp")
    found = by_name(doctor.settings())
    assert found["MACHETE_CACHE"].status == WRONG
    assert "it is on or off" in found["MACHETE_CACHE"].text
    assert found["MACHETE_CASHE_DIR"].status == WRONG
    assert found["MACHETE_CACHE_BYTES"].text.startswith("2147483648 (default). ")


def test_settings_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points = {
        "machete.settings": [
            EntryPoint("MACHETE_OTHER", "no_such_package.settings:read", "machete.settings"),
            EntryPoint("MACHETE_ANOTHER", "no_such_package.settings:read", "machete.settings"),
        ]
    }
    monkeypatch.setattr(doctor, "_entries", lambda group: entry_points.get(group, []))
    monkeypatch.setenv("MACHETE_OTHER", "value")
    monkeypatch.setenv("MACHETE_OTTER", "value")
    found = by_name(doctor.settings())
    assert found["MACHETE_OTHER"] == Finding(
        "settings", "MACHETE_OTHER", OK, "value. Read by no_such_package.settings."
    )
    assert found["MACHETE_ANOTHER"].text == "not set. Read by no_such_package.settings."
    assert found["MACHETE_OTTER"].status == WRONG


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert by_name(doctor.cache())["disk"].status == WRONG


def test_a_cache_that_is_a_link_to_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path / "link"))
    assert by_name(doctor.cache())["disk"].status == WRONG


def test_a_stray_init_hides_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stray = tmp_path / "machete" / "kernels" / "__init__.py"
    stray.parent.mkdir(parents=True)
    stray.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = by_name(doctor.system())
    assert found["namespace"].status == WRONG
    assert str(stray) in found["namespace"].text


def test_the_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("a", "one", OK, "fine"), Finding("a", "two", WRONG, "bad"), Finding("b", "three", NOTE, "so")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    assert doctor.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["wrong: a: two: bad", "1 things are wrong"]
    assert doctor.main(["--json"]) == 1
    assert [row["status"] for row in json.loads(capsys.readouterr().out)] == [OK, WRONG, NOTE]
    findings.pop(1)
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("nothing is wrong\n")


def test_the_script_starts_it_without_the_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "machete.megakernel.cli", None)  # as if typer were missing
    monkeypatch.setattr(doctor, "examine", lambda: iter(()))
    monkeypatch.setattr(sys, "argv", ["machete", "doctor"])
    assert entry.main() == 0
    monkeypatch.setattr(sys, "argv", ["machete", "ops"])
    assert entry.main() == 1
    assert "`machete doctor` says what is missing" in capsys.readouterr().err
