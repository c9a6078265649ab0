"""The architectures that Machete compiles for."""

from __future__ import annotations

from dataclasses import dataclass

from machete.megakernel.abi.errors import PlanError, TargetError, closest, listing


@dataclass(frozen=True)
class Throttle:
    """Bytes that one SM keeps on their way from memory while it streams; a property of the card, not of the graph.

    With too few in flight memory idles; with too many, results, counters and activations queue up behind the prefetch
    and every dependency costs more.

    Attributes:
        first: in flight at first after an instruction begins, when somebody may be waiting for small accesses.
        ramp: for how many bytes that lasts.
        steady: in flight from then on.
    """

    first: int
    ramp: int
    steady: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "ramp" else 1
            if type(value) is not int or value < least:
                raise PlanError(
                    what=f"{name}={value!r}",
                    where="Throttle",
                    why="it is a number of bytes",
                    fix=f"use an int of at least {least}",
                )

    def pages(self, page_bytes: int, stage_pages: int, ring_pages: int) -> tuple[int, int, int]:
        """The same in pages: whole stages, at least one, and at most those of the ring."""

        def whole_stages(count: int) -> int:
            stages = -(-count // (page_bytes * stage_pages))
            return max(1, min(stages, ring_pages // stage_pages)) * stage_pages

        return whole_stages(self.first), -(-self.ramp // page_bytes), whole_stages(self.steady)


#: Found on an H200 with the decode chain (docs/decisions): 3 pages of 16 KiB for the first 16, then 10.
HOPPER_THROTTLE = Throttle(first=48 << 10, ramp=256 << 10, steady=160 << 10)


@dataclass(frozen=True)
class Target:
    """One architecture.

    Attributes:
        name: as ptxas spells it, with the `a` that unlocks wgmma, tcgen05 and block-scaled mma.
        shared_bytes: dynamic shared memory that one CTA can ask for (CUDA C++ Programming Guide, table
            "Technical Specifications per Compute Capability": maximum per thread block).
        compute_capability: of the devices that run it. Arch-specific code runs on exactly these.
        throttle: for ops that stream from memory; measured for sm_90a, assumed for the others.
        tensor_memory: whether its SMs have some, which tcgen05 accumulates in.
    """

    name: str
    shared_bytes: int
    compute_capability: tuple[int, int]
    throttle: Throttle = HOPPER_THROTTLE
    tensor_memory: bool = False

    @classmethod
    def named(cls, name: str) -> Target:
        """The target called `name`, e.g. "sm_90a"; `TargetError` lists the known ones."""
        if isinstance(name, str) and name in TARGETS:
            return TARGETS[name]
        raise TargetError(
            what=f"unknown architecture {name!r}{closest(str(name), TARGETS)}",
            where="arch=",
            why="Machete compiles for the arch-specific feature sets only",
            fix=f"use one of: {listing(TARGETS)}",
        )

    @classmethod
    def of_capability(cls, capability: tuple[int, int]) -> Target:
        """The target that runs on devices of this compute capability, e.g. (9, 0)."""
        for target in TARGETS.values():
            if target.compute_capability == tuple(capability):
                return target
        known = (f"{t.compute_capability[0]}.{t.compute_capability[1]} ({t.name})" for t in TARGETS.values())
        raise TargetError(
            what=f"no target for compute capability {capability[0]}.{capability[1]}",
            where="the CUDA device",
            why=f"arch-specific code runs on its own compute capability only; known: {listing(known)}",
            fix="use CPU tensors: they run on the simulator, whatever the card is",
        )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("sm_90a", 227 * 1024, (9, 0)),
        Target("sm_100a", 227 * 1024, (10, 0), tensor_memory=True),
        Target("sm_120a", 99 * 1024, (12, 0)),
    )
}
