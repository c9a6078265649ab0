"""Launches that are captured into a CUDA graph: what they use lives as long as the graph.

The graph holds a reference to a "user object" (CUDA driver API, "Graph Management": `cuUserObjectCreate`), whose
destructor the driver calls from a thread of its own when the last instance of the graph is gone. That destructor is
`sem_post` of the C library, which needs no interpreter; the semaphores are looked at whenever something is captured.
"""

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from .driver import checked, make_current

_kept: list[tuple[ctypes.Array, object]] = []
_lock = threading.Lock()


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # the C library of this process


def capture_on(stream: int) -> tuple[int, Any] | None:
    """(number of the capture, its graph) if the stream is capturing."""
    from cuda.bindings import driver

    result = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    status, number, graph = checked(result, "cuStreamGetCaptureInfo")[:3]
    if status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        return None
    return int(number), graph


@contextmanager
def setting_up(device: torch.device) -> Iterator[None]:
    """Where memory of a kernel is allocated and written: on its device, and never as part of a capture."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        make_current(device.index)
        with not_captured(device.index) if torch.cuda.is_current_stream_capturing() else nullcontext():
            yield


@contextmanager
def not_captured(device: int) -> Iterator[None]:
    """Allocate and copy at once, on a stream of its own, though the current stream may be capturing."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed), "cuThreadExchangeStreamCaptureMode")
    try:
        stream = torch.cuda.Stream(device)
        while capture_on(stream.cuda_stream):  # torch hands out the streams of a pool in turn
            stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before), "cuThreadExchangeStreamCaptureMode")


def kept() -> int:
    """Number of captured launches whose graphs exist, after letting go of those whose graphs are gone."""
    with _lock:
        _kept[:] = [entry for entry in _kept if _library().sem_trywait(entry[0]) != 0]
        return len(_kept)


def keep_with(graph: Any, objects: object) -> None:
    """Keep `objects` alive as long as the graph, or an executable graph made from it, exists."""
    from cuda.bindings import driver

    kept()
    semaphore = (ctypes.c_byte * 64)()  # a sem_t has 32 bytes on Linux
    _library().sem_init(semaphore, 0, 0)
    with _lock:
        _kept.append((semaphore, objects))
    destroy = driver.CUhostFn(ctypes.cast(_library().sem_post, ctypes.c_void_p).value)
    no_sync = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    user_object = checked(
        driver.cuUserObjectCreate(ctypes.addressof(semaphore), destroy, 1, int(no_sync)), "cuUserObjectCreate"
    )
    move = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
    checked(driver.cuGraphRetainUserObject(graph, user_object, 1, int(move)), "cuGraphRetainUserObject")
