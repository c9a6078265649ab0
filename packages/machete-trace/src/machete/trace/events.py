"""Events as the kernel writes them: eight bytes, a time and a tag.

The first word is the SM's clock, 32 bits of it: launches shorter than two seconds do not wrap it twice. The second one
is the tag: what happens in its low bits, and a value above them. A role's events are in the order of time, so spans
and waits need no number: an end belongs to the last begin of its type.
"""

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


def tag(what: str, ends: bool = False) -> int:
    """The low bits of a tag."""
    return 2 * TYPES.index(what) + ends
