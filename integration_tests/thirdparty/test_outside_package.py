"""An op package that is not ours: built, installed from its wheel in a clean environment, and held to the Op ABI."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clean_environment import CleanEnvironment, UndeclaredError

PACKAGE = Path(__file__).parent / "outside-ops"

Build = Callable[..., Path]

#: How the outside package declares what it needs of the runtime.
NEEDS = "machete-runtime>=0.1,<0.2"

#: Package to (its requirement, its status, words of the reason): built for other versions of the ABI than ours, 0.1.
BUILT_FOR = {
    "older": ("machete-runtime>=0.0,<0.2", "available", ""),
    "newer": ("machete-runtime>=0.2,<0.3", "rejected", "needs Op ABI 0.2; this runtime provides 0.1"),
    "major": ("machete-runtime>=1.0,<2", "rejected", "needs Op ABI 1.0; this runtime provides 0.1"),
}

RUN = """
import sys, torch
from machete.megakernel import Megakernel
from machete.megakernel.errors import AbiMismatchError
from machete.megakernel.registry import load
for name in sys.argv[1:]:
    try:
        op = load(name)
    except AbiMismatchError as error:
        print(name, "refused:", error.what, "| fix:", error.fix)
        continue
    x, y, z = torch.ones(3, 100)
    Megakernel(op.schedule(x=x, y=3 * y, z=z, weight=0.5)).run()
    print(name, "ran:", z.unique().tolist())
"""


def test_it_passes_the_conformance_suite(environment: CleanEnvironment, build_outside: Build, tmp_path: Path) -> None:
    wheel = build_outside()
    environment.install(str(wheel), find_links=wheel.parent)
    tests = shutil.copytree(PACKAGE / "tests", tmp_path / "tests")  # out of reach of this repository's configuration
    output = environment.run("-m", "pytest", "-p", "no:cacheprovider", "-q", str(tests))
    # Two ops, six tests, three architectures; the suite came by entry point, from the runtime's own wheel.
    assert "36 passed" in output
    assert "machete conformance: sm_120a on the simulator: 8 launches" in output


def test_packages_for_other_versions_of_the_abi(environment: CleanEnvironment, build_outside: Build) -> None:
    """One process lists and loads all three: what fits runs, and the others say why they do not."""
    for name, (requirement, _, _) in BUILT_FOR.items():
        wheel = build_outside(
            name=('name = "outside-ops"', f'name = "outside-ops-{name}"'),
            requirement=(NEEDS, requirement),
            module=("outside_ops", f"outside_ops_{name}"),
            clamp=('clamp = "', f'clamp-{name} = "'),
            mix=('mix = "', f'mix-{name} = "'),
        )
        # pip itself refuses those that do not fit; who installs without dependencies gets past it.
        environment.install("--no-deps", str(wheel), find_links=wheel.parent)

    rows = {row["name"]: row for row in json.loads(environment.script("machete", "ops", "--json"))["ops"]}
    for name, (_, status, reason) in BUILT_FOR.items():
        for op in ("clamp", "mix"):
            row: dict[str, Any] = rows[f"{op}-{name}"]
            assert row["status"] == status
            assert reason in row["reason"]
            assert row["distribution"] == f"outside-ops-{name}"

    lines = environment.run("-c", RUN, *(f"mix-{name}" for name in BUILT_FOR)).splitlines()
    said = {line.split()[0]: line for line in lines if line.startswith("mix-")}
    assert "ran: [2.0]" in said["mix-older"]
    assert "refused: outside-ops-newer needs Op ABI 0.2" in said["mix-newer"]
    assert "pip install 'machete-runtime>=0.2,<1'" in said["mix-newer"]
    assert "refused: outside-ops-major needs Op ABI 1.0" in said["mix-major"]


@pytest.mark.parametrize("name", ["newer", "major"])
def test_pip_refuses_them_too(environment: CleanEnvironment, build_outside: Build, name: str) -> None:
    wheel = build_outside(requirement=(NEEDS, BUILT_FOR[name][0]))
    with pytest.raises(UndeclaredError, match="No matching distribution found for machete-runtime"):
        environment.install(str(wheel), find_links=wheel.parent)
