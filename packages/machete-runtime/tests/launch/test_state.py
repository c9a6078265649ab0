"""What launches on different streams, and in graphs, have of their own: on the simulator, without streams."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch

from machete.megakernel import Megakernel, temporary
from machete.megakernel.launch import stream as stream_module
from machete.megakernel.launch.simulator import simulate
from machete.megakernel.launch.stream import StreamLauncher, StreamLaunchers

if TYPE_CHECKING:
    from machete.megakernel.launch.state import Tables

pytest.importorskip("machete.sim")

N = 3000


def chain(classes: SimpleNamespace, x: torch.Tensor, y: torch.Tensor, length: int) -> list:
    """y = 2**length * x, each op waiting for the one before, through temporaries."""
    tensors = [x, *(temporary(x.shape, x.dtype, x.device) for _ in range(length - 1)), y]
    ops = []
    for i in range(length):
        ops += classes.Scale.schedule(x=tensors[i], y=tensors[i + 1])
    return ops


def integers() -> torch.Tensor:
    return torch.randint(-8, 9, (N,)).float()


def test_states_are_independent(op_classes: SimpleNamespace) -> None:
    """Two states of one kernel, as two streams have: own counters, own temporaries, own binding."""
    x, y = integers(), torch.zeros(N)
    kernel = Megakernel(chain(op_classes, x, y, 3))
    kernel.run()
    bound = kernel._bound
    assert bound is not None
    first, second = bound.state, bound.make_state()
    assert first is not None
    memory = [tensor for state in (first, second) for tensor in (state.data, state.counters, state.arena)]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in memory)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    other = torch.zeros(N)
    kernel.run(replace=[(y, other)])  # goes to the first state; the second one still has what it was made with
    assert torch.equal(other, 8 * x)
    for state, target in ((second, y), (first, other), (second, y)):
        y.fill_(float("nan"))
        other.fill_(float("nan"))
        regions = [*second.regions(bound.binding), (y.data_ptr(), y.nbytes, "y", True)]
        regions = regions if state is second else first.regions(bound.binding)
        simulate(kernel.compile(), state.parameters(), sorted(regions), kernel.plan.num_sms, 0, None)
        assert torch.equal(target, 8 * x)


class Streams:
    """The launchers of a kernel as on a GPU, but each launch is simulated when it is issued."""

    def __init__(self, kernel: Megakernel, tensors: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
        bound = kernel._bind()
        assert bound.state is not None
        tables = SimpleNamespace(tensors=())

        class Patcher:
            def __init__(self, address: int, stream: int, device: int) -> None:
                self._words = (ctypes.c_uint64 * len(bound.binding.image.words)).from_address(address)

            def write(self, positions: np.ndarray, values: np.ndarray) -> None:
                np.ctypeslib.as_array(self._words)[positions] = values

        monkeypatch.setattr(stream_module, "Patcher", Patcher)
        monkeypatch.setattr(stream_module, "prepare", lambda *_: None)
        monkeypatch.setattr(stream_module, "use_on_current_stream", lambda _: None)
        monkeypatch.setattr(stream_module, "not_captured", lambda _: nullcontext())
        monkeypatch.setattr(stream_module, "capture_on", lambda _: (self.capture, None))
        monkeypatch.setattr(stream_module, "keep_with", lambda *_: None)
        self.capture = 1
        self._kernel, self._bound = kernel, bound
        self._memory = [(tensor.data_ptr(), tensor.nbytes, "tensor", True) for tensor in tensors]
        self._launchers = StreamLaunchers(
            kernel.compile(), cast("Tables", tables), bound.binding, bound.make_state, 0, kernel.plan.num_sms
        )

    def change(self, **arguments: object) -> None:
        self._launchers.changed(self._bound.binding.rebind(arguments))

    def run(self, stream: int) -> None:
        launcher = self._launchers.on.get(stream) or self._launchers.add(stream)
        launcher.catch_up()
        self.replay(launcher)

    def captured(self, stream: int) -> StreamLauncher:
        return self._launchers.captured(stream)

    def replay(self, launcher: StreamLauncher) -> None:
        state = launcher.state
        own = [entry for entry in state.regions(self._bound.binding) if not entry[2].startswith("`")]
        regions = sorted([*own, *self._memory])
        simulate(self._kernel.compile(), state.parameters(), regions, self._kernel.plan.num_sms, 0, None)


def test_a_stream_catches_up_with_the_binding(op_classes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams get what changed when they launch next, however much that is by then; graphs never do."""
    x, other = integers(), integers()
    targets = [torch.zeros(N) for _ in range(4)]
    kernel = Megakernel(chain(op_classes, x, targets[0], 1))
    streams = Streams(kernel, [x, other, *targets], monkeypatch)

    def written() -> list[float]:
        """What each target holds, as a multiple of x, or of the other input if negative; then they are emptied."""
        factors = []
        for target in targets:
            for source, sign in ((x, 1), (other, -1)):
                factor = (target[source != 0] / source[source != 0]).unique()
                if len(factor) == 1 and factor[0]:
                    factors.append(sign * factor[0].item())
                    break
            else:
                factors.append(0.0)
            target.zero_()
        return factors

    streams.run(1)
    assert written() == [2, 0, 0, 0]
    streams.change(y=targets[1])
    streams.run(2)
    assert written() == [0, 2, 0, 0]
    graph = streams.captured(3)
    assert streams.captured(3) is graph
    streams.change(factor=3.0)
    later = streams.captured(3)
    assert later is not graph
    streams.change(x=other, y=targets[2])
    streams.change(y=targets[3])
    streams.run(1)
    assert written() == [0, 0, 0, -3]
    streams.replay(graph)
    assert written() == [0, 2, 0, 0]
    streams.replay(later)
    assert written() == [0, 3, 0, 0]
    streams.run(2)
    assert written() == [0, 0, 0, -3]


