"""What tools that read plans use of them, beside `Plan` itself."""

from .plan.cost import RATES, Rates
from .plan.queues import COUNT, FIRST, OP, SIGNAL, STEP, TOTAL, WAITS
from .plan_command import ops_of

__all__ = ["COUNT", "FIRST", "OP", "RATES", "SIGNAL", "STEP", "TOTAL", "WAITS", "Rates", "ops_of"]
