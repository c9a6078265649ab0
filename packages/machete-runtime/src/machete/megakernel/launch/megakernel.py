"""`Megakernel`: a list of ops as one persistent kernel, on the GPU or on the simulator."""

import dataclasses
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from machete.megakernel.abi.errors import (
    DeviceError,
    PlanError,
    SavedKernelError,
    TargetError,
    UnknownArgumentError,
    closest,
    listing,
)
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import Target, Throttle
from machete.megakernel.plan.plan import Plan

from . import tensormap
from .alarm import hang
from .artefact import Artefact
from .binding import Argument, Binding, Replacements
from .capture import setting_up
from .compilation import artefact_of
from .extents import Extents
from .image import Image
from .saved import allocate, device_for, read, save
from .slots import Change
from .state import LaunchState, Tables
from .stream import StreamLaunchers
from .temporaries import ARENA, placed
from .tracing import Tracing, find_tracer, is_traced

logger = logging.getLogger("machete.megakernel")

DEFAULT_TARGET = "sm_90a"
UNCHANGED: Replacements = ()
SIMULATED_SMS = 4  # enough CTAs for real concurrency, few enough to be quick
MOST_SIMULATED_SMS = 1024
DEFAULT_PATIENCE = 1_000_000_000  # ns
MOST_SECONDS = 1_000_000


@dataclass(frozen=True)
class RunReport:
    """What one run did. `seconds` is wall time of the run on the host, launch and wait included; None for a run that
    nobody waited for (`sync=False`).

    `instructions`, `max_stages_in_flight` and `simulated_us` are known on the simulator only (else None): warp
    instructions executed, the most ring stages that one SM had in flight at a time, and when the last warp ended in
    simulated time.
    """

    where: str
    target: str
    seconds: float | None = None
    instructions: int | None = None
    max_stages_in_flight: int | None = None
    simulated_us: float | None = None


