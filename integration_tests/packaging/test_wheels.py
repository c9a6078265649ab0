"""The wheels in clean environments: alone, all together, and mixed with an editable installation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from clean_environment import CleanEnvironment, UndeclaredError
from distributions import Built, package_folders
from release_check import IMPORT_ALL, leaves

pytest.importorskip("build", reason="builds packages: runs in the prepared environment (nox)")

PACKAGES = {package.name: package for package in package_folders()}
WITH_MODULES = [name for name, package in PACKAGES.items() if (package / "src").is_dir()]

Clean = Callable[..., CleanEnvironment]
Wheels = Mapping[str, Built]

FIND = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    print(name, spec.origin if spec else "absent")
"""


def origins(environment: CleanEnvironment, *modules: str) -> dict[str, str]:
    """Where each module would be imported from; "absent" where it is not there."""
    lines = environment.run("-c", FIND, *modules).splitlines()
    return dict(line.split(" ", 1) for line in lines)


def import_all(environment: CleanEnvironment, wheels: Wheels, *names: str) -> None:
    packages = [package for name in names for package in leaves(wheels[name].wheel)]
    assert packages
    environment.run("-c", IMPORT_ALL, *packages)


def install(environment: CleanEnvironment, wheels: Wheels, *names: str) -> None:
    files = [str(wheels[name].wheel) for name in names]
    environment.install(*files, find_links=wheels[names[0]].wheel.parent)


def test_the_runtime_alone_brings_no_ops(clean: Clean, wheels: Wheels) -> None:
    environment = clean("machete-runtime")
    install(environment, wheels, "machete-runtime")
    environment.run("-c", "import machete.megakernel")
    found = origins(environment, "machete.kernels", "machete.sim")
    assert found == {"machete.kernels": "absent", "machete.sim": "absent"}
    assert "Usage" in environment.script("machete", "--help")


def test_the_simulator_alone_says_what_a_program_needs(clean: Clean, wheels: Wheels) -> None:
    environment = clean("machete-sim")
    install(environment, wheels, "machete-sim")
    assert "Usage" in environment.script("machete-sim", "run", "--help")
    with pytest.raises(UndeclaredError, match="pip install torch"):
        environment.script("machete-sim", "run", "-m", "this")


@pytest.mark.parametrize("name", WITH_MODULES)
def test_each_wheel_works_with_what_it_declares(clean: Clean, wheels: Wheels, name: str) -> None:
    environment = clean(name)
    install(environment, wheels, name)
    import_all(environment, wheels, name)
    # The prepared environment has these, and no package declares them: what is not declared is not there.
    assert set(origins(environment, "pytest", "hypothesis").values()) == {"absent"}


def test_a_wheel_does_not_install_without_what_it_declares(clean: Clean, wheels: Wheels) -> None:
    environment = clean("machete-sim")
    with pytest.raises(UndeclaredError, match="No matching distribution found"):
        install(environment, wheels, "machete-runtime")


def test_the_meta_package_brings_everything(clean: Clean, wheels: Wheels) -> None:
    environment = clean("machete")
    install(environment, wheels, "machete")
    import_all(environment, wheels, *WITH_MODULES)
    program = "import importlib.metadata as m; print(*(p.load().__name__ for p in m.entry_points(group=%r)))"
    assert "GemmOp" in environment.run("-c", program % "machete.ops.v1").split()
    assert environment.run("-c", program % "machete.simulators").split()


@pytest.mark.parametrize("editable", WITH_MODULES)
def test_an_editable_package_among_wheels(clean: Clean, wheels: Wheels, editable: str) -> None:
    environment = clean(*WITH_MODULES, editable=editable)
    install(environment, wheels, *(name for name in WITH_MODULES if name != editable))
    import_all(environment, wheels, *WITH_MODULES)
    for name in WITH_MODULES:
        root = PACKAGES[name] / "src" if name == editable else environment.site
        for module, origin in origins(environment, *leaves(wheels[name].wheel)).items():
            assert origin.startswith(f"{root}/"), (module, origin)
