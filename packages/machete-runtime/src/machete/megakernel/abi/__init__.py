"""The Op ABI: how an op is declared, scheduled and checked. Needs no GPU and no compiler."""

from typing import TYPE_CHECKING

from machete.megakernel.abi.errors import (
    AbiMismatchError,
    AlignmentError,
    ConfigError,
    DeviceError,
    DtypeError,
    ExtentError,
    HangError,
    LaunchError,
    MacheteError,
    MissingTensorError,
    OpDefinitionError,
    OpLoadError,
    OpNotFoundError,
    OverlapError,
    PipelineError,
    PlanError,
    SavedKernelError,
    ScalarError,
    ScheduleError,
    SettingError,
    ShapeMismatchError,
    SimulatorMissingError,
    StrideError,
    TargetError,
    TensorTypeError,
    TileSizeError,
    TracerMissingError,
    UnknownArgumentError,
)
from machete.megakernel.abi.version import ABI
from machete.megakernel.lazy import lazy_exports

if TYPE_CHECKING:
    from machete.megakernel.abi.declaration import OpDeclaration, TensorDeclaration
    from machete.megakernel.abi.op import Op
    from machete.megakernel.abi.pipeline import PipelineSpec
    from machete.megakernel.abi.scheduled import ScheduledOp
    from machete.megakernel.abi.target import TARGETS, Target
    from machete.megakernel.abi.tensor import TensorInfo
    from machete.megakernel.abi.tma import TmaBox
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".declaration": ["OpDeclaration", "TensorDeclaration"],
            ".op": ["Op"],
            ".pipeline": ["PipelineSpec"],
            ".scheduled": ["ScheduledOp"],
            ".target": ["TARGETS", "Target"],
            ".tensor": ["TensorInfo"],
            ".tma": ["TmaBox"],
        },
    )

__all__ = [
    "ABI",
    "TARGETS",
    "AbiMismatchError",
    "AlignmentError",
    "ConfigError",
    "DeviceError",
    "DtypeError",
    "ExtentError",
    "HangError",
    "LaunchError",
    "MacheteError",
    "MissingTensorError",
    "Op",
    "OpDeclaration",
    "OpDefinitionError",
    "OpLoadError",
    "OpNotFoundError",
    "OverlapError",
    "PipelineError",
    "PipelineSpec",
    "PlanError",
    "SavedKernelError",
    "ScalarError",
    "ScheduleError",
    "ScheduledOp",
    "SettingError",
    "ShapeMismatchError",
    "SimulatorMissingError",
    "StrideError",
    "Target",
    "TargetError",
    "TensorDeclaration",
    "TensorInfo",
    "TensorTypeError",
    "TileSizeError",
    "TmaBox",
    "TracerMissingError",
    "UnknownArgumentError",
]
