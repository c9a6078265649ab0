"""`tune`: what is measured is what `GemmOp` chooses from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from machete.kernels.gemm import GemmOp, Tuning, tune
from machete.kernels.gemm import op as gemm_op
from machete.kernels.gemm.tuning import candidates, keep
from machete.megakernel import settings
from machete.megakernel.errors import DeviceError, ScheduleError
from machete.megakernel.tuning import Choices

M, N, K = 96, 512, 1024
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def operands() -> Operands:
    return tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in ((M, K), (N, K), (M, N)))  # type: ignore[return-value]


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choices:
    """Choices for tensors of the CPU, as if it were a card."""
    monkeypatch.setenv(settings.CACHE.variable, "on")
    monkeypatch.setenv(settings.CACHE_DIR.variable, str(tmp_path))
    choices = Choices("GemmOp", "card")
    monkeypatch.setattr(gemm_op, "tuned_choices", lambda device: choices)
    return choices


def chosen(operands: Operands) -> tuple[int, object]:
    a, b, c = operands
    (op,) = GemmOp.schedule(a=a, b=b, c=c)
    return op.tile_sizes["N"], op.config.get("slices")


def tuning(operands: Operands, best: tuple[int, int]) -> Tuning:
    found = candidates(*operands)
    return Tuning(
        gemm_op.tuned_problem(*operands), "card", {choice: 9.0 - (choice == best) for choice in found}, found[0]
    )


def test_what_was_measured_is_chosen(operands: Operands, choices: Choices) -> None:
    before = chosen(operands)
    other = next(choice for choice in candidates(*operands) if choice[0] != before[0])
    keep(choices, tuning(operands, other))
    assert chosen(operands) == other
    wider = (*operands[:2], torch.zeros(M, N, dtype=torch.float32))
    assert chosen(wider) == before, "another type of c is another problem"


def test_a_choice_that_is_none_any_more_is_passed_over(operands: Operands, choices: Choices) -> None:
    before = chosen(operands)
    choices.keep(gemm_op.tuned_problem(*operands), {"tile_n": 100, "slices": 1})
    assert chosen(operands) == before
    choices.keep(gemm_op.tuned_problem(*operands), {"columns": 64})
    assert chosen(operands) == before


def test_what_the_caller_says_counts_more(operands: Operands, choices: Choices) -> None:
    a, b, c = operands
    choices.keep(gemm_op.tuned_problem(a, b, c), {"tile_n": 64, "slices": 2})
    (op,) = GemmOp.schedule(a=a, b=b, c=c, tile_n=128)
    assert (op.tile_sizes["N"], op.config.get("slices")) == (128, None)


def test_the_estimate_stays_where_nothing_is_faster(operands: Operands) -> None:
    found = candidates(*operands)
    same = Tuning("p", "card", dict.fromkeys(found, 7.0), found[0])
    assert same.best == found[0]
    faster = tuning(operands, found[-1])
    assert faster.best == found[-1]
    assert "best" in str(faster).splitlines()[1]
    assert "estimated" in str(faster)


def test_the_cpu_has_no_times(operands: Operands) -> None:
    a, b, c = operands
    with pytest.raises(DeviceError, match="tensors are on the CPU"):
        tune(a, b, c)
    with pytest.raises(ScheduleError):
        tune(a, b[:, :-8], c)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures on a GPU")
def test_on_a_card(operands: Operands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CACHE_DIR.variable, str(tmp_path))
    gemm_op.tuned_choices.cache_clear()
    a, b, c = (x.cuda() for x in operands)
    found = tune(a, b, c)
    assert all(us > 0 for us in found.us.values())
    assert chosen((a, b, c)) == found.best
    gemm_op.tuned_choices.cache_clear()
