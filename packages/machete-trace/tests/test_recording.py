"""What is recorded: every tile of every phase, once, inside of its instruction, and waits by cause."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from machete.megakernel import Megakernel
from machete.trace import NotTracedError, Trace
from machete.trace.buffer import ROLES, BufferLayout
from machete.trace.errors import TraceFileError
from machete.trace.events import TYPES, tag
from small_ops import Scale

Traced = Callable[..., tuple[Megakernel, Trace]]


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_every_tile_of_every_phase_is_there_once(schedule: str, arch: str, device: str, traced: Traced) -> None:
    kernel, trace = traced(device, arch, schedule=schedule)
    assert not trace.lost.any()
    tiles = {index: op.num_tiles for index, op in enumerate(kernel.plan.ops)}
    streaming, storing = {1, 2}, {1}
    roles = {"load": ("loader", streaming), "compute": ("compute", set(tiles)), "store": ("storer", storing)}
    for phase, (role, ops) in roles.items():
        spans = trace.spans.of(phase, role=role)
        found = Counter(zip(spans.op.tolist(), spans.tile.tolist(), strict=True))
        assert found == {(op, tile): 1 for op in ops for tile in range(tiles[op])}, phase


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_spans_lie_inside_of_each_other(schedule: str, arch: str, device: str, traced: Traced) -> None:
    kernel, trace = traced(device, arch, schedule=schedule)
    spans = trace.spans
    assert (spans.end >= spans.begin).all()
    instructions = spans.of("instruction")
    for role in ("controller", "loader", "compute", "storer"):
        mine = instructions.where(instructions.role == ROLES.index(role))
        assert sorted(mine.row.tolist()) == list(range(len(kernel.plan.queues.rows))), "all of them, in every role"
        for sm in range(kernel.plan.num_sms):
            of_sm = mine.where(mine.sm == sm)
            assert (of_sm.begin[1:] >= of_sm.end[:-1]).all(), "one after another"
    whole = spans.of("instruction", role="compute")
    whole = whole.where(np.argsort(whole.row))
    tiles = spans.of("compute")
    assert (tiles.begin >= whole.begin[tiles.row]).all()
    assert (tiles.end <= whole.end[tiles.row]).all()


def test_waits_have_causes_and_places(arch: str, device: str, traced: Traced) -> None:
    _, trace = traced(device, arch)
    causes = {
        "loader": {"fetch", "dependency", "page", "throttle"},
        "compute": {"fetch", "dependency", "data", "output"},
        "storer": {"fetch", "results"},
        "controller": {"slot"},
        "watcher": {"fetch"},
    }
    waits = trace.spans.of(*set().union(*causes.values()))
    for role, cause in set(zip(waits.role.tolist(), waits.type.tolist(), strict=True)):
        assert TYPES[cause] in causes[ROLES[role]]
    data = trace.spans.of("data")
    assert len(data)
    assert set(data.op.tolist()) <= {1, 2}
    assert (data.tile >= 0).all(), "it is inside of a tile"


def test_stages_are_counted_on_both_sides(arch: str, device: str, traced: Traced) -> None:
    kernel, trace = traced(device, arch)
    stage = 2 * TYPES.index("stage")
    expected = kernel.plan.ops[1].num_tiles + -(-5000 // 256)
    for role in ("loader", "compute"):
        counts = [int((trace.type[trace.events_of(sm, role)] == stage).sum()) for sm in range(4)]
        assert sum(counts) == expected


def test_signals_come_before_the_waits_for_them(arch: str, device: str, traced: Traced) -> None:
    """As the aligned clocks of different SMs have it."""
    for schedule in ("static", "dynamic"):
        _, trace = traced(device, arch, schedule=schedule)
        assert trace.alignment.early_ns <= trace.alignment.error_ns
        assert 0 < trace.alignment.error_ns < 200


def test_a_full_buffer_loses_events_and_says_so(monkeypatch: pytest.MonkeyPatch, traced: Traced) -> None:
    capacity = (8, 100, 30, 40, 100, 0)
    monkeypatch.setattr(BufferLayout, "of", classmethod(lambda cls, plan: cls(plan.num_sms, capacity)))
    _, trace = traced("cpu", "sm_90a", seed=1)
    waits = np.diff(np.append(0, np.cumsum(trace.type == tag("data")))[trace.begin])
    kept = (np.diff(trace.begin) - 2 * waits).reshape(4, len(ROLES))  # a stage's event says how long it was waited for
    assert (kept <= capacity).all()
    assert (trace.lost[:, ROLES.index("compute")] > 0).all()
    assert (kept[trace.lost > 0] == np.broadcast_to(capacity, kept.shape)[trace.lost > 0]).all()
    report = trace.report()
    assert report.lost == trace.lost.sum()
    assert f"{report.lost} events are lost" in str(report)
    assert sum(report.us.values()) == pytest.approx(report.traced_us)


def test_a_kernel_without_trace_or_run_has_nothing_to_show() -> None:
    x = torch.zeros(256)
    with pytest.raises(NotTracedError, match="trace=True"):
        Trace.of(Megakernel(Scale.schedule(x=x, y=x)))
    with pytest.raises(NotTracedError, match="buffer is empty"):
        Trace.of(Megakernel(Scale.schedule(x=x, y=x), trace=True))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def plain_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def with_meta(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with np.load(path) as file:
            arrays = dict(file)
        meta = {**json.loads(arrays["meta"].tobytes()), **changes}
        kept = {name: value for name, value in meta.items() if value is not None or name == "wall_us"}
        arrays["meta"] = np.frombuffer(json.dumps(kept).encode(), dtype=np.uint8)
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    return change


DAMAGES = {
    "cut": cut,
    "empty": emptied,
    "flipped": flipped,
    "array": plain_array,
    "no plan": with_meta(plan=None),
    "no alignment": with_meta(alignment=None),
    "alignment": with_meta(alignment={}),
    "throttles": with_meta(throttles=3),
    "plan": with_meta(plan={}),
    "format": with_meta(format=0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_no_trace(trace: Trace, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "trace.npz"
    trace.save(path)
    DAMAGES[damage](path)
    with pytest.raises(TraceFileError, match="is no trace"):
        Trace.load(path)


def test_a_trace_can_be_saved(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "trace.npz")
    loaded = Trace.load(tmp_path / "trace.npz")
    assert loaded.plan == trace.plan
    assert loaded.alignment == trace.alignment
    assert str(loaded.report()) == str(trace.report())
