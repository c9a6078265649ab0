"""What tools use of the runtime, beside its public classes: the tables of plans, files with ops, traced kernels, and
files that are written whole or not at all.
"""

from .launch.cache.store import replace_file
from .launch.tracing import traced_kernels
from .plan.cost import RATES, Rates
from .plan.queues import COUNT, FIRST, OP, SIGNAL, STEP, TOTAL, WAITS
from .plan_command import ops_of

__all__ = [
    "COUNT",
    "FIRST",
    "OP",
    "RATES",
    "SIGNAL",
    "STEP",
    "TOTAL",
    "WAITS",
    "Rates",
    "ops_of",
    "replace_file",
    "traced_kernels",
]