class Megakernel:
    """One persistent kernel that runs `ops` in order.

    CUDA tensors run on their own device. CPU tensors run on the simulator, for `arch` (sm_90a unless given: sm_90a,
    sm_100a or sm_120a). Ops that share memory are ordered as listed; everything else may overlap. Tensors stay alive as
    long as they are bound, and as long as a launch that reads them may be running.

    A kernel may run on several streams at a time, and be captured into CUDA graphs; each stream, and each graph, has
    counters, temporaries and a binding of its own. A graph keeps the binding of its capture, and what that needs stays
    alive as long as the graph does, even without the kernel. Launches are cooperative: a kernel that does not fit
    beside what is running waits for it, and one that never fits is refused.

    Args:
        ops: what `SomeOp.schedule(...)` returned; lists concatenate.
        arch: the target on CPU tensors; on CUDA tensors it must be the device's own, and may be left out.
        num_sms: CTAs to launch. Default: every SM of the device; 4 on the simulator.
        throttle: bytes in flight while ops stream from memory, instead of what was found for the target.
        schedule: "static" plans a queue for each SM; with "dynamic" SMs fetch what to do next while the kernel runs;
            "auto" decides by whether the ops are irregular. `plan.schedule` says what it is.
        profile: measured µs of one tile, by op index or name of its kind (`kernel.plan.kinds`), for the plan's cost
            model; `machete.trace` measures them.
        trace: have the installed tracer record what the kernel does; see `trace_buffer`.
        programmatic: launch the kernel before the one ahead of it in the stream has ended; it sets itself up, and then
            waits for that one on the device (programmatic dependent launch). Its CTAs need not be resident together,
            so its ops must not depend on each other.
        seed: order in which the simulator interleaves warps and completes copies.
        timeout: seconds that a wait in the kernel may take before the kernel is stopped; 0 waits for ever. Default:
            1 on a GPU; 0 on the simulator, which names a deadlock itself.

    Attributes:
        tensors: of a kernel that was loaded, its tensors by name, as it was loaded with them.

    Raises:
        MacheteError: one of its subclasses, before anything compiles, naming op, argument, reason and remedy.
    """

    def __init__(
        self,
        ops: Iterable[ScheduledOp],
        *,
        arch: str | None = None,
        num_sms: int | None = None,
        seed: int = 0,
        throttle: Throttle | None = None,
        schedule: str = "auto",
        profile: Mapping[str | int, float] | None = None,
        trace: bool = False,
        timeout: float | None = None,
        programmatic: bool = False,
    ) -> None:
        ops = checked_ops(ops)
        device = ops[0].device
        target = chosen_target(device, arch)
        if throttle is not None:
            if not isinstance(throttle, Throttle):
                raise PlanError(
                    what=f"throttle is of type {type(throttle).__name__}",
                    where="Megakernel(ops, throttle=…)",
                    why="it says how many bytes may be in flight, and when",
                    fix="throttle=Throttle(first, ramp, steady)",
                )
            target = dataclasses.replace(target, throttle=throttle)
        num_sms = _checked_sms(num_sms, device)
        lowered, arena_bytes = placed([op.op.lower(target, op) for op in ops])
        plan = Plan.build(lowered, target, num_sms, schedule=schedule, profile=profile or {})
        plan.verify()
        if programmatic and (any(plan.waits) or any(kind.op.hands_over for kind in plan.kinds)):
            raise PlanError(
                what=f"programmatic=True, but of the {len(plan.ops)} ops some depend on others, or SMs on one another",
                where="Megakernel(ops, programmatic=True)",
                why="a CTA that waits for another one needs it to be resident, which only cooperative launches promise",
                fix="leave programmatic out, or make a kernel of each op: lower(ops, 'graph')",
            )
        self._programmatic = programmatic
        self._tracing: Tracing | None = find_tracer()(plan) if is_traced(self, trace) else None
        self._set_up(device, lowered, arena_bytes, plan, seed, timeout)

    def _set_up(
        self,
        device: torch.device,
        ops: list[ScheduledOp],
        arena_bytes: int,
        plan: Plan,
        seed: int,
        timeout: float | None = None,
        artefact: Artefact | None = None,
    ) -> None:
        """A kernel that is planned, and, if it was saved, compiled."""
        self.device, self.simulated = device, device.type == "cpu"
        self.plan, self.target, self.seed = plan, plan.target, seed
        self.tensors: dict[str, torch.Tensor] = {}
        self.report: RunReport | None = None
        self._ops, self._arena_bytes = ops, arena_bytes
        self._artefact, self._loaded = artefact, artefact is not None
        self._patience = _checked_timeout(timeout, device)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise PlanError(
                what=f"seed={seed!r}",
                where="Megakernel(ops, seed=…)",
                why="it is a number from 0 to 2^63 - 1, for the order in which the simulator runs warps",
                fix="seed=0",
            )
        self._bound: _Bound | None = None
        self._lock = threading.RLock()
        self._launched = RunReport(str(device), self.target.name)
        if self.simulated:
            logger.warning("no GPU: %s is simulated on the CPU, %d SMs", self.target.name, plan.num_sms)

    def save(self, path: str | os.PathLike[str], *, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write the kernel to a file, which `load` runs in a process that never imports the DSL or an op package.

        The file has code and plan, scalars as they are now, and what the tensors look like; not what is in them.

        Args:
            path: the file; it appears when it is whole.
            tensors: names for bound tensors, by which they are passed to the loaded kernel. What is a part of a named
                tensor moves with it. Others have the name that ops gave them, if it stands for one tensor only.

        Raises:
            UnknownArgumentError: a tensor is not bound, or one that needs a name has none.
            SavedKernelError: the kernel is traced; its tracer would be missing.
            OSError: the file cannot be written.
        """
        if self._tracing is not None:
            raise SavedKernelError(
                what="a kernel with trace=True cannot be saved",
                where="Megakernel.save",
                why="its code writes for a tracer, which is not saved with it",
                fix="save Megakernel(ops) without trace",
            )
        if self._loaded:
            raise SavedKernelError(
                what="a kernel that was loaded cannot be saved",
                where="Megakernel.save",
                why="it has code, but not the op classes that a file describes",
                fix="copy the file that it was loaded from",
            )
        bound = self._bound or self._bind()
        with self._lock:
            save(Path(path), self.compile(), self.plan, bound.binding, self._arena_bytes, tensors or {})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        tensors: Mapping[str, torch.Tensor] | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        timeout: float | None = None,
    ) -> "Megakernel":
        """A kernel that `save` wrote. Nothing is traced, compiled or planned, and the DSL is not imported.

        Its arguments have the names that it was saved with: `kernel.run(x=…)`.

        Args:
            path: the file.
            tensors: the kernel's tensors by name, of the layout of those that were saved. The others are allocated, and
                zero; `kernel.tensors` has all of them.
            device: where to run: by default where the tensors are, else the first card of the kernel's target, else
                "cpu", the simulator.
            seed, timeout: as for `Megakernel`.

        Raises:
            SavedKernelError: the file is damaged, no kernel, or one that another runtime has saved.
            TargetError, PlanError: the device has another architecture, or too few SMs.
            ScheduleError: a tensor is not of the layout that was saved, or shares memory with another.
            OSError: the file cannot be read.
        """
        saved = read(Path(path))
        given = dict(tensors or {})
        where = device_for(saved.plan, given, device)
        infos = saved.tensors(where)
        unknown = [name for name in given if name not in infos]
        if unknown:
            raise UnknownArgumentError(
                what=f"the kernel has no tensor {unknown[0]!r}{closest(unknown[0], infos)}",
                where=f"Megakernel.load({str(path)!r})",
                why=f"it was saved with {listing(infos)}",
                fix="use these names",
            )
        kernel = cls.__new__(cls)
        kernel._tracing, kernel._programmatic = None, saved.artefact.programmatic
        kernel._set_up(where, saved.ops(where), saved.arena_bytes, saved.plan, seed, timeout, saved.artefact)
        kernel.tensors = {name: given[name] if name in given else allocate(info) for name, info in infos.items()}
        bound = kernel._bind()
        for name, info in infos.items():
            if not info.is_empty:
                bound.binding.call(name, info)
        bound.change({name: kernel.tensors[name] for name, info in infos.items() if not info.is_empty}, UNCHANGED, None)
        return kernel

    def compile(self) -> Artefact:
        """PTX and machine code: from the disk cache, else traced and compiled. Needs no GPU."""
        if self._artefact is None:
            hooks = None if self._tracing is None else self._tracing.hooks
            self._artefact = artefact_of(self.plan.kinds, self.plan.shared, self.target, hooks, self._programmatic)
        return self._artefact

    def run(
        self,
        *,
        sync: bool = True,
        progress: Callable[[int, int], None] | None = None,
        replace: Replacements = UNCHANGED,
        extents: Mapping[str, int] | None = None,
        **arguments: torch.Tensor | float,
    ) -> RunReport:
        """Run the kernel once, on the current stream of its device.

        What is bound, and extents, stay until they are changed again. Launches before keep theirs.

        Args:
            sync: wait for the kernel to end (the simulator always does; a launch that is captured never runs).
            progress: called now and then by the simulator with (warp instructions, CTAs finished).
            replace: pairs of a bound tensor and one of the same layout that takes its place from now on. Bound tensors
                that are parts of it move with it.
            extents: dim name to extent, from 0 to the one that the ops were scheduled with. It reaches every op that
                has this dim, through the tensors that they share; tiles outside are skipped.
            **arguments: tensors by the name that ops gave them, if it stands for one tensor only; or other values of
                scalars.
        """
        bound = self._bound or self._bind()
        changes = bool(arguments) or replace is not UNCHANGED or extents is not None
        started = time.perf_counter()
        if self.simulated:
            with self._lock:  # runs share counters and temporaries
                if changes:
                    bound.change(arguments, replace, extents)
                self.report = report = self._simulate(bound, progress)
            return report
        if changes:
            with self._lock:
                bound.change(arguments, replace, extents)
                state = bound.launch()
        else:
            state = bound.launch()
        if not sync:
            self.report = self._launched
            return self._launched
        if state is not None:
            torch.cuda.current_stream(self.device).synchronize()
            bound.raise_if_stopped(state)
        self.report = report = RunReport(str(self.device), self.target.name, time.perf_counter() - started)
        return report

    __call__ = run

    @property
    def trace_buffer(self) -> torch.Tensor | None:
        """uint8 on the kernel's device: what the tracer's code has written; None without `trace=True`.

        All launches of the kernel write to the same memory, on whatever stream, and graphs of it as well. Zero it
        between launches to see one of them alone.
        """
        if self._tracing is None:
            return None
        bound = self._bound or self._bind()
        return bound.trace

    def check(self) -> None:
        """Raise a `HangError` if a launch that was not waited for, or a graph of one, was stopped.

        `run` does so too: with `sync=True` for its own launch, else for those before on its stream.
        """
        if self._bound is not None:
            self._bound.check()

    def argument(self, tensor: torch.Tensor) -> Argument:
        """Declare a bound tensor to be an argument: what stands for it in `run(replace=[(argument, other)])` for good.

        Unlike bound tensors, arguments are not kept alive by the kernel: pass them anew for every run, and have them
        outlive it in stream order, as with any torch op.
        """
        bound = self._bound or self._bind()
        with self._lock:
            return bound.binding.borrow(tensor)

    def _simulate(self, bound: "_Bound", progress: Callable[[int, int], None] | None) -> RunReport:
        from .simulator import simulate

        assert bound.state is not None
        started = time.perf_counter()
        parameters, regions = bound.state.parameters(), bound.state.regions(bound.binding)
        try:
            result = simulate(self.compile(), parameters, regions, self.plan.num_sms, self.seed, progress)
        finally:  # a kernel that was stopped reads what never came: that comes second, as the context of the HangError
            bound.check()
        seconds = time.perf_counter() - started
        return RunReport(
            "simulator",
            self.target.name,
            seconds,
            result.instructions,
            result.max_stages_in_flight,
            result.simulated_ns / 1000,
        )

    def _bind(self) -> "_Bound":
        artefact = self.compile()
        with self._lock:
            if self._bound is None:
                with setting_up(self.device):
                    self._bound = _Bound(
                        self.plan,
                        self._ops,
                        self._arena_bytes,
                        self.device,
                        artefact,
                        self._lock,
                        self._patience,
                        None if self._tracing is None else self._tracing.buffer_bytes,
                    )
                self._ops = self._bound.binding.ops  # from now on the binding alone keeps tensors alive
            return self._bound


class _Bound:
    """A kernel with memory on its device."""

    def __init__(
        self,
        plan: Plan,
        ops: list[ScheduledOp],
        arena_bytes: int,
        device: torch.device,
        artefact: Artefact,
        lock: threading.RLock,
        patience: int,
        trace_bytes: int | None,
    ) -> None:
        """`lock` is held by whoever changes the binding, until the first launch with it, and by whoever copies it."""
        on_gpu = device.type == "cuda"
        tables = Tables(plan, device, trace_bytes)
        self.trace = None if trace_bytes is None or tables.trace is None else tables.trace[:trace_bytes]
        encode = tensormap.encode_with_driver if on_gpu else tensormap.encode
        image = Image(plan, ops, encode, tables.rows.data_ptr())
        self.binding = Binding(ops, image)
        self._extents = Extents(self.binding.ops, self.binding.views, image)
        views = [view for view in self.binding.views if view.info.address >= ARENA]
        temporaries = np.array([word for view in views for word in self.binding.words(view)], dtype=np.int64)

        self._plan, self._patience = plan, patience
        self._state = functools.partial(LaunchState, tables, image, temporaries, arena_bytes, device, patience)
        self._states: weakref.WeakSet[LaunchState] = weakref.WeakSet()  # those of graphs live as long as the graphs
        self._image, self._lock = image, lock
        self.state: LaunchState | None = None  # on the simulator
        if on_gpu:
            # The device's index, and what torch knows without building objects: these are called for every launch.
            self._index = device.index
            self._current_device: Callable[[], int] = torch._C._cuda_getDevice
            self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
            self._capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
            self._launchers = StreamLaunchers(
                artefact, tables, self.binding, self.make_state, device.index, plan.num_sms
            )
        else:
            self.state = self.make_state()

    def make_state(self) -> LaunchState:
        """Memory for launches that follow each other."""
        state = self._state()
        self._states.add(state)
        return state

    def change(self, arguments: Mapping[str, object], replaced: Replacements, extents: object) -> None:
        """Rebind; raises before anything changes. The caller holds the lock."""
        extents = self._extents.checked(extents)
        self._changed(self.binding.rebind(arguments, replaced) + self._extents.set(extents))

    def _changed(self, changes: list[Change]) -> None:
        if self.state is None:
            self._launchers.changed(changes)
        else:
            for change in changes:
                self.state.set_words(change.positions, self._image.words[change.positions])

    def launch(self) -> LaunchState | None:
        """Launch on the current stream of the device, or have it captured. Returns what it runs with, if it runs."""
        if self._current_device() != self._index:
            with torch.cuda.device(self._index):
                return self.launch()
        stream = self._stream(self._index)
        if self._capturing():
            with self._lock:
                captured = self._launchers.captured(stream)
            captured.launch()
            return None
        launcher = self._launchers.on.get(stream)
        if launcher is None:
            with self._lock:
                launcher = self._launchers.add(stream)
        if launcher.changes:
            with self._lock:
                launcher.catch_up()
        if launcher.given_up():
            self.raise_if_stopped(launcher.state)
        launcher.launch()
        return launcher.state

    def check(self) -> None:
        """Raise a `HangError` if a launch was given up, on whatever stream or in whatever graph."""
        for state in list(self._states):
            self.raise_if_stopped(state)

    def raise_if_stopped(self, state: LaunchState) -> None:
        """If a launch with this state was given up: make it fit for another one, and raise what its report says."""
        if not state.report_words[0]:
            return
        with self._lock:
            if self.state is None:
                torch.cuda.synchronize(self._index)  # it has ended, whatever stream it is on
            words = state.report_words.tolist()
            if not words[0]:
                return  # another thread has raised it
            error = hang(words, self._plan, state.counters.data_ptr(), self._patience / 1e9, self.state is not None)
            state.reset()
            if self.state is None:
                torch.cuda.synchronize(self._index)  # the next launch may be on another stream
        raise error


def chosen_target(device: torch.device, arch: str | None) -> Target:
    if device.type == "cpu":
        return Target.named(DEFAULT_TARGET if arch is None else arch)
    target = Target.of_capability(torch.cuda.get_device_capability(device))
    if arch is not None and Target.named(arch) != target:
        raise TargetError(
            what=f"arch={arch!r}, but {device} is {target.name}",
            where="Megakernel(ops, arch=…)",
            why="CUDA tensors run on their own device",
            fix=f"leave arch out, or pass CPU tensors to simulate {arch}",
        )
    return target


def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _checked_sms(num_sms: object, device: torch.device) -> int:
    """How many CTAs to launch: as asked for, or the default of the device."""
    simulated = device.type == "cpu"
    if num_sms is None:
        return SIMULATED_SMS if simulated else _sm_count(device)
    where = "Megakernel(ops, num_sms=…)"
    if isinstance(num_sms, bool) or not isinstance(num_sms, int):
        raise PlanError(
            what=f"num_sms={num_sms!r} is no int",
            where=where,
            why="it is the number of CTAs to launch",
            fix="leave num_sms out to use every SM",
        )
    if simulated and num_sms > MOST_SIMULATED_SMS:
        raise PlanError(
            what=f"num_sms={num_sms}, but the simulator has at most {MOST_SIMULATED_SMS} SMs",
            where=where,
            why="each SM is one simulated CTA, and all of them are resident at the same time",
            fix=f"leave num_sms out to simulate {SIMULATED_SMS} SMs",
        )
    if not simulated and num_sms > _sm_count(device):
        raise PlanError(
            what=f"num_sms={num_sms}, but {device} has {_sm_count(device)} SMs",
            where=where,
            why="all CTAs have to be resident at the same time, one on each SM",
            fix="leave num_sms out to use every SM",
        )
    return num_sms


def _checked_timeout(timeout: object, device: torch.device) -> int:
    """Nanoseconds that a wait may take: as asked for, or the default of the device."""
    if timeout is None:
        return 0 if device.type == "cpu" else DEFAULT_PATIENCE
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= MOST_SECONDS:
        raise PlanError(
            what=f"timeout={timeout!r}",
            where="Megakernel(ops, timeout=…)",
            why=f"it is a number of seconds from 0 (wait for ever) to {MOST_SECONDS}",
            fix="leave timeout out, unless a wait may rightly take longer than a second",
        )
    return math.ceil(timeout * 1e9)


def checked_ops(ops: Iterable[ScheduledOp]) -> list[ScheduledOp]:
    """The ops, if it is a list with some, and all are on one device."""
    if not isinstance(ops, Iterable):
        raise PlanError(
            what=f"ops must be a list of scheduled ops, found {type(ops).__name__}",
            where="Megakernel(ops)",
            why="a kernel runs a list of ops, even if it is only one",
            fix="pass the list that SomeOp.schedule(...) returns, or put a single op into a list: Megakernel([op])",
        )
    ops = list(ops)
    for op in ops:
        if not isinstance(op, ScheduledOp):
            raise PlanError(
                what=f"ops must be scheduled ops, found {type(op).__name__}",
                where="Megakernel(ops)",
                why="the plan needs tensors and tile sizes",
                fix="pass the list that SomeOp.schedule(...) returns; concatenate lists with +",
            )
    if not ops:
        raise PlanError(
            what="the list of ops is empty",
            where="Megakernel(ops)",
            why="there is nothing to run",
            fix="schedule at least one op",
        )
    devices = {op.device for op in ops}
    if len(devices) > 1:
        names = ", ".join(f"op {i} ({op.op.__name__}) on {op.device}" for i, op in enumerate(ops))
        raise DeviceError(
            what="the ops of one kernel are on different devices",
            where="Megakernel(ops)",
            why=f"one kernel runs on one device: {names}",
            fix="move the tensors to one device",
        )
    return ops
