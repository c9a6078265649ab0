"""The missing microseconds: where a launch's time went, beside what it could not have been faster than."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .ahead import Ring, ring_of
from .attribution import CATEGORIES, Attribution
from .buffer import roles_of
from .clocks import Alignment
from .floors import Floor, floors
from .layers import layers_of
from .savings import Saving, savings_of

if TYPE_CHECKING:
    from .trace import Trace

#: How many changes a report names.
NAMED_SAVINGS = 3


@dataclass(frozen=True)
class Share:
    """Where the time of some ops went.

    Attributes:
        name: of the op, or of the layer.
        ops: their numbers.
        tiles: how many.
        us: µs by category, the mean over all SMs: what the launch owes to it.
        floor: what their bytes and FLOPs need.
    """

    name: str
    ops: tuple[int, ...]
    tiles: int
    us: dict[str, float]
    floor: Floor

    @property
    def total_us(self) -> float:
        """All categories together."""
        return sum(self.us.values())


@dataclass(frozen=True)
class Report:
    """Where every SM-microsecond of a launch went.

    Attributes:
        where, target, num_sms, schedule: what was traced.
        traced_us: from the first event to the last one.
        wall_us: measured without the trace; None if nobody did.
        us: µs by category, the mean over all SMs. They are exclusive; together they are `traced_us`.
        floor: of the whole graph.
        ops, layers: the same for each op, and for each layer if the graph has layers. What is in no instruction
            (launch, the wait for the last SM, tail) belongs to no op.
        savings: the changes that would save most.
        overlap_us: what the other roles did, the mean over all SMs. It goes on beside compute and is not added.
        ring: how full the page ring was.
        lost: events for which the buffer had no room.
        alignment: how well the SMs' clocks are aligned.
    """

    where: str
    target: str
    num_sms: int
    schedule: str
    traced_us: float
    wall_us: float | None
    us: dict[str, float]
    floor: Floor
    ops: tuple[Share, ...]
    layers: tuple[Share, ...]
    savings: tuple[Saving, ...]
    overlap_us: dict[str, float]
    ring: Ring
    lost: int
    alignment: Alignment

    @classmethod
    def of(cls, trace: Trace) -> Report:
        """Attribute a trace, and add it up."""
        plan = trace.plan
        attribution = trace.attribution
        of_ops, whole = floors(plan)
        names = [plan.kinds[op.kind].name.rpartition(".")[2] for op in plan.ops]
        by_op = _by_op(attribution, len(plan.ops), plan.num_sms)
        shares = tuple(
            Share(
                names[op], (op,), plan.ops[op].num_tiles, dict(zip(CATEGORIES, by_op[op].tolist(), strict=True)), floor
            )
            for op, floor in enumerate(of_ops)
        )
        layers = layers_of(plan.kind_of_op)
        return cls(
            where=trace.where,
            target=plan.target.name,
            num_sms=plan.num_sms,
            schedule=plan.schedule,
            traced_us=trace.total_us,
            wall_us=trace.wall_us,
            us={name: total / plan.num_sms for name, total in attribution.totals().items()},
            floor=whole,
            ops=shares,
            layers=tuple(_together(f"layer {number}", [shares[op] for op in ops]) for number, ops in enumerate(layers)),
            savings=tuple(savings_of(plan, attribution, of_ops, names.__getitem__)[:NAMED_SAVINGS]),
            overlap_us=_overlap(trace),
            ring=ring_of(trace),
            lost=int(trace.lost.sum()),
            alignment=trace.alignment,
        )

    @property
    def reconciliation(self) -> float | None:
        """How far the sum of all categories is from the wall time, as a part of it; None without a wall time."""
        return None if not self.wall_us else abs(sum(self.us.values()) - self.wall_us) / self.wall_us

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {**dataclasses.asdict(self), "reconciliation": self.reconciliation}

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        from .tables import text_of

        return text_of(self)


def _by_op(attribution: Attribution, num_ops: int, num_sms: int) -> np.ndarray:
    """float64[ops, categories]: µs, the mean over the SMs."""
    inside = attribution.op >= 0
    index = attribution.op[inside] * len(CATEGORIES) + attribution.category[inside]
    sums = np.bincount(index, attribution.duration[inside], minlength=num_ops * len(CATEGORIES))
    return sums.reshape(num_ops, len(CATEGORIES)) / num_sms


def _together(name: str, shares: list[Share]) -> Share:
    fields = [field.name for field in dataclasses.fields(Floor)]
    return Share(
        name,
        tuple(op for share in shares for op in share.ops),
        sum(share.tiles for share in shares),
        {category: sum(share.us[category] for share in shares) for category in CATEGORIES},
        Floor(**{field: sum(getattr(share.floor, field) for share in shares) for field in fields}),
    )


def _overlap(trace: Trace) -> dict[str, float]:
    """Mean over the SMs: how long loader and storer were at work, or waited, whatever compute did meanwhile."""
    spans = trace.spans
    sums = {}
    labels = (
        ("loader in load phases", "loader", ("load",)),
        ("loader waits for pages", "loader", ("page",)),
        ("loader waits for dependencies", "loader", ("dependency",)),
        ("loader throttles", "loader", ("throttle",)),
        ("storer in store phases", "storer", ("store",)),
        ("storer drains", "storer", ("drain",)),
        ("watcher polls", "watcher", ("polling",)),
        ("multiplier in multiply phases", "multiplier", ("multiply",)),
        ("multiplier waits for data", "multiplier", ("data",)),
        ("multiplier waits for accumulators", "multiplier", ("accumulator",)),
    )
    roles = roles_of(trace.plan)
    for label, role, kinds in (entry for entry in labels if entry[1] in roles):
        chosen = spans.of(*kinds, role=role)
        sums[label] = float((chosen.end - chosen.begin).sum()) / trace.plan.num_sms
    return sums
