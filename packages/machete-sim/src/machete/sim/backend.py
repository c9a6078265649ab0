"""The interface by which a runtime finds this simulator: entry-point group `machete.simulators`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from .image import cached_image
from .launch import LaunchConfig, Region, Report, run


def simulate(
    *,
    ptx: str,
    entry: str | None,
    arch: str,
    params: bytes,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    dynamic_shared: int,
    cluster: tuple[int, int, int] | None = None,
    memory: Sequence[tuple[int, int, str, bool]],
    sms: int | None = None,
    seed: int = 0,
    max_instructions: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Execute one launch of `entry` of a PTX module.

    params: the kernel's parameter block in .param layout. cluster: CTAs (None: as compiled).
    memory: (address, bytes, name, writable) of this process.
    sms: CTAs resident at a time (None: the whole grid). Raises a machete.sim.SimulationError.
    """
    image = cached_image(ptx, entry, arch)
    config = LaunchConfig(grid=grid, block=block, dynamic_shared=dynamic_shared, cluster=cluster, sms=sms, seed=seed)
    if max_instructions is not None:
        config = replace(config, max_instructions=max_instructions)
    return run(image, params, config, [Region(*region) for region in memory], progress)
