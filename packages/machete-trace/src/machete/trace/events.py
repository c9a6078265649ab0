"""Events as the kernel writes them: eight bytes, a time and a tag.

The first word is the SM's clock, 32 bits of it: launches shorter than two seconds do not wrap it twice. The second one
is the tag: what happens in its low bits, and a value above them. A role's events are in the order of time, so spans
and waits need no number: an end belongs to the last begin of its type.
"""

#: What a type begins and ends; it is `2 * index`, and `2 * index + 1` for the end.
TYPES = (
    "role",
    # spans (`machete.megakernel.device.tracing.SPANS`)
    "instruction",
    "load",
    "compute",
    "store",
    "multiply",
    "polling",
    "barrier",
    "drain",
    # causes of waits (`CAUSES` there)
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
    # a moment: a stage of the ring was taken
    "stage",
)
WAITS = frozenset(TYPES[9:20])

PHASES = ("load", "compute", "store", "multiply")

TYPE_BITS = 6
#: Values have the bits above, modulo this; tiles and rows beyond 67 million alias.
VALUES = 1 << (32 - TYPE_BITS)

EVENT_BYTES = 8


def tag(what: str, ends: bool = False) -> int:
    """The low bits of a tag."""
    return 2 * TYPES.index(what) + ends
