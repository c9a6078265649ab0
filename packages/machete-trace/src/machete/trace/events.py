"""Events as the kernel writes them: eight bytes, a time and a tag.

The first word is the SM's clock, 32 bits of it: launches shorter than two seconds do not wrap it twice. The second one
is the tag: what happens in its low bits, and a value above them. A role's events are in the order of time, so spans
and waits need no number: an end belongs to the last begin of its type.
"""

from __future__ import annotations

import numpy as np

PHASES = ("load", "compute", "store", "multiply")
#: Causes of waits (`machete.megakernel.device.tracing.CAUSES`).
WAITS = (
    "fetch",
    "slot",
    "dependency",
    "page",
    "throttle",
    "data",
    "output",
    "results",
    "position",
    "accumulator",
    "products",
)
#: What a type begins and ends; it is `2 * index`, and `2 * index + 1` for the end. Spans (`SPANS` there), waits, and a
#: moment: a stage of the ring was taken.
TYPES = ("role", "instruction", *PHASES, "polling", "barrier", "drain", *WAITS, "stage")

TYPE_BITS = 6
#: Values have the bits above, modulo this; tiles and rows beyond 67 million alias.
VALUES = 1 << (32 - TYPE_BITS)

EVENT_BYTES = 8

#: Roles that use stages. The event of a stage that they take says in its value for how many cycles they have waited for
#: its data; longer waits (34 ms at 2 GHz) count as the most that a value holds (`LONGEST` of the runtime's
#: `device.tracing`). `expanded` makes events of that.
USERS = ("compute", "multiplier")


def tag(what: str, ends: bool = False) -> int:
    """The low bits of a tag."""
    return 2 * TYPES.index(what) + ends


def expanded(role: str, cycles: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times (int64, cycles) and tags (uint32) of a role, in which the waits that stages tell of are events, too."""
    if role not in USERS:
        return cycles, words
    waited = np.where((words & (1 << TYPE_BITS) - 1) == tag("stage"), words >> TYPE_BITS, 0).astype(np.int64)
    source = np.repeat(np.arange(len(words)), np.where(waited > 0, 3, 1))
    cycles, words, waited = cycles[source], words[source], waited[source]
    last = np.append(source[1:] != source[:-1], True)[: len(source)]
    first = np.append(True, last[:-1])[: len(source)]
    stage, begins, ends = (waited > 0) & last, (waited > 0) & first, (waited > 0) & ~last & ~first
    words[stage], words[begins], words[ends] = tag("stage"), tag("data"), tag("data", ends=True)
    return np.where(begins, cycles - waited, cycles), words
