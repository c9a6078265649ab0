"""What tools use of the runtime, beside its public classes: the tables of plans, files with ops, and traced kernels."""

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
    "traced_kernels",
]
