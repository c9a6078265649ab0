"""Launches that may run at the same time do not disturb each other: on streams, in graphs, from threads.

`test_state.py` has what can be seen without a GPU.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from machete.megakernel import Megakernel, temporary
from machete.megakernel.errors import PlanError
from machete.megakernel.launch import capture

N = 20_000
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA streams and graphs need a GPU")


def chain(classes: SimpleNamespace, x: torch.Tensor, y: torch.Tensor, length: int = 8) -> list:
    """y = 2**length * x, each op waiting for the one before: counters and temporaries are in use all the time."""
    tensors = [x, *(temporary(x.shape, x.dtype, x.device) for _ in range(length - 1)), y]
    ops = []
    for i in range(length):
        ops += classes.Scale.schedule(x=tensors[i], y=tensors[i + 1])
    return ops


def integers() -> torch.Tensor:
    return torch.randint(-8, 9, (N,), device="cuda").float()


@pytest.mark.parametrize("share", [1, 2])
def test_two_kernels_on_two_streams(op_classes: SimpleNamespace, share: int) -> None:
    """Whole-GPU kernels run after one another, half-GPU kernels may run side by side; neither pair deadlocks."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count // share
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs, outputs = [integers(), integers()], [torch.zeros(N, device="cuda") for _ in range(2)]
    kernels = [Megakernel(chain(op_classes, x, y), num_sms=num_sms) for x, y in zip(inputs, outputs, strict=True)]
    torch.cuda.synchronize()
    for _ in range(50):
        for kernel, stream in zip(kernels, streams, strict=True):
            with torch.cuda.stream(stream):
                kernel.run(sync=False)
    torch.cuda.synchronize()
    for x, y in zip(inputs, outputs, strict=True):
        assert torch.equal(y, 256 * x)


@pytest.mark.parametrize("share", [1, 2])
def test_one_kernel_on_two_streams(op_classes: SimpleNamespace, share: int) -> None:
    """Each stream has its own binding; launches follow each other so fast that they overlap where they can."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count // share
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs, outputs = [integers(), integers()], [torch.zeros(N, device="cuda") for _ in range(2)]
    kernel = Megakernel(chain(op_classes, inputs[0], outputs[0]), num_sms=num_sms)
    x, y = kernel.argument(inputs[0]), kernel.argument(outputs[0])
    torch.cuda.synchronize()
    for _ in range(50):
        for source, target, stream in zip(inputs, outputs, streams, strict=True):
            with torch.cuda.stream(stream):
                kernel.run(sync=False, replace=[(x, source), (y, target)])
                kernel.run(sync=False)
    torch.cuda.synchronize()
    for source, target in zip(inputs, outputs, strict=True):
        assert torch.equal(target, 256 * source)


def test_launches_in_flight_keep_their_binding(op_classes: SimpleNamespace) -> None:
    """Ten launches are queued, each with other tensors and another factor, before the first one has begun."""
    inputs, outputs = [integers() for _ in range(10)], [torch.zeros(N, device="cuda") for _ in range(10)]
    kernel = Megakernel(op_classes.Scale.schedule(x=inputs[0], y=outputs[0]))
    kernel.run()
    torch.cuda._sleep(100_000_000)
    for i, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
        kernel.run(sync=False, x=source, y=target, factor=float(i))
    torch.cuda.synchronize()
    for i, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
        assert torch.equal(target, i * source)


def test_memory_is_kept_while_in_flight(op_classes: SimpleNamespace) -> None:
    """What was bound last is dropped while a launch on another stream still waits to read it."""
    x, y = integers(), torch.zeros(N, device="cuda")
    expected = 2 * x
    side = torch.cuda.Stream()
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=y))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        kernel.run()
        y.zero_()
        torch.cuda._sleep(100_000_000)
        kernel.run(sync=False)
        kernel.run(sync=False, x=torch.ones(N, device="cuda"), y=torch.zeros(N, device="cuda"))
    del x
    spoilers = [torch.full((N,), float("nan"), device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    assert all(spoiler.isnan().all() for spoiler in spoilers)


def test_a_graph_keeps_the_binding_of_its_capture(op_classes: SimpleNamespace) -> None:
    inputs, outputs = [integers() for _ in range(3)], [torch.zeros(N, device="cuda") for _ in range(3)]
    kernel = Megakernel(chain(op_classes, inputs[0], outputs[0]))
    kernel.run()
    x, y = kernel.argument(inputs[0]), kernel.argument(outputs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for source, target in zip(inputs[:2], outputs[:2], strict=True):
            kernel.run(replace=[(x, source), (y, target)])  # nothing runs, so nothing is waited for
            kernel.run(sync=False)
    kernel.run(replace=[(x, inputs[2]), (y, outputs[2])])
    for target in outputs:
        target.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(outputs[0], 256 * inputs[0])
    assert torch.equal(outputs[1], 256 * inputs[1])
    assert not outputs[2].any()
    kernel.run()
    assert torch.equal(outputs[2], 256 * inputs[2])


def test_a_graph_outlives_its_kernel(op_classes: SimpleNamespace) -> None:
    x, y = integers(), torch.zeros(N, device="cuda")
    kernel = Megakernel(chain(op_classes, x, y))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.run(sync=False)
    bound = kernel._bound
    assert bound is not None
    watched = weakref.ref(bound.binding)
    del kernel, bound
    gc.collect()
    assert watched() is None
    spoilers = [torch.full((1 << 16,), 255, dtype=torch.uint8, device="cuda") for _ in range(64)]
    for _ in range(3):
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, 256 * x)
    del spoilers
    assert capture.kept() >= 1
    before = capture.kept()
    del graph
    gc.collect()
    torch.cuda.synchronize()
    for _ in range(100):  # the driver runs destructors when it likes
        if capture.kept() < before:
            return
        time.sleep(0.05)
    pytest.fail("memory of a captured launch was not released with its graph")


def test_first_launch_of_a_thread(op_classes: SimpleNamespace) -> None:
    x, y = integers(), torch.zeros(N, device="cuda")
    kernel = Megakernel(chain(op_classes, x, y))
    kernel.run()
    y.zero_()
    torch.cuda.synchronize()
    thread = threading.Thread(target=kernel.run)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(y, 256 * x)


def test_more_ctas_than_can_be_resident(op_classes: SimpleNamespace) -> None:
    count = torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(PlanError, match=f"num_sms={count + 1}, but cuda:0 has {count} SMs"):
        Megakernel(op_classes.Scale.schedule(x=integers(), y=integers()), num_sms=count + 1)
