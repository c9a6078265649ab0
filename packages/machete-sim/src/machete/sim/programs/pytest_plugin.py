"""Tests written for a GPU, on a simulated one: `pytest --machete-sim sm_100a`.

The whole session runs in one context, from before the first conftest.py is imported, so that what test modules ask of
torch while they are imported (`skipif(not torch.cuda.is_available())`) sees the simulated GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from ..errors import SimulationError
from .context import Simulation, simulated_gpu
from .device import DEFAULT_SMS

_SIMULATION = pytest.StashKey[Simulation]()
_CONTEXT = pytest.StashKey[contextlib.ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("machete-sim", "simulated GPU")
    group.addoption("--machete-sim", metavar="ARCH", help="run on a simulated GPU: sm_90a, sm_100a or sm_120a")
    group.addoption("--machete-sim-sms", type=int, default=DEFAULT_SMS, metavar="N", help="its multiprocessors")
    group.addoption(
        "--machete-sim-seeds",
        type=int,
        default=1,
        metavar="N",
        help="run each test N times; seeds choose the order of warps and of asynchronous copies",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    options = early_config.known_args_namespace
    if options.machete_sim is None:
        return
    stack = contextlib.ExitStack()
    try:
        simulation = stack.enter_context(simulated_gpu(options.machete_sim, sms=options.machete_sim_sms))
    except SimulationError as error:
        raise pytest.UsageError(f"--machete-sim: {error}") from error
    early_config.stash[_SIMULATION] = simulation
    early_config.stash[_CONTEXT] = stack


def pytest_unconfigure(config: pytest.Config) -> None:
    stack = config.stash.get(_CONTEXT, None)
    if stack is not None:
        stack.close()


def pytest_report_header(config: pytest.Config) -> str | None:
    simulation = config.stash.get(_SIMULATION, None)
    return None if simulation is None else f"machete-sim: cuda:0 is a simulated {simulation.device.arch}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = metafunc.config.getoption("--machete-sim-seeds")
    if _SIMULATION in metafunc.config.stash and seeds > 1:
        metafunc.fixturenames.append("_machete_sim_seed")
        metafunc.parametrize("_machete_sim_seed", range(seeds), indirect=True, ids=lambda seed: f"seed{seed}")


@pytest.fixture
def _machete_sim_seed(request: pytest.FixtureRequest) -> None:
    request.config.stash[_SIMULATION].seed = request.param


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """What was launched on the simulated GPU so far (machete.sim.Simulation)."""
    found: Simulation | None = request.config.stash.get(_SIMULATION, None)
    if found is None:
        raise pytest.UsageError("the fixture `simulation` needs a simulated GPU: pytest --machete-sim sm_90a")
    return found


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    simulation = config.stash.get(_SIMULATION, None)
    if simulation is not None:
        terminalreporter.write_line(f"machete-sim: {simulation}")
