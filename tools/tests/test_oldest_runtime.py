"""Which runtime a package is tested with, on a small repository with tags made for it."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from packaging.version import Version
from typer.testing import CliRunner

import oldest_runtime
from dev_environment import REPOSITORY
from distributions import Built
from oldest_runtime import RUNTIME, build_from_tag, dependents, released

PROJECT = """
    [build-system]
    requires = ["hatchling"]
    build-backend = "hatchling.build"
    [project]
    name = "{name}"
    version = "{version}"
    dependencies = [{dependencies}]
    [tool.hatch.build.targets.wheel]
    packages = ["src/{module}"]
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, stdout=subprocess.DEVNULL)


def write(repository: Path, name: str, version: str, *, dependencies: str = "", **modules: str) -> Path:
    """A package with one module for each of `modules`, replacing what was there."""
    folder = repository / "packages" / name
    shutil.rmtree(folder, ignore_errors=True)
    module = name.replace("-", "_")
    (folder / "src" / module).mkdir(parents=True)
    text = PROJECT.format(name=name, version=version, dependencies=dependencies, module=module)
    (folder / "pyproject.toml").write_text(textwrap.dedent(text))
    for file, source in modules.items():
        (folder / "src" / module / f"{file}.py").write_text(source)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Runtimes 0.1.0, 0.2.0, 0.2.1 and 1.0.0 are released; the tree has 1.0.0; the package allows 0.2 and later."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    for version in ("0.1.0", "0.2.0", "0.2.1", "1.0.0"):
        write(repository, RUNTIME, version, __init__=f"VERSION = {version!r}\n")
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", version)
        git(repository, "tag", f"{RUNTIME}-v{version}")
    git(repository, "tag", f"{RUNTIME}-vague")
    package = write(repository, "some-ops", "1.0", dependencies=f'"{RUNTIME}>=0.2,<1"', __init__="")
    (package / "tests").mkdir()
    test = "import machete_runtime, some_ops\ndef test(): assert machete_runtime.VERSION == '0.2.0'\n"
    (package / "tests" / "test_it.py").write_text(test)
    return repository


def test_the_oldest_release_that_a_package_allows(repository: Path) -> None:
    versions = released(repository)
    assert sorted(map(str, versions)) == ["0.1.0", "0.2.0", "0.2.1", "1.0.0"]
    [package] = dependents(repository)
    assert package.oldest(list(versions)) == Version("0.2.0")
    assert package.oldest([Version("1.0.0"), Version("0.1.0")]) is None


@pytest.fixture
def local(repository: Path, tmp_path: Path) -> dict[str, Built]:
    """Wheels of the present tree."""
    pytest.importorskip("build", reason="builds packages: runs in the prepared environment (nox)")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "ops")
    git(repository, "tag", "now")
    folder = tmp_path / "wheels"
    folder.mkdir()
    found = {}
    for name in (RUNTIME, "some-ops"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(oldest_runtime, "RUNTIME", name)
            (tmp_path / name).mkdir()
            built = build_from_tag(repository, "now", tmp_path / name)
        sdist, wheel = (Path(shutil.copy2(path, folder)) for path in (built.sdist, built.wheel))
        found[name] = Built(built.package, sdist, wheel)
    return found


def test_tests_run_beside_it(repository: Path, local: dict[str, Built], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oldest_runtime, "build_all", lambda *_, **__: local)
    # The working tree may hold anything: what is built is the tag.
    write(repository, RUNTIME, "9.0", __init__="raise SystemExit")
    result = CliRunner().invoke(_app(), ["--repository", str(repository)])
    assert result.exit_code == 0, result.output
    assert f"begins with {RUNTIME} 0.2.0 ({RUNTIME}-v0.2.0)" in result.output
    assert "1 passed" in result.output

    test = repository / "packages" / "some-ops" / "tests" / "test_it.py"
    test.write_text(test.read_text().replace("0.2.0", "0.2.1"))
    result = CliRunner().invoke(_app(), ["--repository", str(repository)])
    assert result.exit_code == 1
    assert "1 failed" in result.output
    assert "failed beside the oldest runtime that they allow: some-ops" in result.output


def test_without_a_release_in_the_range_that_is_said(repository: Path) -> None:
    for version in ("0.2.0", "0.2.1"):
        git(repository, "tag", "-d", f"{RUNTIME}-v{version}")
    result = CliRunner().invoke(_app(), ["--repository", str(repository)])
    assert result.exit_code == 0
    assert f"some-ops: no released {RUNTIME} is in <1,>=0.2 (releases: 0.1.0, 1.0.0)" in result.output


def test_a_tag_that_does_not_build_is_an_error(repository: Path, tmp_path: Path) -> None:
    folder = write(repository, RUNTIME, "0.3.0")
    (folder / "pyproject.toml").write_text("[project]\nname = 'no version'\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "broken")
    git(repository, "tag", f"{RUNTIME}-v0.3.0")
    with pytest.raises(RuntimeError, match=r"machete-runtime-v0\.3\.0 does not build"):
        build_from_tag(repository, f"{RUNTIME}-v0.3.0", tmp_path)


def test_this_repository_has_packages_to_test() -> None:
    assert "machete-ops-dense" in [package.name for package in dependents(REPOSITORY)]


def _app():  # type: ignore[no-untyped-def]
    import typer

    app = typer.Typer(add_completion=False)
    app.command()(oldest_runtime.main)
    return app
