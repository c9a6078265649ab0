"""Wheels of our packages and of the outside one, and environments that hold nothing but those and what they declare."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clean_environment import CleanEnvironment, closure
from distributions import Built, build_all

PACKAGE = Path(__file__).parent / "outside-ops"

#: Tests of the outside package are its own: they run in its own environment, not here.
collect_ignore_glob = ["outside-ops/*"]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Built]:
    """Every distribution of the repository, by name."""
    pytest.importorskip("build", reason="builds packages: runs in the prepared environment (nox)")
    return build_all(tmp_path_factory.mktemp("wheels"), through_sdist=False)


@pytest.fixture(scope="session")
def build_outside(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the outside package from a copy, with texts of its pyproject.toml replaced; returns the wheel."""

    def build(**changes: tuple[str, str]) -> Path:
        folder = tmp_path_factory.mktemp("outside")
        source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
        project = source / "pyproject.toml"
        text = project.read_text()
        for old, new in changes.values():
            assert old in text
            text = text.replace(old, new)
        project.write_text(text)
        if "module" in changes:
            old, new = changes["module"]
            (source / "src" / old).rename(source / "src" / new)
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(source)]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert result.returncode == 0, result.stdout
        [wheel] = folder.glob("*.whl")
        return wheel

    return build


@pytest.fixture
def environment(wheels: Mapping[str, Built], tmp_path: Path) -> CleanEnvironment:
    """With the runtime, the simulator, and pytest, as `pip install machete-runtime[conformance,sim]` gives them."""
    made = CleanEnvironment(tmp_path / "env", closure(["machete-runtime[conformance,sim]"], wheels))
    find_links = wheels["machete-runtime"].wheel.parent
    made.install("machete-runtime[conformance,sim]", find_links=find_links)
    return made
