"""The commands of this repository. `python -m nox --list` shows them; each runs in one prepared environment.

That environment (tools/dev_environment.py) is made once, so a session that runs a second time starts at once.
A host whose Python already has torch with CUDA lends it to the environment; elsewhere it gets a CPU build.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests", "lint", "typecheck"]

REPOSITORY = Path(__file__).parent
SOURCE_ROOTS = sorted(REPOSITORY.glob("packages/*/src"))

# What `nox -s tests` runs, a session a row: each package that has tests, and what concerns several of them.
TESTS = {path.parent.name.removeprefix("machete-"): [path] for path in sorted(REPOSITORY.glob("packages/*/tests"))}
TESTS["integration"] = [REPOSITORY / "integration_tests", REPOSITORY / "tools"]


@functools.cache
def scripts() -> Path:
    """The folder of the prepared environment's programs. Makes it first, and renews what of it is stale."""
    prepare = [sys.executable, str(REPOSITORY / "tools" / "dev_environment.py")]
    prepared = subprocess.run(prepare, stdout=subprocess.PIPE, text=True, check=True)
    return Path(prepared.stdout.strip()).parent


def run(session: nox.Session, program: str, *arguments: str, **variables: str) -> None:
    """Run a program of the prepared environment."""
    try:
        path = os.pathsep.join([str(scripts()), os.environ.get("PATH", "")])
    except subprocess.CalledProcessError:
        session.error("the environment could not be prepared; the lines above say why")
    session.run(str(scripts() / program), *arguments, env={"PATH": path, **variables}, external=True)


def pytest(session: nox.Session, *arguments: str) -> None:
    # Two workers, since the smallest machine that we promise times for has two cores; so one thread each.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    options = ["-n", "2", "--timeout", "300"]
    run(session, "pytest", *options, *arguments, *session.posargs, OMP_NUM_THREADS=threads)


@nox.session
def quickstart(session: nox.Session) -> None:
    """The README's first example: on the GPU if there is one, else on the simulator."""
    run(session, "python", "docs/examples/quickstart.py", *session.posargs)


@nox.session
@nox.parametrize("part", [nox.param(name, id=name) for name in TESTS])
def tests(session: nox.Session, part: str) -> None:
    """The tests of one package, or of the packages together."""
    pytest(session, *map(str, TESTS[part]))


def tests_of_arch(session: nox.Session, arch: str) -> None:
    # The fixtures and the failure where nothing was selected are in conftest.py.
    pytest(session, "--arch", arch, *(str(path) for paths in TESTS.values() for path in paths))


@nox.session(name="test-sm90")
def test_sm90(session: nox.Session) -> None:
    """Every test that claims sm_90a: on the card if it is there, else on the simulator."""
    tests_of_arch(session, "sm_90a")


@nox.session(name="test-sm100")
def test_sm100(session: nox.Session) -> None:
    """Every test that claims sm_100a: on the card if it is there, else on the simulator."""
    tests_of_arch(session, "sm_100a")


@nox.session(name="test-sm120")
def test_sm120(session: nox.Session) -> None:
    """Every test that claims sm_120a: on the card if it is there, else on the simulator."""
    tests_of_arch(session, "sm_120a")


@nox.session
def browser(session: nox.Session) -> None:
    """The trace's page in Chromium. `tests` runs these too, where there is one; this session fails without."""
    run(session, "pytest", "packages/machete-trace/tests/test_page.py", *session.posargs, MACHETE_BROWSER="required")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, the layers between and inside the packages, and the namespaces."""
    checks = [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["python", "tools/namespaces.py"],
        ["lint-imports", "--no-logo"],
    ]
    # import-linter builds its graph of the namespace `machete` from every source root that is on the path.
    roots = os.pathsep.join(map(str, SOURCE_ROOTS))
    failed = []
    for check in checks:
        try:
            run(session, *check, PYTHONPATH=roots)
        except nox.command.CommandFailed:
            failed.append(" ".join(check))
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types of every package and of the tools."""
    run(session, "mypy", *map(str, SOURCE_ROOTS), "tools", "conftest.py")


@nox.session
def build(session: nox.Session) -> None:
    """A wheel and an sdist of every package into dist/, each wheel built from its sdist."""
    run(session, "python", "tools/distributions.py", "dist")


@nox.session(name="release-check")
def release_check(session: nox.Session) -> None:
    """What has to hold before a package is released; `-- --tag machete-runtime-v0.1.0` checks a tag too."""
    run(session, "python", "tools/distributions.py", "dist")
    run(session, "python", "tools/release_check.py", "dist", *session.posargs)


@nox.session(name="tests-oldest-runtime")
def tests_oldest_runtime(session: nox.Session) -> None:
    """Each op package's tests beside the oldest released runtime that it allows."""
    run(session, "python", "tools/oldest_runtime.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, every warning an error."""
    run(session, "sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")
