"""The conformance suite: an op that fits passes it, and each misfit is found and named."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch

from machete.megakernel import Op, ScheduledOp
from machete.megakernel.abi.version import ABI
from machete.megakernel.conformance import Case, Conformance
from machete.megakernel.conformance.workload import Workload, memory, poison, relative_error
from machete.megakernel.registry import GROUP

pytest_plugins = ["pytester"]

Install = Callable[..., Path]

ARCH = "sm_90a"
FITTING = f"machete-runtime>={ABI[0]}.{ABI[1]},<{ABI[0] + 1}"


class Tiny(Op):
    """y = 2 x, and z += x in place."""

    reads = {"x": (None, ("N",)), "z": (None, ("N",))}
    writes = {"y": (None, ("N",)), "z": (None, ("N",))}
    tile = ("N",)
    targets = (ARCH,)

    @classmethod
    def schedule(cls, *, x, y, z):
        return [cls._schedule_single(tile_sizes={"N": 256}, x=x, y=y, z=z)]

    @cute.jit
    def compute(self, tile_N, x, y, z):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = x[n] * 2.0
                z[n] = z[n] + x[n]


class LeavesOneOut(Tiny):
    """Forgets the last element."""

    @cute.jit
    def compute(self, tile_N, x, y, z):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N - 1:
                y[n] = x[n] * 2.0
                z[n] = z[n] + x[n]


class ReadsItsOutput(Tiny):
    """Needs y to hold numbers already."""

    @cute.jit
    def compute(self, tile_N, x, y, z):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = y[n] * 0.0 + x[n] * 2.0
                z[n] = z[n] + x[n]


class Positional(Tiny):
    """`schedule` takes its tensors by position."""

    @classmethod
    def schedule(cls, x, y, z):
        return super().schedule(x=x, y=y, z=z)


class LowersAnything(Tiny):
    """Claims one target, and accepts every one."""

    @classmethod
    def lower(cls, target, op):
        return op


def double_and_add(x: torch.Tensor, z: torch.Tensor) -> Mapping[str, torch.Tensor]:
    return {"y": 2 * x, "z": z + x}


def tiny(op: type[Op] = Tiny, reference: Callable[..., Any] = double_and_add, tolerance: float = 1e-6) -> Case:
    """A case whose output y is a strided view."""

    def make(device: str) -> tuple[list[ScheduledOp], dict[str, torch.Tensor]]:
        x, z = torch.randn(2, 700, device=device)
        y = (2 * x).repeat_interleave(2)[::2]  # right from the start, unless it is poisoned
        return op.schedule(x=x, y=y, z=z), {"x": x, "y": y, "z": z}

    return Case(op, make, reference, tolerance)


def run(test: str, case: Case) -> None:
    """One test of the suite, for the one target that the ops here claim."""
    properties = [lambda name, value: None] if test not in ("definition", "is_announced", "plans") else []
    getattr(Conformance(), f"test_{test}")(case, ARCH, *properties)


@pytest.fixture
def announce(install: Install, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution that announces `Tiny`, as the class of a module `tiny_ops`."""

    def write(source: str = "tiny_ops:Tiny", requires: str = FITTING) -> None:
        module = ModuleType("tiny_ops")
        module.Tiny, module.Other = Tiny, 3  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tiny_ops", module)
        install("tiny-ops", requires=[requires], entry_points={GROUP: {"tiny": source}})

    return write


def test_the_definition() -> None:
    run("definition", tiny())
    with pytest.raises(AssertionError, match=r"`x` of Positional\.schedule is not keyword-only"):
        run("definition", tiny(Positional))


def test_the_announcement(announce: Callable[..., None]) -> None:
    announce()
    run("is_announced", tiny())


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"source": "tiny_ops:Other"}, "no installed distribution announces .*Tiny"),
        (
            {"requires": f"machete-runtime>={ABI[0]}.{ABI[1] - 1},<{ABI[0] + 1}"},
            rf"Tiny needs ABI \({ABI[0]}, {ABI[1]}\), but tiny-ops asks for \({ABI[0]}, {ABI[1] - 1}\) only",
        ),
    ],
    ids=["another class", "understated ABI"],
)
def test_a_wrong_announcement(announce: Callable[..., None], package: dict[str, str], message: str) -> None:
    announce(**package)
    with pytest.raises(AssertionError, match=message):
        run("is_announced", tiny())


def test_a_rejected_package_is_shown_with_the_reason(
    announce: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tiny, "__module__", "tiny_ops.scale")
    announce(requires=f"machete-runtime>={ABI[0] + 1}.0")
    with pytest.raises(AssertionError, match=rf"rejected: .*tiny: tiny-ops needs Op ABI {ABI[0] + 1}\.0"):
        run("is_announced", tiny())


def test_the_plan() -> None:
    run("plans", tiny())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run("plans", tiny(LowersAnything))


