"""Perfetto traces, read back with the protobuf classes."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as PerfettoTrace
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

from machete.trace import Trace
from machete.trace.buffer import roles_of
from machete.trace.events import TYPES, WAITS
from machete.trace.perfetto_export import write_perfetto


@pytest.fixture(scope="module")
def packets(trace: Trace) -> list:
    file = io.BytesIO()
    write_perfetto(trace, file)
    return list(PerfettoTrace.FromString(file.getvalue()).packet)


def test_a_process_for_each_sm_and_a_track_for_each_role(packets: list, trace: Trace) -> None:
    descriptors = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    processes = {each.process.pid: each.process.process_name for each in descriptors if each.HasField("process")}
    assert processes == {sm + 1: f"SM {sm} (hardware {sm})" for sm in range(4)}
    threads = [(each.thread.pid, each.thread.thread_name) for each in descriptors if each.HasField("thread")]
    assert sorted(threads) == sorted((sm + 1, role) for sm in range(4) for role in roles_of(trace.plan))
    counters = Counter(each.name for each in descriptors if each.HasField("counter"))
    assert counters == {"loader ahead of compute": 4, "bytes in flight, at most": 4}
    assert len({each.uuid for each in descriptors}) == len(descriptors)


def test_slices_nest_and_are_the_spans(packets: list, trace: Trace) -> None:
    events = [(packet.timestamp, packet.track_event) for packet in packets if packet.HasField("track_event")]
    begins = [(time, event) for time, event in events if event.type == TrackEvent.TYPE_SLICE_BEGIN]
    shown = trace.spans.where(trace.spans.type != TYPES.index("role"))
    assert len(begins) == len(shown)
    assert sum(event.type == TrackEvent.TYPE_SLICE_END for _, event in events) == len(begins)
    waits = Counter(event.name for _, event in begins if event.categories[0] == "wait")
    assert waits == Counter(f"waits: {TYPES[kind]}" for kind in shown.type.tolist() if TYPES[kind] in WAITS)
    assert any(event.name == "store StreamAdd tile 0" for _, event in begins)
    depth: Counter[int] = Counter()
    order = {TrackEvent.TYPE_SLICE_END: 0, TrackEvent.TYPE_SLICE_BEGIN: 1}
    slices = [(time, order[event.type], event.track_uuid) for time, event in events if event.type in order]
    for _, kind, track in sorted(slices):
        depth[track] += 1 if kind else -1
    assert set(depth.values()) == {0}


def test_arrows_lead_from_signals_to_waits(packets: list, trace: Trace) -> None:
    events = [(packet.timestamp, packet.track_event) for packet in packets if packet.HasField("track_event")]
    begins = {flow: time for time, event in events for flow in event.flow_ids}
    ends = {flow: time for time, event in events for flow in event.terminating_flow_ids}
    waiting = [row for row in trace.plan.queues.rows.tolist() if trace.plan.waits[row[4]]]
    assert begins.keys() == ends.keys()
    assert len(begins) == len(waiting)
    assert all(begins[flow] <= ends[flow] for flow in begins)


def test_counters_end_where_nothing_is_ahead(packets: list) -> None:
    values: dict[int, list[int]] = {}
    for packet in packets:
        if packet.track_event.type == TrackEvent.TYPE_COUNTER:
            values.setdefault(packet.track_event.track_uuid, []).append(packet.track_event.counter_value)
    assert len(values) == 8
    for counter in values.values():
        assert min(counter) == counter[-1] == 0
        assert max(counter) >= 2048, "at least one stage of two pages"
