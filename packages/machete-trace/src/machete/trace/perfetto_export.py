"""A trace for ui.perfetto.dev: a process for each SM, a track for each role, arrows from signals to waits.

Protocol buffers of Perfetto's trace format (perfetto.dev/docs, "Trace packet" and "Track events").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from machete.megakernel.tooling import WAITS

from .ahead import stages_of
from .buffer import ROLES, roles_of
from .events import PHASES, TYPES
from .events import WAITS as CAUSES
from .spans import Spans, signalled, signals

if TYPE_CHECKING:
    from .trace import Trace

_SEQUENCE = 1
_TRACKS = 16  # identifiers of an SM
_COUNTER_NAMES = ("loader ahead of compute", "bytes in flight, at most")
_COUNTERS = len(ROLES)
_PROCESS = _COUNTERS + len(_COUNTER_NAMES)
_HIDDEN = ("role",)  # lasts as long as the kernel


def write_perfetto(trace: Trace, file: BinaryIO) -> None:
    """Write the trace as protobuf. Slices have op, tile and instruction; waits their cause as name.

    Counters show the bytes that the loader is ahead of compute, and those that are on their way (`ahead`).
    """
    builder = StreamingTraceProtoBuilder(file)
    for packet in _packets(trace):
        packet.trusted_packet_sequence_id = _SEQUENCE
        builder.write_packet(packet)


def _packets(trace: Trace) -> Iterator[TracePacket]:
    first = TracePacket()
    first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    yield first
    for sm in range(trace.plan.num_sms):
        yield from _tracks(trace, sm)
    names = [trace.plan.kinds[op.kind].name.rpartition(".")[2] for op in trace.plan.ops]
    yield from _slices(trace.spans, names)
    yield from _flows(trace)
    for sm in range(trace.plan.num_sms):
        stages = stages_of(trace, sm)
        for counter, (times, values) in enumerate((stages.ahead(), stages.in_flight())):
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                packet = _event(TrackEvent.TYPE_COUNTER, time, sm, _COUNTERS + counter)
                packet.track_event.counter_value = value
                yield packet


def _track(sm: int, track: int) -> int:
    return 1 + sm * _TRACKS + track


def _tracks(trace: Trace, sm: int) -> Iterator[TracePacket]:
    process = TracePacket()
    process.track_descriptor.uuid = _track(sm, _PROCESS)
    process.track_descriptor.process.pid = sm + 1
    process.track_descriptor.process.process_name = f"SM {sm} (hardware {int(trace.sm_ids[sm])})"
    yield process
    for role, name in enumerate(roles_of(trace.plan)):
        packet = TracePacket()
        packet.track_descriptor.uuid = _track(sm, role)
        packet.track_descriptor.thread.pid = sm + 1
        packet.track_descriptor.thread.tid = _track(sm, role)
        packet.track_descriptor.thread.thread_name = name
        yield packet
    for number, name in enumerate(_COUNTER_NAMES):
        counter = TracePacket()
        counter.track_descriptor.uuid = _track(sm, _COUNTERS + number)
        counter.track_descriptor.parent_uuid = _track(sm, _PROCESS)
        counter.track_descriptor.name = name
        counter.track_descriptor.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
        yield counter


def _event(kind: int, time_us: float, sm: int, track: int) -> TracePacket:
    packet = TracePacket()
    packet.timestamp = round(1000 * time_us)
    packet.track_event.type = kind
    packet.track_event.track_uuid = _track(sm, track)
    return packet


def _slices(spans: Spans, names: list[str]) -> Iterator[TracePacket]:
    """Begins and ends in the order of time, on each track."""
    shown = ~np.isin(spans.type, [TYPES.index(name) for name in _HIDDEN])
    columns = ("sm", "role", "type", "begin", "end", "op", "row", "tile", "value")
    for sm, role, kind, begin, end, op, row, tile, value in zip(
        *(getattr(spans, name)[shown].tolist() for name in columns), strict=True
    ):
        what = TYPES[kind]
        packet = _event(TrackEvent.TYPE_SLICE_BEGIN, begin, sm, role)
        event = packet.track_event
        event.name = f"waits: {what}" if what in CAUSES else _title(what, op, tile, value, names)
        event.categories.append("wait" if what in CAUSES else "work")
        for key, number in (("op", op), ("instruction", row), ("tile", tile)):
            if number >= 0:
                annotation = event.debug_annotations.add()
                annotation.name = key
                annotation.int_value = number
        yield packet
        yield _event(TrackEvent.TYPE_SLICE_END, end, sm, role)


def _title(what: str, op: int, tile: int, value: int, names: list[str]) -> str:
    if op < 0:
        return what
    if what in PHASES:
        return f"{what} {names[op]} {'range' if value < 0 else f'tile {tile}'}"
    return f"{names[op]} (op {op})" if what == "instruction" else what


def _flows(trace: Trace) -> Iterator[TracePacket]:
    """For each wait that depends on something an arrow from the last signal that it needed."""
    done, sources = signalled(trace), signals(trace)
    by = trace.spans.of("instruction", role="compute")
    sm_of = dict(zip(by.row.tolist(), by.sm.tolist(), strict=True))
    polls = trace.spans.of("polling")
    for row, sm, end in zip(polls.row.tolist(), polls.sm.tolist(), polls.end.tolist(), strict=True):
        needed = [sources[counter] for counter, _ in trace.plan.waits[trace.plan.queues.rows[row, WAITS]]]
        rows = np.concatenate(needed) if needed else np.zeros(0, dtype=np.int64)
        rows = rows[done[rows] <= end]
        if not len(rows):
            continue
        last = int(rows[np.argmax(done[rows])])
        storer = trace.plan.kinds[trace.plan.ops[trace.plan.queues.rows[last, 0]].kind].has_store
        role = "storer" if storer else "compute"
        number = row + 1  # each instruction is polled for once
        signal = _event(TrackEvent.TYPE_INSTANT, done[last], sm_of.get(last, sm), ROLES.index(role))
        signal.track_event.name = f"signal of instruction {last}"
        signal.track_event.flow_ids.append(number)
        yield signal
        met = _event(TrackEvent.TYPE_INSTANT, end, sm, ROLES.index("watcher"))
        met.track_event.name = f"instruction {row} may begin"
        met.track_event.terminating_flow_ids.append(number)
        yield met