def test_make_has_to_schedule_the_op_and_name_its_outputs() -> None:
    x, y, z = torch.zeros(3, 8)
    ops = Tiny.schedule(x=x, y=y, z=z)
    with pytest.raises(AssertionError, match="make schedules no LeavesOneOut"):
        Workload(Case(LeavesOneOut, lambda device: (ops, {"y": y, "z": z}), double_and_add, 0.0), "cpu")
    with pytest.raises(AssertionError, match="`schedule` returns ScheduledOps, but there is 3"):
        Workload(Case(Tiny, lambda device: ([3], {}), double_and_add, 0.0), "cpu")  # type: ignore[list-item,return-value]
    with pytest.raises(AssertionError, match="an op writes `y`, which is none of the tensors that make returns: z"):
        Workload(Case(Tiny, lambda device: (ops, {"z": z}), double_and_add, 0.0), "cpu")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda x, w: {}, r"the reference takes \['w'\]; make returns \['x', 'y', 'z'\]"),
        (lambda x: {"y": 2 * x}, r"the reference returns \['y'\], but the ops write \['y', 'z'\]"),
        (lambda x: {"y": x[:1], "z": x}, r"`y` has shape \(700,\), its reference \(1,\)"),
    ],
    ids=["unknown parameter", "an output is missing", "another shape"],
)
def test_a_wrong_reference(reference: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Workload(tiny(reference=reference), "cpu").expected()


def test_what_is_restored_and_what_is_poisoned() -> None:
    work = Workload(tiny(), "cpu")
    x, y, z = (work.tensors[name] for name in "xyz")
    before = z.clone()
    z.zero_()
    work.reset()
    assert torch.equal(z, before), "updated in place: its contents are input"
    assert y.isnan().all()
    expected = work.expected(times=2)
    torch.testing.assert_close(expected["z"], before.double() + 2 * x.double(), rtol=1e-6, atol=1e-6)
    assert expected["y"].dtype is torch.float64
    assert work.outputs == ["y", "z"]


def test_what_a_graph_makes_for_itself_is_no_input() -> None:
    x, y, z, w, v = torch.ones(5, 8)
    ops = [*Tiny.schedule(x=x, y=y, z=z), *Tiny.schedule(x=y, y=w, z=v)]
    work = Workload(Case(Tiny, lambda device: (ops, {"x": x, "z": z, "y": y, "w": w, "v": v}), dict, 0.0), "cpu")
    assert [id(tensor) for tensor in work.inputs] == [id(x), id(z), id(v)]
    assert [id(tensor) for tensor in work.results] == [id(y), id(w)]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_poison_is_not_a_number(dtype: torch.dtype) -> None:
    assert poison(torch.zeros(3, 2, dtype=dtype).T).float().isnan().all()
    assert poison(torch.zeros((), dtype=dtype)).float().isnan()


def test_relative_error() -> None:
    assert relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert relative_error(torch.tensor([3.0]), torch.zeros(1)) == 3.0
    assert relative_error(torch.zeros(0), torch.zeros(0)) == 0.0
    assert not relative_error(torch.tensor([float("nan")]), torch.ones(1)) <= 1.0


def test_memory_is_what_lies_between_the_first_element_and_the_last() -> None:
    base = torch.arange(24, dtype=torch.int16)
    assert memory(base.reshape(4, 6)[1:3, 1:4]).tolist() == list(range(7, 16))
    assert memory(torch.tensor(True)).tolist() == [1]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (tiny(reference=lambda x, z: {"y": 2.5 * x, "z": z + x}), "`y` after the first run: relative error 0.2, "),
        (tiny(LeavesOneOut), "`y` after the first run: relative error nan, allowed 1e-06"),
        (tiny(ReadsItsOutput), "`y` after the first run: relative error nan, allowed 1e-06"),
    ],
    ids=["wrong values", "an element left out", "reads its output"],
)
def test_wrong_numbers(case: Case, message: str) -> None:
    pytest.importorskip("machete.sim")
    with pytest.raises(AssertionError, match=message):
        run("matches_the_reference", case)


def test_a_table_without_cases_tests_nothing_and_says_so() -> None:
    with pytest.raises(TypeError, match="nothing would be tested"):

        class TestEmpty(Conformance):
            cases: list[Case] = []


def in_a_process(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, site: Path, test: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    # The one plugin that is tested, whether or not the runtime is installed with its entry points.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_tiny=test)
    return pytester.runpytest_subprocess("-p", "machete.megakernel.conformance", "-p", "no:cacheprovider", "-v")


def test_an_op_package_runs_the_suite(
    install: Install, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("machete.sim")
    site = install("tiny-ops", requires=[FITTING], entry_points={GROUP: {"tiny": "tiny_ops:Tiny"}})
    (site / "tiny_ops.py").write_text(Path(__file__).read_text().partition("\n\ndef run(")[0])
    result = in_a_process(
        pytester,
        monkeypatch,
        site,
        """
        from machete.megakernel.conformance import Conformance
        from tiny_ops import tiny

        class TestTiny(Conformance):
            cases = [tiny()]
        """,
    )
    result.assert_outcomes(passed=6)
    for test in ("definition", "is_announced", "plans", "matches_the_reference", "twice_in_one_kernel"):
        result.stdout.fnmatch_lines([f"*::TestTiny::test_{test}?Tiny-{ARCH}? PASSED*"])
    result.stdout.fnmatch_lines([f"machete conformance: {ARCH} on *: 4 launches"])


def test_the_plugin_costs_programs_that_do_not_use_it_nothing(
    install: Install, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = """
    def test_modules():
        import sys
        assert "machete.megakernel.conformance" in sys.modules
        assert not {"torch", "cutlass", "cuda", "numpy", "networkx"} & set(sys.modules)
    """
    result = in_a_process(pytester, monkeypatch, install("unrelated"), test)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*machete conformance*")
