"""What launches need in the memory of a device: tables of the plan, and data and counters of one stream's launches.

The plan's tables are written once. Launches that may run at the same time must not share counters, and must not see
each other's bindings, so each stream gets a `LaunchState`: a copy of the image, counters, and an arena for temporaries.
On one stream launches follow each other, and share one.
"""

import numpy as np
import torch

from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.program import Program

from .binding import Binding
from .image import Image
from .temporaries import ARENA

REPORT_WORDS = 8
_ALIGNMENT = 256  # of sections: descriptors need 64 bytes, counters and tables start on cache lines


class Tables:
    """What follows from the plan alone, and the buffer of a tracer, which all launches share."""

    def __init__(self, plan: Plan, device: torch.device, trace_bytes: int | None) -> None:
        """`trace_bytes` is the size of the tracer's buffer, None if the kernel is not traced."""
        program = Program.of(plan)
        self.queue_begin, self.rows, self.waits = (
            upload(array, device) for array in (program.queue_begin, program.rows, program.waits)
        )
        self.num_counters = program.num_counters
        # Two more than the program has: the first counts CTAs that have finished, the last is the alarm.
        self.counter_bytes = plan.shared.counter_bytes * (program.num_counters + 2)
        self.trace = None if trace_bytes is None else empty(trace_bytes, device).zero_()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them, to keep alive."""
        trace = () if self.trace is None else (self.trace,)
        return self.queue_begin, self.rows, self.waits, *trace


class LaunchState:
    """Memory of launches that run one after another."""

    def __init__(
        self,
        tables: Tables,
        image: Image,
        arena_words: np.ndarray,
        arena_bytes: int,
        device: torch.device,
        patience: int,
    ):
        """`arena_words`: where in the image addresses of temporaries are. `patience`: ns that a wait may take, or 0."""
        self._patience = patience
        #: int32 in memory of the host: what a warp that gave up has written (`launch.alarm`), zeros before.
        self.report = torch.zeros(REPORT_WORDS, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.report_words = self.report.numpy()
        self._tables, self._num_descriptors = tables, image.num_descriptors
        self.data = empty(image.words.nbytes, device)
        self.counters = empty(tables.counter_bytes, device)
        self.arena = empty(arena_bytes, device)
        self._descriptors = self.data.data_ptr() + image.descriptor_begin
        words = image.words.copy()
        words[image.descriptor_fields] += np.uint64(self.data.data_ptr())
        words[arena_words] += np.uint64((self.arena.data_ptr() - ARENA) & (2**64 - 1))
        write(self.data, words)
        self.counters.zero_()
        self.arena.zero_()  # some temporaries start with zeros

    def parameters(self) -> list[tuple[int, int]]:
        """The kernel's parameters as (value, bytes), in the order of `PersistentKernel.kernel`."""
        tables = self._tables
        trace = [] if tables.trace is None else [(tables.trace.data_ptr(), 8)]
        return [
            *((table.data_ptr(), 8) for table in (tables.queue_begin, tables.rows, tables.waits)),
            (self.data.data_ptr(), 8),
            (self._descriptors, 8),
            (self._num_descriptors, 4),
            (self.counters.data_ptr(), 8),
            (tables.num_counters, 4),
            (self.report.data_ptr(), 8),
            (self._patience, 8),
            *trace,
        ]

    def reset(self) -> None:
        """After a launch that was given up, and has ended: all is as before the first."""
        self.counters.zero_()
        self.arena.zero_()
        self.report_words[:] = 0

    def set_words(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Change the data at once; for a state in the memory of the host."""
        self.data.view(torch.int64).numpy().view(np.uint64)[positions] = values

    def regions(self, binding: Binding) -> list[tuple[int, int, str, bool]]:
        """Every byte range that the kernel may touch: (address, bytes, name, writable); no two overlap."""
        named = [
            (self._tables.queue_begin, "queue_begin", False),
            (self._tables.rows, "instruction rows", False),
            (self._tables.waits, "waits", False),
            (self.data, "op records and TMA descriptors", False),
            (self.counters, "counters", True),
            (self.report, "report of a wait that was given up", True),
            (self.arena, "temporaries", True),
        ]
        if self._tables.trace is not None:
            named.append((self._tables.trace, "trace buffer", True))
        regions = [(tensor.data_ptr(), tensor.nbytes, name, writable) for tensor, name, writable in named]
        for number, view in enumerate(binding.views):
            info = binding.now(number)
            if not info.is_empty and info.address < ARENA:
                first, last = info.span
                index, name = view.uses[0]
                regions.append((first, last - first, f"`{name}` of op {index}", view.written))
        return _merged(sorted(regions))


def empty(nbytes: int, device: torch.device) -> torch.Tensor:
    """Uninitialised bytes, 256-byte aligned (CPU allocations are not as aligned as CUDA's); at least 16."""
    size = -(-max(nbytes, 1) // 16) * 16
    raw = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    shift = -raw.data_ptr() % _ALIGNMENT
    return raw[shift : shift + size]


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array's bytes on the device."""
    tensor = empty(array.nbytes, device)
    write(tensor, array)
    return tensor


def write(target: torch.Tensor, array: np.ndarray) -> None:
    """Copy the array's bytes to the start of `target`; done when this returns."""
    source = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1))
    target[: source.numel()].copy_(source)


def _merged(regions: list[tuple[int, int, str, bool]]) -> list[tuple[int, int, str, bool]]:
    """Views of one storage overlap: join them, so that an address belongs to exactly one region."""
    merged: list[tuple[int, int, str, bool]] = []
    for address, nbytes, name, writable in regions:
        if merged and address < merged[-1][0] + merged[-1][1]:
            start, length, first, was_writable = merged[-1]
            end = max(start + length, address + nbytes)
            label = first if name in first else f"{first}, {name}"
            merged[-1] = (start, end - start, label, was_writable or writable)
        else:
            merged.append((address, nbytes, name, writable))
    return merged
