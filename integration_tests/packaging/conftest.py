"""Wheels of every package, built once a run, and clean environments to install them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clean_environment import CleanEnvironment, closure
from distributions import Built, build_all


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Built]:
    """Every distribution of the repository, by name, in one folder that pip can find links in."""
    return build_all(tmp_path_factory.mktemp("wheels"), through_sdist=False)


@pytest.fixture
def clean(wheels: Mapping[str, Built], tmp_path: Path) -> Callable[..., CleanEnvironment]:
    """Makes an environment that holds the third-party distributions which the named ones of ours declare.

    One that is `editable` is there too, as pip installed it in the prepared environment.
    """

    def make(*names: str, editable: str | None = None) -> CleanEnvironment:
        local = {name: built for name, built in wheels.items() if name != editable}
        return CleanEnvironment(tmp_path / "env", closure(names, local))

    return make
