"""What every test of the repository shares: the architectures it claims, and where they run.

A test that takes the fixture `arch` runs once for each architecture; `@pytest.mark.archs("sm_90a")` narrows
that, and a parametrisation of `arch` by hand replaces it. Such tests carry the marks `sm90`, `sm100` and
`sm120`, and `pytest --arch sm_90a` selects them. The fixture `device` says where the test's tensors live: on
the card if it is of that architecture, else on the CPU, which means the simulator.

Kernels that tests compile are kept in `.nox/kernels`. With `MACHETE_CACHE=off` they are not, and compile in two
thirds of the time.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MARKS = {"sm_90a": "sm90", "sm_100a": "sm100", "sm_120a": "sm120"}
CAPABILITIES = {"sm_90a": (9, 0), "sm_100a": (10, 0), "sm_120a": (12, 0)}


@functools.cache
def card() -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of the first CUDA device, or None."""
    try:
        ctypes.CDLL("libcuda.so.1")  # without a driver, spare the seconds that importing torch takes
        import torch
    except (ImportError, OSError):
        return None
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)


def place(arch: str) -> str:
    """Where the tests of `arch` run, in words."""
    found = card()
    on_card = found is not None and found[1] == CAPABILITIES[arch]
    return f"the card ({found[0]})" if found and on_card else "the simulator"


@pytest.fixture
def device(arch: str) -> str:
    """Where the tensors of a test of `arch` live: "cuda" if the card is of that architecture, else "cpu"."""
    return "cuda" if place(arch) != "the simulator" else "cpu"


def claims(node: Any) -> Sequence[str]:
    """The architectures that the mark `archs` of a test names."""
    mark = node.get_closest_marker("archs")
    if mark is None:
        return ()
    if not mark.args or not set(mark.args) <= set(MARKS):
        raise pytest.UsageError(f"{node.nodeid}: archs{mark.args!r} names none of {', '.join(MARKS)}")
    return tuple(mark.args)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--arch", choices=list(MARKS), help="run only the tests that claim this architecture")


def pytest_configure(config: pytest.Config) -> None:
    # Never the user's cache. This one stays between runs, for both workers: what was not edited is not compiled again.
    os.environ["MACHETE_CACHE_DIR"] = str(Path(__file__).parent / ".nox" / "kernels")
    arch = config.getoption("--arch")
    if arch is not None and not config.option.collectonly and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ExecutedTests(arch), "machete-executed-tests")


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = config.getoption("--arch")
    return [f"{arch}: runs on {place(arch)}" for arch in MARKS if chosen in (None, arch)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "arch" not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if "arch" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return
    metafunc.parametrize("arch", claims(metafunc.definition) or tuple(MARKS), scope="session")


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        arch = callspec.params.get("arch") if callspec else None
        for name in (arch,) if arch in MARKS else claims(item):
            item.add_marker(MARKS[name])
    chosen = config.getoption("--arch")
    if chosen is not None:
        others = [item for item in items if item.get_closest_marker(MARKS[chosen]) is None]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker(MARKS[chosen]) is not None]


class ExecutedTests:
    """Counts what ran under `--arch`, and fails a run in which nothing did."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.count += 1

    @pytest.hookimpl(tryfirst=True)  # before the terminal writes its closing line
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.count == 0 and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.count == 0:
            terminalreporter.write_line(f"no test that claims {self.arch} was executed", red=True)
        else:
            terminalreporter.write_line(f"{self.arch}: {self.count} tests ran on {place(self.arch)}")
