"""Reports: as text for people, as values for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from machete.sim import Deadlock, Race, Report
from machete.sim.report import json_report, text_report, write_json

Launch = Callable[..., Report]

RACE = """
    mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5;
    // @machete.mark "compute of op {0}" %r1
    .loc 1 7 0
    st.global.u32 [%a0], %r1;
"""


@pytest.fixture
def race(launch: Launch) -> Race:
    with pytest.raises(Race) as caught:
        launch(RACE, [np.full(4, 9, np.uint32)], threads=64, names=["y"], before='.file 1 "/home/author/kernel.py"')
    return caught.value


def test_the_text_has_both_accesses_and_what_to_do(race: Race) -> None:
    text = text_report(race, seed=3)
    lines = [line.removeprefix("=========").strip() for line in text.splitlines()]
    assert all(line.startswith("=========") for line in text.splitlines())
    assert lines[0].startswith("race: this write of global memory, byte 0 of 'y' is not ordered after an earlier write")
    assert lines.count("at /home/author/kernel.py:7") == 2
    assert sorted(line for line in lines if line.startswith("in ")) == ["in compute of op 0", "in compute of op 1"]
    assert any(line.startswith("what to do: order them with a barrier") for line in lines)
    assert lines[-1] == "found with seed 3"


def test_the_values_have_no_paths_of_the_machine(race: Race, tmp_path: Path) -> None:
    write_json(tmp_path / "found.json", [json_report(race, seed=3)])
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["kind"] == "race"
    assert found["seed"] == 3
    assert found["place"]["source"] == "kernel.py:7"
    assert found["others"][0]["place"]["mark"] in ("compute of op 0", "compute of op 1")
    assert "/home" not in json.dumps(found)


def test_a_deadlock_lists_every_warp(launch: Launch) -> None:
    with pytest.raises(Deadlock) as caught:
        launch("mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 64; @%p0 ret; bar.sync 1, 96;", threads=96)
    text = text_report(caught.value)
    assert text.count("waits at named barrier 1: 64 of 96 threads arrived") == 2
    assert [other["warp"] for other in json_report(caught.value)["others"]] == [0, 1]
