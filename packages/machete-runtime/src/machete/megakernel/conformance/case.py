"""One case of the conformance suite: an op, inputs for it, and what has to come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from machete.megakernel.abi.op import Op
    from machete.megakernel.abi.scheduled import ScheduledOp


@dataclass(frozen=True)
class Case:
    """What an op package writes for each way in which its op is used.

    Attributes:
        op: the public op class.
        make: given a device ("cpu" or "cuda"), schedules the op on tensors with random contents. Returns the
            scheduled ops, and the tensors by name: every output, and what the reference needs.
        reference: returns the outputs by name. Its parameters are names of those tensors, bound by name:
            floating-point ones as float64, each a copy. One that is updated in place is parameter and output.
        tolerance: the largest accepted ‖output − reference‖ / ‖reference‖ of one output.
        name: to tell the cases of one op apart.
    """

    op: type[Op]
    make: Callable[[str], tuple[Sequence[ScheduledOp], Mapping[str, torch.Tensor]]]
    reference: Callable[..., Mapping[str, torch.Tensor]]
    tolerance: float
    name: str = ""

    def __str__(self) -> str:
        return f"{self.op.__name__}-{self.name}" if self.name else self.op.__name__
