"""What makes a prepared environment stale, on small packages made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev_environment import Stamps, dependencies, package_digest

PYPROJECT = """
[build-system]
requires = ["hatchling>=1"]
[project]
name = "machete-toy"
dependencies = ["machete-runtime>=0.1,<0.2", "numpy>=1.26"]
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    source = tmp_path / "machete-toy" / "src" / "machete" / "toy"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (tmp_path / "machete-toy" / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path / "machete-toy"


def make_native(package: Path) -> None:
    (package / "CMakeLists.txt").write_text("project(toy)\n")
    (package / "src" / "core.cpp").write_text("int one() { return 1; }\n")


def test_python_alone_is_never_installed_again_for_its_source(package: Path) -> None:
    before = package_digest(package)
    (package / "src" / "machete" / "toy" / "more.py").touch()
    assert package_digest(package) == before
    (package / "pyproject.toml").write_text(PYPROJECT + '[project.scripts]\ntoy = "machete.toy:main"\n')
    assert package_digest(package) != before


@pytest.mark.parametrize("changed", ["src/core.cpp", "CMakeLists.txt", "src/machete/toy/more.py"])
def test_a_native_package_is_built_again_for_its_source_and_new_modules(package: Path, changed: str) -> None:
    make_native(package)
    before = package_digest(package)
    (package / changed).write_text("changed\n")
    assert package_digest(package) != before


def test_what_a_build_leaves_behind_does_not_count(package: Path) -> None:
    make_native(package)
    before = package_digest(package)
    (package / "build" / "cp311").mkdir(parents=True)
    (package / "build" / "cp311" / "generated.hpp").touch()
    assert package_digest(package) == before


def test_our_own_distributions_are_never_asked_of_an_index(package: Path) -> None:
    assert dependencies([package]) == ["hatchling>=1", "numpy>=1.26"]


def test_a_step_is_stale_until_it_is_recorded_and_when_it_changes(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps")
    assert not stamps.fresh("step", "a")
    stamps.record("step", "a")
    assert stamps.fresh("step", "a")
    assert not stamps.fresh("step", "b")
