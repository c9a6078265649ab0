"""The interface by which a runtime finds and calls the simulator."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

from machete.sim import Livelock, UnsupportedLaunch
from machete.sim.backend import simulate

BODY = "mov.u32 %r0, %ctaid.x; mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; red.global.add.u32 [%d1], 1;"


def call(module: Callable[..., str], x: np.ndarray, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "ptx": module(BODY, parameters=1),
        "entry": "k",
        "arch": "sm_90a",
        "params": x.ctypes.data.to_bytes(8, "little"),
        "grid": (len(x), 1, 1),
        "block": (64, 1, 1),
        "dynamic_shared": 0,
        "memory": [(x.ctypes.data, x.nbytes, "x", True)],
    }
    return simulate(**(arguments | changes))


def test_the_entry_point_names_simulate() -> None:
    (found,) = (entry for entry in entry_points(group="machete.simulators") if entry.name == "default")
    assert found.load() is simulate


def test_a_launch(module: Callable[..., str]) -> None:
    x = np.zeros(300, np.uint32)
    seen: list[tuple[int, int]] = []
    report = call(module, x, sms=7, progress=lambda instructions, ctas: seen.append((instructions, ctas)))
    assert (x == 64).all()
    assert report.instructions > 0
    assert report.seconds > 0
    assert report.max_stages_in_flight == 0
    assert all(isinstance(value, int | float) for value in report.summary.values())
    assert report.summary["ctas"] == 300
    assert seen


def test_the_same_seed_gives_the_same_run(module: Callable[..., str]) -> None:
    counts = [call(module, np.zeros(64, np.uint32), seed=seed).instructions for seed in (1, 1, 2)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "sm_80"}, "architecture sm_80"),
        ({"entry": "other"}, "no kernel other; it has k"),
        ({"params": b"1234"}, "takes 8 bytes of parameters, 4 are given"),
        ({"block": (2048, 1, 1)}, "1 to 1024 threads"),
        ({"block": (0, 1, 1)}, "1 to 1024 threads"),
        ({"dynamic_shared": 300_000}, "bytes of shared memory"),
    ],
)
def test_launches_that_cannot_be(module: Callable[..., str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedLaunch, match=message):
        call(module, np.zeros(4, np.uint32), **changes)


def test_the_compiled_block_is_binding(module: Callable[..., str]) -> None:
    text = module(BODY, parameters=1).replace(")\n{", ")\n.reqntid 128, 1, 1\n{")
    with pytest.raises(UnsupportedLaunch, match="compiled for blocks of"):
        call(module, np.zeros(4, np.uint32), ptx=text)
    clustered = module(BODY, parameters=1).replace(")\n{", ")\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n{")
    with pytest.raises(UnsupportedLaunch, match="compiled for clusters of"):
        call(module, np.zeros(4, np.uint32), ptx=clustered, cluster=(1, 1, 1))


def test_the_budget(module: Callable[..., str]) -> None:
    with pytest.raises(Livelock):
        call(module, np.zeros(400, np.uint32), max_instructions=100)


def test_an_exception_in_progress_ends_the_launch(module: Callable[..., str]) -> None:
    def stop(instructions: int, ctas: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        call(module, np.zeros(4, np.uint32), progress=stop)
