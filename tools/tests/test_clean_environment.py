"""A clean environment holds the closure of what is declared, and nothing else of the prepared one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clean_environment import CleanEnvironment, UndeclaredError, closure


def test_the_closure_follows_requirements_and_leaves_out_extras() -> None:
    found = closure(["rich"], {})
    assert {"rich", "pygments", "markdown-it-py", "mdurl"} == found


def test_a_requirement_that_is_not_installed_is_an_error() -> None:
    with pytest.raises(UndeclaredError, match="machete-nowhere"):
        closure(["machete-nowhere>=1"], {})


def test_only_the_closure_can_be_imported(tmp_path: Path) -> None:
    environment = CleanEnvironment(tmp_path / "env", closure(["rich"], {}))
    assert environment.run("-c", "import rich.table, pygments; print(1)").strip() == "1"
    with pytest.raises(UndeclaredError, match="No module named 'typer'"):
        environment.run("-c", "import typer")
