"""Machete's runtime: small composable ops as one persistent GPU kernel."""

from typing import TYPE_CHECKING

from .abi.errors import MacheteError
from .abi.version import ABI
from .lazy import lazy_exports

if TYPE_CHECKING:
    from .abi.fusion import Fusion
    from .abi.op import Op
    from .abi.pipeline import PipelineSpec
    from .abi.scheduled import ScheduledOp
    from .abi.target import Target, Throttle
    from .abi.tma import TmaBox
    from .launch.autograd import DifferentiableOp, differentiable
    from .launch.comparison import Comparison, compare
    from .launch.library import RegisteredOp, register_op
    from .launch.lowering import Lowered, lower
    from .launch.megakernel import Megakernel, RunReport
    from .launch.temporaries import temporary
    from .plan.plan import Plan
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".abi.fusion": ["Fusion"],
            ".abi.op": ["Op"],
            ".abi.pipeline": ["PipelineSpec"],
            ".abi.scheduled": ["ScheduledOp"],
            ".abi.target": ["Target", "Throttle"],
            ".abi.tma": ["TmaBox"],
            ".launch.autograd": ["DifferentiableOp", "differentiable"],
            ".launch.comparison": ["Comparison", "compare"],
            ".launch.library": ["RegisteredOp", "register_op"],
            ".launch.lowering": ["Lowered", "lower"],
            ".launch.megakernel": ["Megakernel", "RunReport"],
            ".launch.temporaries": ["temporary"],
            ".plan.plan": ["Plan"],
        },
    )

__all__ = [
    "ABI",
    "Comparison",
    "DifferentiableOp",
    "Fusion",
    "Lowered",
    "MacheteError",
    "Megakernel",
    "Op",
    "PipelineSpec",
    "Plan",
    "RegisteredOp",
    "RunReport",
    "ScheduledOp",
    "Target",
    "Throttle",
    "TmaBox",
    "compare",
    "differentiable",
    "lower",
    "register_op",
    "temporary",
]
