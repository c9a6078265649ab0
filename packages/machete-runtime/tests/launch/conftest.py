"""Small ops that the launch tests share, as fixtures: test modules cannot import each other."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch

import small_ops
from machete.megakernel import Op


class Scale(small_ops.Scale):
    """y = factor * x."""

    resizable = ("N",)


class Add(small_ops.StreamAdd):
    """z = x + y, through the page ring."""

    resizable = ("N",)


class Outer(Op):
    """z[m, n] = x[m] * y[n], tiled both ways."""

    reads = {"x": (None, ("M",)), "y": (None, ("N",))}
    writes = {"z": (None, ("M", "N"))}
    tile = ("M", "N")
    resizable = ("M", "N")

    @classmethod
    def schedule(cls, *, x, y, z):
        return [cls._schedule_single(tile_sizes={"M": 4, "N": 64}, x=x, y=y, z=z)]

    @cute.jit
    def compute(self, tile_M, tile_N, x, y, z):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_M * self.tile_size_N, self.threads_per_row):
            m = tile_M * self.tile_size_M + i // self.tile_size_N
            n = tile_N * self.tile_size_N + i % self.tile_size_N
            if m < self.M and n < self.N:
                z[m, n] = x[m] * y[n]


class Take(Op):
    """y[n] = table[index[n]] for n < length: what to take, and how much, is known on the device only."""

    reads = {"table": (None, ("V",)), "index": (torch.int32, ("N",)), "length": (torch.int32, ("one",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, table, index, length, y):
        return [cls._schedule_single(tile_sizes={"N": 128}, table=table, index=index, length=length, y=y)]

    @cute.jit
    def compute(self, tile_N, table, index, length, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < cutlass.min(self.N, length[0]):
                y[n] = table[index[n]]


class Place(Op):
    """y[position] = x, both of rank 0."""

    reads = {"x": (None, ()), "position": (torch.int64, ())}
    writes = {"y": (None, ("N",))}

    @classmethod
    def schedule(cls, *, x, position, y):
        return [cls._schedule_single(x=x, position=position, y=y)]

    @cute.jit
    def compute(self, x, position, y):
        if cute.arch.thread_idx()[0] == 0:
            y[position[()]] = x[()]


@pytest.fixture
def full_disk() -> Callable[[], AbstractContextManager[None]]:
    """While it lasts, no file of this process grows beyond 4 KiB: writing fails as it does on a full disk."""

    @contextmanager
    def full() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead of the end of the process
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return full


@pytest.fixture
def anywhere() -> str:
    """The device of tests that are about no architecture: a card of any kind, else the simulator."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def op_classes() -> SimpleNamespace:
    return SimpleNamespace(Scale=Scale, Add=Add, Outer=Outer, Take=Take, Place=Place)
