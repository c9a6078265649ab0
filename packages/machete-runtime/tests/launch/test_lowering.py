"""One list of ops in three lowerings, and what comparing them says."""

from __future__ import annotations

import pytest
import torch

import small_ops
from machete.megakernel import Comparison, Megakernel, compare, lower, temporary
from machete.megakernel.errors import PlanError
from machete.megakernel.launch.comparison import Measured, _difference
from machete.megakernel.launch.lowering import LOWERINGS, Standalone


def graph_of_ops(device: str) -> tuple[list, dict[str, torch.Tensor]]:
    """total += 2 x + z, through temporaries that share memory, compute-only and streaming ops."""
    x, z, total = (torch.randint(-8, 8, (2000,), device=device).float() for _ in range(3))
    twice, both = (temporary((2000,), torch.float32, device) for _ in range(2))
    ops = small_ops.Scale.schedule(x=x, y=twice, factor=2.0)
    ops += small_ops.StreamAdd.schedule(x=twice, y=z, z=both)
    ops += small_ops.Accumulate.schedule(x=both, y=total)
    return ops, {"x": x, "z": z, "total": total}


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_lowering_computes_the_same(lowering: str, arch: str, device: str) -> None:
    ops, tensors = graph_of_ops(device)
    expected = tensors["total"]
    lowered = lower(ops, lowering, arch=arch)
    assert (lowered.name, lowered.kernels) == (lowering, 1 if lowering == "persistent" else 3)
    for _ in range(2):
        expected = expected + 2 * tensors["x"] + tensors["z"]
        lowered.run()
        assert torch.equal(tensors["total"], expected)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_temporaries_that_begin_with_zeros(lowering: str, anywhere: str) -> None:
    begins, total = temporary((2000,), torch.float32, anywhere, zeroed=True), torch.ones(2000, device=anywhere)
    ops = small_ops.Accumulate.schedule(x=total, y=begins) + small_ops.Scale.schedule(x=begins, y=total, factor=1.0)
    filler = [torch.full((1 << 14,), 7.0, device=anywhere) for _ in range(8)]
    del filler  # what comes after may get memory that is not zero
    lower(ops, lowering).run()
    assert (total == 1).all()


@pytest.mark.parametrize("value", [float("nan"), 1.0])
def test_nan_that_only_one_computes_is_a_difference(value: float) -> None:
    result, reference = torch.ones(4), torch.ones(4)
    result[1] = value
    assert _difference([result], [reference]) == (0.0 if value == 1 else float("inf"))
    assert _difference([result], [result.clone()]) == 0.0


def test_at_least_one_sample(anywhere: str) -> None:
    with pytest.raises(PlanError, match="samples=0"):
        compare(graph_of_ops(anywhere)[0], samples=0)


def test_compare(anywhere: str) -> None:
    ops, tensors = graph_of_ops(anywhere)
    before = tensors["total"].clone()
    comparison = compare(ops, samples=5)
    assert torch.equal(tensors["total"], before)
    assert [(row.lowering, row.kernels, row.difference) for row in comparison.rows] == [
        ("persistent", 1, 0.0),
        ("graph", 3, 0.0),
        ("standalone", 3, 0.0),
    ]
    assert "persistent" in str(comparison)
    if anywhere == "cpu":
        assert comparison.fastest is None
        assert comparison.verdict.startswith("all compute the same; which is faster only a GPU can tell")
    else:
        assert comparison.fastest in LOWERINGS
        assert all(row.us is not None and row.us > 0 for row in comparison.rows)


def test_compare_tells_when_results_differ(anywhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that leaves the last kernel out."""
    ops, tensors = graph_of_ops(anywhere)
    tensors["total"].fill_(1.0)

    def run(self: Standalone, *, sync: bool = True) -> None:
        for single in self.singles[:-1]:
            single.run()

    monkeypatch.setattr(Standalone, "run", run)
    comparison = compare(ops, samples=2)
    assert comparison["standalone"].difference > 0.1
    assert comparison["persistent"].difference == 0.0
    assert "results differ by at most" in comparison.verdict
    assert torch.equal(tensors["total"], torch.ones_like(tensors["total"]))


def row(lowering: str, *samples: float, difference: float = 0.0) -> Measured:
    return Measured(lowering, 1 if lowering == "persistent" else 9, difference, samples)


def test_the_verdict_names_the_winner_and_by_how_much() -> None:
    comparison = Comparison(
        "9 ops on a card",
        (row("persistent", 10, 10, 10, 10), row("graph", 15, 15, 15, 15), row("standalone", 40, 40, 40, 40)),
    )
    assert comparison.fastest == "persistent"
    assert comparison.verdict == (
        "persistent wins: 1.50 times as fast as graph and 4.00 times as fast as standalone; all compute the same"
    )
    lines = [line.split() for line in str(comparison).splitlines() if "graph" in line and "wins" not in line]
    assert [word for word in lines[0] if word[0].isalnum()] == ["graph", "9", "15.0", "0.0", "1.50", "0.0e+00"]


def test_what_is_within_the_spread_does_not_win() -> None:
    comparison = Comparison(
        "9 ops on a card",
        (
            row("persistent", 9, 11, 13, 15),
            row("graph", 8, 10, 12, 14),
            row("standalone", 90, 90, 90, 90, difference=1e-3),
        ),
    )
    assert comparison.verdict == (
        "graph wins: as fast, within the spread, as persistent and 8.18 times as fast as standalone; "
        "results differ by at most 1.0e-03"
    )


def test_kernels_wait_for_the_one_ahead_on_the_device() -> None:
    """All of them do; only those of a graph may start beside it one CTA at a time."""
    ops, _ = graph_of_ops("cpu")
    for lowering, programmatic in (("graph", True), ("standalone", False)):
        for kernel in lower(ops, lowering).singles:  # type: ignore[attr-defined]
            artefact = kernel.compile()
            assert artefact.programmatic is programmatic
            assert "griddepcontrol.wait" in artefact.ptx
            assert "griddepcontrol.launch_dependents" in artefact.ptx


def test_programmatic_kernels_of_dependent_ops_are_refused() -> None:
    ops, _ = graph_of_ops("cpu")
    with pytest.raises(PlanError, match="of the 3 ops some depend on others"):
        Megakernel(ops, programmatic=True)


def test_an_unknown_lowering() -> None:
    ops, _ = graph_of_ops("cpu")
    with pytest.raises(PlanError, match=r"lowering 'graphs' \(did you mean `graph`\?\)"):
        lower(ops, "graphs")