def test_a_new_stream_waits_for_a_change_of_the_binding(op_classes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is made while a tensor is replaced would copy half of the change, and not hear of the rest."""
    x, y = integers(), torch.zeros(N)
    kernel = Megakernel(chain(op_classes, x, y, 1))
    streams = Streams(kernel, [x, y], monkeypatch)
    monkeypatch.setattr(stream_module, "prepare", lambda *_: lambda: None)
    bound = kernel._bind()
    bound._index, bound._launchers = 0, streams._launchers
    bound._current_device, bound._stream, capturing = (lambda: 0), (lambda _: 7), [False]
    bound._capturing = lambda: capturing[0]
    for capturing[0], made in ((False, streams._launchers.on), (True, streams._launchers._captured)):
        thread = threading.Thread(target=bound.launch)
        with kernel._lock:
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            assert not made
        thread.join(10)
        assert not thread.is_alive()
        assert 7 in (streams._launchers._captured if capturing[0] else made)
    with kernel._lock:
        capturing[0] = False
        thread = threading.Thread(target=bound.launch)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "a stream that has a launcher needs no lock"


def test_threads_take_turns_on_the_simulator(op_classes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs share counters and temporaries."""
    x, y = integers(), torch.zeros(N)
    kernel = Megakernel(chain(op_classes, x, y, 2))
    kernel.run()
    events: list[str] = []
    simulated = kernel._simulate

    def slowly(*arguments):
        events.append("begin")
        time.sleep(0.1)
        report = simulated(*arguments)
        events.append("end")
        return report

    monkeypatch.setattr(kernel, "_simulate", slowly)
    threads = [threading.Thread(target=kernel.run, kwargs=kwargs) for kwargs in ({}, {"factor": 3.0}, {})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events == ["begin", "end"] * 3
    kernel.run()
    assert torch.equal(y, 9 * x)
