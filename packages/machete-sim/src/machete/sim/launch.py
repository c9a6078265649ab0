"""Running an image: what memory it may touch, how it is launched, what came of it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from . import _core
from .errors import FAULTS, ExecutionError, UnsupportedLaunch, WaitingWarp
from .image import Image
from .recording import note
from .settings import Check, default_check
from .timeline import MAX_SLICES, note_timeline, source_lines, traced

MAX_THREADS = 1024
MAX_CLUSTER = 16  # the non-portable size of sm_90 and sm_100
# Bytes of a CTA, static and dynamic (CUDA programming guide, compute capabilities).
MAX_SHARED = {"sm_90a": 227 * 1024, "sm_100a": 227 * 1024, "sm_120a": 99 * 1024}


@dataclass(frozen=True)
class Region:
    """One allocation the kernel may touch: device addresses are addresses of this process."""

    address: int
    nbytes: int
    name: str
    writable: bool = True


@dataclass(frozen=True)
class LaunchConfig:
    """grid, block: CTAs and threads (x, y, z). dynamic_shared: bytes of a CTA. cluster: CTAs (None: what the kernel was
    compiled for, else one). sms: how many CTAs are resident at a time (None: all). seed: order of warps and of
    asynchronous completions. max_instructions: warp instructions until a livelock. check: "memory" for bounds,
    initialisation and barriers; "races" for happens-before as well; "strict" for happens-before in which only
    bar.warp.sync orders the lanes of a warp, not every .sync instruction; loads from shared memory have come when
    something that ptxas cannot move has waited for them; tensor maps are acquired (default: MACHETE_SIM_CHECK).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int = 0
    cluster: tuple[int, int, int] | None = None
    sms: int | None = None
    seed: int = 0
    max_instructions: int = 2_000_000_000
    check: Check = field(default_factory=default_check)


@dataclass(frozen=True)
class Report:
    """What a launch did. Counts are over all CTAs; instructions are of warps; bytes are those of asynchronous copies.

    max_stages_in_flight: most mbarriers of one CTA that waited for bytes of asynchronous copies at one moment.
    simulated_ns: when the last warp ended in simulated time, which %clock and %globaltimer show: one ns for each
    instruction of a warp, latency and bandwidth for copies and signals, and none for polling in vain.
    """

    instructions: int
    seconds: float
    ctas: int
    max_stages_in_flight: int
    async_copies: int
    bytes_loaded: int
    bytes_stored: int
    matrix_instructions: int
    simulated_ns: int

    @property
    def summary(self) -> dict[str, int | float]:
        """The same as plain numbers, with the speed."""
        return asdict(self) | {"instructions_per_second": self.instructions / max(self.seconds, 1e-9)}


def run(
    image: Image,
    params: bytes,
    config: LaunchConfig,
    memory: Sequence[Region] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Execute a launch.

    params: the parameter block in PTX .param layout. progress: called now and then with the warp instructions done and
    the CTAs retired. Raises an ExecutionError that names the place, or UnsupportedLaunch before anything runs.
    """
    cluster = _check(image, params, config)
    note(image, params, config, memory)
    regions = [(r.address, r.nbytes, r.name, r.writable) for r in memory if r.nbytes]
    regions += [(a.ctypes.data, a.nbytes, name, writable) for a, name, writable in image.variables if a.nbytes]
    result = _core.launch(
        image.code.program,
        np.frombuffer(params or b"\0", np.uint8),
        list(config.grid),
        list(config.block),
        list(cluster),
        config.dynamic_shared,
        config.sms or 0,
        config.seed,
        config.max_instructions,
        config.check != "memory",
        config.check == "strict",
        regions,
        progress,
        source_lines(image) if traced() else np.zeros(0, np.uint32),
        MAX_SLICES,
    )
    if "slices" in result:
        note_timeline(image, config, cluster, result)
    if result["printed"]:
        sys.stdout.write(result["printed"].decode(errors="replace"))
        sys.stdout.flush()
    if "fault" in result:
        raise _error(image, result["fault"])
    return Report(
        instructions=result["instructions"],
        seconds=result["seconds"],
        ctas=result["retired_ctas"],
        max_stages_in_flight=result["max_stages_in_flight"],
        async_copies=result["async_copies"],
        bytes_loaded=result["bytes_loaded"],
        bytes_stored=result["bytes_stored"],
        matrix_instructions=result["matrix_instructions"],
        simulated_ns=result["simulated_ns"],
    )


def _check(image: Image, params: bytes, config: LaunchConfig) -> tuple[int, int, int]:
    """The size of a cluster, if the launch is possible."""
    needed = image.kernel.parameter_bytes
    if len(params) < needed:
        raise UnsupportedLaunch(f"{image.kernel.name} takes {needed} bytes of parameters, {len(params)} are given")
    cluster = _cluster(image, config)
    shared = image.code.static_shared + config.dynamic_shared
    limit = MAX_SHARED[image.arch]
    if shared > limit:
        raise UnsupportedLaunch(f"{shared} bytes of shared memory; a CTA of {image.arch} has at most {limit}")
    threads = config.block[0] * config.block[1] * config.block[2]
    if min(*config.grid, *config.block) < 1 or threads > MAX_THREADS:
        raise UnsupportedLaunch(f"grid {config.grid}, block {config.block}: a block has 1 to {MAX_THREADS} threads")
    required = image.kernel.limits.get("reqntid")
    if required is not None and (*required, 1, 1)[:3] != config.block:
        raise UnsupportedLaunch(f"{image.kernel.name} was compiled for blocks of {required}, not {config.block}")
    return cluster


def _cluster(image: Image, config: LaunchConfig) -> tuple[int, int, int]:
    compiled = image.kernel.limits.get("reqnctapercluster")
    required = None
    if compiled is not None:
        x, y, z = (*compiled, 1, 1)[:3]
        required = (x, y, z)
    cluster = config.cluster or required or (1, 1, 1)
    if required not in (None, cluster):
        raise UnsupportedLaunch(f"{image.kernel.name} was compiled for clusters of {required}, not {cluster}")
    size = cluster[0] * cluster[1] * cluster[2]
    if min(cluster) < 1 or size > MAX_CLUSTER:
        raise UnsupportedLaunch(f"a cluster of {cluster} CTAs; it has 1 to {MAX_CLUSTER}")
    if any(g % c for g, c in zip(config.grid, cluster, strict=True)):
        raise UnsupportedLaunch(f"grid {config.grid} is not a multiple of the cluster {cluster}")
    if config.sms is not None and config.sms < size:
        raise UnsupportedLaunch(f"a cluster of {size} CTAs does not fit on {config.sms} SMs")
    return cluster


def _error(image: Image, fault: dict[str, Any]) -> ExecutionError:
    def place(pc: int, mark: dict[str, Any]) -> Any:
        text = image.mark_text(mark["pc"], mark["values"])
        return image.place(pc, text) if pc >= 0 else None

    kind = FAULTS[fault["kind"]]
    located = fault["warp"] >= 0
    return kind(
        fault["message"],
        cta=tuple(fault["cta"]) if located else None,
        warp=fault["warp"] if located else None,
        lanes=tuple(lane for lane in range(32) if fault["lanes"] >> lane & 1),
        place=place(fault["pc"], fault["mark"]),
        waiting=[WaitingWarp(w["cta"], w["warp"], w["what"], place(w["pc"], w["mark"])) for w in fault["waiting"]],
    )
