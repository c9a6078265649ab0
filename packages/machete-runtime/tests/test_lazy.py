"""Packages that import their exports when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

LAZY_PACKAGES = ["machete.megakernel", "machete.megakernel.abi"]


def seen_by_type_checkers(package: str) -> dict[str, str]:
    """Name to module of everything that a package's `__init__.py` imports in its text."""
    file = import_module(package).__file__
    assert file is not None
    imports = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: "." * node.level + str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_programs_get_what_type_checkers_see(package: str) -> None:
    module = import_module(package)
    imports = seen_by_type_checkers(package)
    for name in module.__all__:
        origin = import_module(imports[name], package)
        assert getattr(module, name) is getattr(origin, name)
        assert vars(module)[name] is getattr(origin, name), "later uses find it at once"
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    module = import_module(package)
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'Opp'"):
        module.Opp  # noqa: B018
    assert not hasattr(module, "Opp")


def test_importing_a_lazy_package_imports_nothing_heavy() -> None:
    program = (
        f"import sys, {', '.join(LAZY_PACKAGES)}; names = dir(machete.megakernel); "
        "print('Op' in names, *(name for name in ('torch', 'cutlass', 'numpy', 'networkx') if name in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True"]
