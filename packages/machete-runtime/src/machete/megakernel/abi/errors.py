"""Every error that Machete raises for its users: what went wrong, where, why, and what to do about it.

There is one class for each kind of mistake. Each is also the builtin exception that fits (`ValueError`,
`TypeError`, …), so that callers who know nothing of Machete still catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
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
    "OpDefinitionError",
    "OpLoadError",
    "OpNotFoundError",
    "OverlapError",
    "PipelineError",
    "PlanError",
    "SavedKernelError",
    "ScalarError",
    "ScheduleError",
    "SettingError",
    "ShapeMismatchError",
    "SimulatorMissingError",
    "StrideError",
    "TargetError",
    "TensorTypeError",
    "TileSizeError",
    "TracerMissingError",
    "UnknownArgumentError",
]


class MacheteError(Exception):
    """Root of all errors of Machete.

    Arguments:
        what: one line that says what is wrong, with the values that are wrong.
        where: the op, tensor, file or device that it is about.
        why: the rule that was broken.
        fix: what to do; can often be pasted.
    """

    def __init__(self, *, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        lines = [what]
        lines += [f"  {part}: {text}" for part, text in (("where", where), ("why", why), ("fix", fix)) if text]
        self.message = "\n".join(lines)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.why, self.fix)


def _rebuild(kind: type[MacheteError], what: str, where: str, why: str, fix: str) -> MacheteError:
    return kind(what=what, where=where, why=why, fix=fix)


class OpDefinitionError(MacheteError, TypeError):
    """An op class is wrong in itself, whatever it is called with."""


class ScheduleError(MacheteError):
    """An op is right, but not with these arguments. Raised when it is scheduled, before anything compiles."""


class ShapeMismatchError(ScheduleError, ValueError):
    """Two tensors disagree about the extent of a dim, or a tensor has the wrong rank."""


class DtypeError(ScheduleError, TypeError):
    """A tensor has a dtype that the op, or Machete, does not take."""


class TensorTypeError(ScheduleError, TypeError):
    """Not a dense, materialised tensor: a list, a sparse tensor, a lazily conjugated view, …"""


class StrideError(ScheduleError, ValueError):
    """A tensor that is copied in bulk is not contiguous along its innermost dim."""


class AlignmentError(ScheduleError, ValueError):
    """An address or a stride is not a multiple of what the accesses to it need."""


class OverlapError(ScheduleError, ValueError):
    """An output shares memory with itself, with another output, or with an input of the same op."""


class DeviceError(ScheduleError, ValueError):
    """Tensors on several devices, or on a device that Machete does not run on."""


class TileSizeError(ScheduleError, ValueError):
    """A tile size is missing, unknown, or no positive integer."""


class MissingTensorError(ScheduleError, TypeError):
    """A tensor that the op declares was not passed."""


class UnknownArgumentError(ScheduleError, TypeError):
    """An argument that the op does not declare."""


class ScalarError(ScheduleError, TypeError):
    """A runtime scalar is missing, of the wrong type, or out of its dtype's range."""


class ConfigError(ScheduleError, TypeError):
    """A config value is not hashable, so it cannot identify compiled code; or its name is taken."""


class ExtentError(ScheduleError, ValueError):
    """An extent, or a number of tiles, does not fit the 32-bit integers that device code counts with."""


class TargetError(MacheteError, ValueError):
    """The op, or Machete, does not support an architecture."""


class PipelineError(MacheteError, ValueError):
    """A page ring is inconsistent, or does not fit into the shared memory of the target."""


class PlanError(MacheteError, ValueError):
    """Ops cannot be planned together, or a plan does not hold what it promises."""


class LaunchError(MacheteError, RuntimeError):
    """A kernel could not be launched, or did not end in order."""


class HangError(MacheteError, RuntimeError):
    """A wait in a running kernel did not end, and the kernel was stopped; its results are worthless."""


class SavedKernelError(MacheteError, ValueError):
    """A file is no saved kernel, or not one that can run here."""


class SettingError(MacheteError, ValueError):
    """An environment variable is set to something that it cannot be."""


class SimulatorMissingError(MacheteError, ImportError):
    """CPU tensors need the simulator, which is not installed."""

    def __init__(
        self,
        *,
        what: str = "CPU tensors run on the simulator, which is not installed",
        where: str = "",
        why: str = "",
        fix: str = "pip install 'machete-runtime[sim]'",
    ) -> None:
        super().__init__(what=what, where=where, why=why, fix=fix)


class TracerMissingError(MacheteError, ImportError):
    """A kernel is to be traced, and no tracer is installed."""


class AbiMismatchError(MacheteError, ImportError):
    """An op package needs an Op ABI that this runtime does not provide."""


class OpLoadError(MacheteError, ImportError):
    """An op package is installed, but what it announces cannot be imported or is no op."""


class OpNotFoundError(MacheteError, LookupError):
    """No installed package announces an op of this name, or several do."""


def listing(names: Iterable[object]) -> str:
    """The names as they appear in a message: comma-separated, or "none"."""
    return ", ".join(str(name) for name in names) or "none"


def closest(name: object, known: Iterable[str]) -> str:
    """' (did you mean `x`?)' if one of the `known` names looks like `name`, else nothing."""
    matches = difflib.get_close_matches(str(name), [str(one) for one in known], n=1, cutoff=0.5)
    return f" (did you mean `{matches[0]}`?)" if matches else ""
