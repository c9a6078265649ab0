"""Run an artefact on the CPU, by whatever simulator is installed.

Simulators announce themselves in the entry-point group `machete.simulators`; the runtime knows none by name. The
interface is one callable:

    report = simulate(ptx=, entry=, arch=, params=, grid=, block=, dynamic_shared=, memory=, sms=, seed=,
                      max_instructions=, progress=)

`params` is the kernel's parameter block, `memory` a list of (address, bytes, name, writable) of this process, and the
report has `instructions`, `seconds`, `max_stages_in_flight`, `simulated_ns` and `summary`.
"""

import logging
import struct
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from machete.megakernel.abi.errors import SimulatorMissingError

from .artefact import Artefact

logger = logging.getLogger("machete.megakernel")

GROUP = "machete.simulators"


def find_simulator() -> Callable[..., Any]:
    """The installed simulator, or a SimulatorMissingError with the line that installs one."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name != "default", entry.name))
    if not found:
        raise SimulatorMissingError(
            what="no simulator is installed",
            where=f"entry-point group {GROUP!r}",
            why="CPU tensors run on a simulator, which is a package of its own",
            fix="pip install 'machete-runtime[sim]', or pass CUDA tensors",
        )
    simulate: Callable[..., Any] = found[0].load()
    return simulate


def simulate(
    artefact: Artefact,
    parameters: list[tuple[int, int]],
    memory: list[tuple[int, int, str, bool]],
    num_sms: int,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Any:
    """Execute one launch and log what happened."""
    report = find_simulator()(
        ptx=artefact.ptx,
        entry=artefact.entry,
        arch=artefact.arch,
        params=parameter_block(parameters),
        grid=(num_sms, 1, 1),
        block=(artefact.threads, 1, 1),
        dynamic_shared=artefact.shared_bytes,
        memory=memory,
        sms=num_sms,
        seed=seed,
        max_instructions=None,
        progress=progress,
    )
    logger.info(
        "simulated %s on %d SMs: %d warp instructions in %.2f s, at most %d stages in flight",
        artefact.arch,
        num_sms,
        report.instructions,
        report.seconds,
        report.max_stages_in_flight,
    )
    return report


def parameter_block(parameters: list[tuple[int, int]]) -> bytes:
    """(value, bytes) pairs at their natural alignment, as PTX lays out `.param` space."""
    block = bytearray()
    for value, size in parameters:
        block += b"\0" * (-len(block) % size)
        block += struct.pack("<Q" if size == 8 else "<I", value)
    return bytes(block)
