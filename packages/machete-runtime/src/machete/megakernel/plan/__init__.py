"""Planning: from scheduled ops to instruction queues, dependencies and shared memory. Needs no GPU."""

from machete.megakernel.plan.dependencies import Dependency
from machete.megakernel.plan.kinds import Kind, KindKey
from machete.megakernel.plan.plan import Plan, PlannedOp
from machete.megakernel.plan.program import Program
from machete.megakernel.plan.queues import Queues
from machete.megakernel.plan.record import RecordLayout, TensorLayout
from machete.megakernel.plan.shared import SharedLayout

__all__ = [
    "Dependency",
    "Kind",
    "KindKey",
    "Plan",
    "PlannedOp",
    "Program",
    "Queues",
    "RecordLayout",
    "SharedLayout",
    "TensorLayout",
]
