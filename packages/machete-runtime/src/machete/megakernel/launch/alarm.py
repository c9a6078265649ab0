"""What a warp that gave up waiting has reported, in words."""

from __future__ import annotations

from typing import Any

from machete.megakernel.abi.errors import HangError
from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.shared import MBARRIER_BYTES, SharedLayout

#: What a warp waited for, by the number that the report has for it: 1 + the position in `device.waiting.REASONS`.
REASONS = {
    4: "a free page of the ring: whoever uses the stages has not released it",
    5: "copies on their way to land",
    6: "copies into a stage to land: the loader has not filled it",
    7: "a free place on the way to the store phase",
    8: "results: compute has not forwarded the stage",
    10: "a free accumulator: compute has not read it",
    11: "products to be complete: the multiplier has not committed them",
    12: "signals of other instructions",
    13: "sums that another SM hands over",
}
COUNTER, TAG = 12, 13
ROLES = (*(f"compute warp {warp}" for warp in range(8)), "controller", "loader", "storer", "watcher", "multiplier")


def hang(words: list[int], plan: Plan, counters: int, seconds: float, simulated: bool) -> HangError:
    """The error for a report; `counters` is the address of the launch's counters, `seconds` its patience."""
    reason, cta, warp, place, op, tile, expected, seen = words
    what, role = REASONS[reason], ROLES[warp]
    who = "a compute warp" if role.startswith("compute") else f"the {role}"
    if reason == COUNTER:
        number = (place - counters % 2**32) % 2**32 // plan.shared.counter_bytes
        barrier = f"counter {number - 1}"
        state = f"expected at least {expected % 2**32}, seen {seen % 2**32}"
    elif reason == TAG:
        barrier, state = f"the words at …{place % 2**32:08x}", "they are not there"
    else:
        barrier = barrier_name(plan.shared, place + plan.shared.alarm_offset)
        state = f"expected the end of its phase of parity {expected}, which has not come"
    where = f"SM {cta}, {role}"
    if 0 <= op < len(plan.ops):
        where += f", op {op} ({plan.kinds[plan.ops[op].kind].name})" + (f", tile {tile}" if tile >= 0 else "")
    return HangError(
        what=f"{who} waited {seconds:g} s for {what}",
        where=where,
        why=f"{barrier}: {state}; the kernel was stopped, and its results are worthless",
        fix="leave timeout out: then the simulator names what every warp waits for"
        if simulated
        else "run the ops on CPU tensors: the simulator names what every warp waits for; "
        "if a wait may take longer, pass Megakernel(…, timeout=seconds)",
    )


def barrier_name(layout: SharedLayout, offset: int) -> str:
    """Name and number of the mbarrier at a byte offset of the kernel's shared memory."""
    areas: dict[str, Any] = {
        "full": (layout.full_offset, layout.ring_pages),
        "empty": (layout.empty_offset, layout.ring_pages),
        "out_full": (layout.out_full_offset, layout.output_slots),
        "out_empty": (layout.out_empty_offset, layout.output_slots),
        "slot_full": (layout.slot_full_offset, layout.slots),
        "slot_clear": (layout.slot_clear_offset, layout.slots),
        "slot_free": (layout.slot_free_offset, layout.slots),
        "slot_begun": (layout.slot_begun_offset, layout.slots if layout.accumulators else 0),
        "summed": (layout.summed_offset, layout.accumulators),
        "taken": (layout.taken_offset, layout.accumulators),
        "ended": (layout.ended_offset, 1 if layout.accumulators else 0),
        "operands": (layout.operands_offset, layout.ring_pages if layout.accumulators else 0),
    }
    for name, (begin, count) in areas.items():
        if begin <= offset < begin + count * MBARRIER_BYTES:
            return f"mbarrier {name}[{(offset - begin) // MBARRIER_BYTES}]"
    return f"mbarrier at byte {offset}"
