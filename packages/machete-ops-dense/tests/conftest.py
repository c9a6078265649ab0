"""What the tests of all dense ops share: running ops, and results that nobody has written yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from machete.megakernel import Megakernel, ScheduledOp


@pytest.fixture
def run(arch: str, device: str) -> Callable[..., Megakernel]:
    """Run ops once, on the card or simulated for the test's architecture."""

    def run(ops: list[ScheduledOp], **options: Any) -> Megakernel:
        kernel = Megakernel(ops, arch=arch if device == "cpu" else None, **options)
        kernel.run()
        return kernel

    return run


@pytest.fixture
def random(device: str) -> Callable[..., torch.Tensor]:
    """A tensor of normal random numbers."""

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device=device) * scale).to(dtype)

    return random


@pytest.fixture
def poisoned(device: str) -> Callable[..., torch.Tensor]:
    """A tensor full of NaN: an element that is not written shows."""

    def poisoned(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.full(shape, float("nan"), device=device, dtype=dtype)

    return poisoned


@pytest.fixture
def error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """‖out − reference‖ / ‖reference‖ in float64."""

    def error(out: torch.Tensor, reference: torch.Tensor) -> float:
        return ((out.double() - reference.double()).norm() / reference.double().norm()).item()

    return error


@pytest.fixture
def kind_names() -> Callable[[Megakernel], list[str]]:
    """The implementation that each op of a kernel got."""

    def kind_names(kernel: Megakernel) -> list[str]:
        return [kernel.plan.kinds[kind].name.rpartition(".")[2] for kind in kernel.plan.kind_of_op]

    return kind_names
