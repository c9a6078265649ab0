"""What a tile costs: bytes and FLOPs against the rates of a card, corrected by measured times where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.target import Target
from machete.megakernel.plan.kinds import Kind

#: Measured µs for one tile: by the index of an op in the list, or by the name of its kind (module and class).
Profile = Mapping[str | int, float]


@dataclass(frozen=True)
class Rates:
    """A card, and what one of its SMs has of it.

    Attributes:
        num_sms: SMs of that card.
        bytes_per_us: global memory, with all SMs at it.
        flops_per_us: tensor cores, bf16 with fp32 accumulators.
        tile_us: of any tile, whatever it does.
        instruction_us: of any instruction: a row and a record to fetch, roles to hand it to.
        dependency_us: from the last signal to the first tile that waited for it.
    """

    num_sms: int
    bytes_per_us: float
    flops_per_us: float
    tile_us: float = 0.2
    instruction_us: float = 0.4
    dependency_us: float = 1.7

    def time(self, nbytes: float, flops: float) -> float:
        """µs of one tile that moves and computes this much."""
        return self.tile_us + max(nbytes / self.bytes_per_us, flops / self.flops_per_us)


#: sm_90a: an H200 with 132 SMs, measured (4.42 TB/s read, 700 TFLOP/s in cuBLAS, a dependency under load 1.7 µs). The
#: others follow from data sheets (B200: 8 TB/s, 148 SMs; RTX 5090: 1.79 TB/s, 170 SMs) at the H200's efficiency.
RATES: dict[str, Rates] = {
    "sm_90a": Rates(132, bytes_per_us=33.5e3, flops_per_us=5.3e6),
    "sm_100a": Rates(148, bytes_per_us=50e3, flops_per_us=10.6e6),
    "sm_120a": Rates(170, bytes_per_us=9.7e3, flops_per_us=0.9e6),
}


def tile_times(
    ops: Sequence[ScheduledOp], kinds: Sequence[Kind], kind_of_op: Sequence[int], target: Target, profile: Profile
) -> tuple[float, ...]:
    """µs for a tile of each op; the profile counts where it has the op, or its kind. `PlanError` if it is none."""
    if not isinstance(profile, Mapping):
        raise PlanError(
            what=f"profile is of type {type(profile).__name__}",
            where="Plan.build(profile=…)",
            why="it maps indices of ops, or names of kinds, to µs",
            fix="profile={0: 1.5}",
        )
    for name, time in profile.items():
        if not isinstance(name, int | str):
            raise PlanError(
                what=f"profile has the key {name!r}",
                where="Plan.build(profile=…)",
                why="it maps indices of ops, or names of kinds, to µs",
                fix="profile={0: 1.5}",
            )
        if isinstance(time, bool) or not isinstance(time, int | float) or not time > 0:
            raise PlanError(
                what=f"profile[{name!r}] = {time!r}",
                where="Plan.build(profile=…)",
                why="a profile gives the µs of one tile, more than 0",
                fix="leave out what was not measured",
            )
        if isinstance(name, int) and not 0 <= name < len(ops):
            raise PlanError(
                what=f"profile[{name}], but there are {len(ops)} ops",
                where="Plan.build(profile=…)",
                why="a number is the index of an op in the list, as the trace of the same list has it",
                fix="profile the list that is planned, or name kinds",
            )
    rates = RATES[target.name]
    times = []
    for index, (op, kind) in enumerate(zip(ops, kind_of_op, strict=True)):
        measured = profile.get(index, profile.get(kinds[kind].name))
        times.append(rates.time(*op.op.cost(op)) if measured is None else float(measured))
    return tuple(times)
