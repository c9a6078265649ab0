"""The context in which a program written for a GPU runs on the simulator."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..errors import SimulationError, UnsupportedLaunch
from ..image import Image, cached_image
from ..launch import LaunchConfig, Report, run
from .device import DEFAULT_SMS, Device
from .runtime_library import Launch, RuntimeLibrary

logger = logging.getLogger("machete.sim")


class MissingPackage(SimulationError):
    """A package that programs for GPUs are written with is not installed."""


@dataclass(frozen=True)
class Launched:
    """One launch that ended. kernel: its entry name; report: what it did."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    report: Report


@dataclass
class Simulation:
    """What happened in a context so far."""

    device: Device
    seed: int
    launches: list[Launched] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        return sum(launched.report.instructions for launched in self.launches)

    @property
    def seconds(self) -> float:
        return sum(launched.report.seconds for launched in self.launches)

    def __str__(self) -> str:
        count = len(self.launches)
        return (
            f"{self.device.arch}, seed {self.seed}: {count} launch{'es' if count != 1 else ''}, "
            f"{self.instructions:,} warp instructions in {self.seconds:.2f} s"
        )


_active = threading.Lock()


@contextlib.contextmanager
def simulated_gpu(
    arch: str = "sm_90a", *, sms: int = DEFAULT_SMS, seed: int = 0, max_instructions: int | None = None
) -> Iterator[Simulation]:
    """Run CuTe DSL code that is written for `device="cuda"` on a simulated GPU.

    Inside, torch has one CUDA device, whose memory is memory of the process, and kernels that the DSL compiles are
    executed from their PTX. `sms` is how many multiprocessors the program is told of, and how many CTAs are resident
    at a time. `seed` chooses the order of warps and of asynchronous copies. Everything is as before when the
    block ends.

    Raises MissingPackage without torch or nvidia-cutlass-dsl. A kernel that goes wrong raises a SimulationError where
    it was launched.
    """
    device = Device.named(arch, sms)
    for module, distribution in (("torch", "torch"), ("cutlass", "nvidia-cutlass-dsl")):
        if importlib.util.find_spec(module) is None:
            raise MissingPackage(
                f"{distribution} is not installed: programs for a simulated GPU are written with it; "
                f"pip install {distribution}"
            )
    if not _active.acquire(blocking=False):
        raise SimulationError("a simulated GPU is active already: one at a time, in one thread")
    try:
        with contextlib.ExitStack() as undo:
            yield _enter(Simulation(device, seed), undo, max_instructions)
    finally:
        _active.release()


def _enter(simulation: Simulation, undo: contextlib.ExitStack, max_instructions: int | None) -> Simulation:
    from .images import Images
    from .memory import DeviceMemory
    from .stand_ins import Simulated, install
    from .tensors import PlacementMode

    memory, images = DeviceMemory(), Images()

    def launch(record: Launch) -> None:
        image = _image(images.ptx(record.image), record.kernel, simulation.device)
        parameters = _parameters(image, record)
        config = _config(record, simulation, max_instructions)

        def execute() -> None:
            report = run(image, parameters, config, memory.regions())
            logger.info("%s %s: %d warp instructions", record.kernel, record.grid, report.instructions)
            simulation.launches.append(Launched(record.kernel, record.grid, record.block, record.cluster, report))

        execute()
        if simulated.recording is not None:
            simulated.recording.append(execute)

    library = RuntimeLibrary(simulation.device, launch)
    placement = PlacementMode(memory)
    simulated = Simulated(simulation.device, images, library, placement)
    undo.callback(library.disconnect)
    library.connect()
    install(simulated, undo)
    undo.enter_context(placement)
    undo.enter_context(placement.claims)
    return simulation


def _image(ptx: str, kernel: str, device: Device) -> Image:
    image = cached_image(ptx, kernel, device.arch)
    target = image.module.target.partition(",")[0].strip()
    if target != device.arch:
        raise UnsupportedLaunch(
            f"{kernel} was compiled for {target}, the simulated GPU is a {device.arch}: "
            f"compile for that, or simulate {target}"
        )
    return image


def _parameters(image: Image, record: Launch) -> bytes:
    """The parameter block, from one pointer for each parameter."""
    block = bytearray(image.kernel.parameter_bytes)
    for index, parameter in enumerate(image.kernel.parameters):
        value = ctypes.string_at(record.args[index], parameter.nbytes)
        block[parameter.offset : parameter.offset + parameter.nbytes] = value
    return bytes(block)


def _config(record: Launch, simulation: Simulation, max_instructions: int | None) -> LaunchConfig:
    ctas = record.grid[0] * record.grid[1] * record.grid[2]
    cluster = record.cluster[0] * record.cluster[1] * record.cluster[2]
    resident = ctas if record.cooperative else max(simulation.device.sms, cluster)
    config = LaunchConfig(
        grid=record.grid,
        block=record.block,
        dynamic_shared=record.dynamic_shared,
        cluster=record.cluster,
        sms=min(ctas, resident),
        seed=simulation.seed,
    )
    return config if max_instructions is None else replace(config, max_instructions=max_instructions)
