"""The import contracts in pyproject.toml catch what they are there for: each is broken once, on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dev_environment import REPOSITORY

pytest.importorskip("importlinter", reason="import-linter is in the prepared environment (nox)")

MODULES = {
    "runtime": ["megakernel", *(f"megakernel/{layer}" for layer in ("abi", "plan", "device", "launch"))],
    "sim": ["sim"],
    "ops": ["kernels/gemm"],
    "trace": ["trace"],
}


def lint(roots: dict[str, Path]) -> tuple[int, str]:
    """Check the repository's contracts on other source roots; returns exit status and output."""
    # Without `site`, so that the editable packages of this environment are not part of the namespace too.
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [
        sys.executable,
        "-S",
        "-c",
        program,
        "--no-cache",
        "--no-logo",
        str(REPOSITORY / "pyproject.toml"),
    ]
    path = os.pathsep.join([*map(str, roots.values()), sysconfig.get_path("purelib")])
    variables = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return result.returncode, result.stdout


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """Three source roots that share the namespace `machete` and import nothing."""
    for root, packages in MODULES.items():
        for package in packages:
            folder = tmp_path / root / "machete" / package
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
    return {root: tmp_path / root for root in MODULES}


def test_the_contracts_hold_where_nothing_is_imported(roots: dict[str, Path]) -> None:
    status, output = lint(roots)
    assert status == 0, output


@pytest.mark.parametrize(
    ("root", "module", "statement", "contract"),
    [
        ("sim", "sim/run.py", "import machete.megakernel", "the simulator knows nothing"),
        ("sim", "sim/run.py", "from machete.kernels import gemm", "the simulator knows nothing"),
        ("runtime", "megakernel/launch/run.py", "import machete.sim", "the runtime finds simulator, tracer and ops"),
        (
            "runtime",
            "megakernel/cli.py",
            "import machete.kernels.gemm",
            "the runtime finds simulator, tracer and ops",
        ),
        (
            "runtime",
            "megakernel/launch/run.py",
            "import machete.trace",
            "the runtime finds simulator, tracer and ops",
        ),
        ("ops", "kernels/gemm/op.py", "import machete.sim", "ops know nothing of simulator and tracer"),
        ("trace", "trace/report.py", "import machete.kernels.gemm", "the tracer knows nothing"),
        ("trace", "trace/report.py", "from machete.megakernel.plan import queue", "ops and tracer use the public"),
        ("ops", "kernels/gemm/op.py", "from machete.megakernel.plan import queue", "ops and tracer use the public"),
        ("runtime", "megakernel/abi/op.py", "from ..plan import queue", "inside the runtime"),
        (
            "runtime",
            "megakernel/plan/queue.py",
            "from machete.megakernel.device import ring",
            "inside the runtime",
        ),
        ("runtime", "megakernel/device/ring.py", "import machete.megakernel.launch", "inside the runtime"),
    ],
)
def test_a_planted_import_breaks_its_contract(
    roots: dict[str, Path], root: str, module: str, statement: str, contract: str
) -> None:
    (roots[root] / "machete" / module).write_text(statement + "\n")
    status, output = lint(roots)
    broken = [line for line in output.splitlines() if line.endswith("BROKEN")]
    assert status == 1, output
    assert len(broken) == 1, output
    assert broken[0].startswith(contract)
