"""Every epilogue of `GemmOp`, alone and composed, for one row (GEMV), for a few, and for tiles of many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.fusions import Activation, Bias, GluPair, ResidualAdd, RmsNormOnLoad, Scale
from machete.kernels.gemm import GemmOp
from machete.megakernel import Fusion, Megakernel
from machete.megakernel.errors import (
    ConfigError,
    DtypeError,
    OverlapError,
    ScheduleError,
    ShapeMismatchError,
    TargetError,
)

TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}
ROWS = {"Gemv": (1, 1), "FewRows": (3, 16), "tiles": (17, 150)}
N, K = 208, 192


class Operands:
    """The tensors that fusions read, for products of `m` rows."""

    def __init__(self, random: Callable[..., torch.Tensor], m: int, dtype: torch.dtype) -> None:
        self.bias, self.residual = random(N, dtype=torch.float32, scale=9.0), random(m, N, dtype=dtype, scale=9.0)
        self.column = random(m, 1, dtype=dtype, scale=9.0).expand(m, N)


Step = tuple[Callable[[Operands], Fusion], Callable[[torch.Tensor, Operands], torch.Tensor]]
STEPS: dict[str, Step] = {
    "bias": (lambda t: Bias(t.bias), lambda x, t: x + t.bias),
    "residual": (lambda t: ResidualAdd(t.residual), lambda x, t: x + t.residual),
    "expanded": (lambda t: ResidualAdd(t.column), lambda x, t: x + t.column),
    "scale": (lambda t: Scale(0.25), lambda x, t: 0.25 * x),
    "silu": (lambda t: Activation("silu"), lambda x, t: functional.silu(x)),
    "gelu": (lambda t: Activation("gelu"), lambda x, t: functional.gelu(x)),
    "relu": (lambda t: Activation("relu"), lambda x, t: x.relu()),
    "sigmoid": (lambda t: Activation("sigmoid"), lambda x, t: x.sigmoid()),
}
COMPOSED = [
    "bias relu scale residual",
    "residual scale relu bias",
    "scale scale gelu",
    "sigmoid bias silu bias expanded",
]
# Where wgmma and mma differ, every step alone; the code for few rows has no branch on the target, so there the composed
# steps, each step among them, run for all targets and single ones for the first.
CASES = [
    pytest.param(path, steps, arch, id=f"{arch}-{steps}-{path}")
    for arch in ("sm_90a", "sm_100a", "sm_120a")
    for steps in (*STEPS, *COMPOSED)
    for path in ROWS
    if path == "tiles" or steps in COMPOSED or arch == "sm_90a"
]
assert {step for steps in COMPOSED for step in steps.split()} == set(STEPS)


@pytest.mark.parametrize(("path", "steps", "arch"), CASES, scope="session")
def test_against_float64(path, steps, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(len(steps))
    dtype = torch.float16 if steps == "bias relu scale residual" else torch.bfloat16
    m = ROWS[path][len(steps) % 2]
    a, b, c = random(m, K, dtype=dtype, scale=0.3), random(N, K, dtype=dtype), poisoned(m, N, dtype=dtype)
    operands = Operands(random, m, dtype)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, epilogue=[STEPS[step][0](operands) for step in steps.split()]))
    assert kind_names(kernel)[0].startswith(("GemvGemm", "FewRowsGemm")) == (path != "tiles")
    assert kind_names(kernel)[0].startswith(path) == (path != "tiles")
    expected = a.double() @ b.double().T
    for step in steps.split():
        expected = STEPS[step][1](expected, operands)
    assert error(c, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(("m", "n", "tile_n"), [(130, 71, 64), (127, 257, 256), (64, 8, 128)])
def test_ragged_tiles(m, n, tile_n, run, random, poisoned, error) -> None:
    """Edges in the middle of pairs and blocks; operands are strided views with nothing readable behind them."""
    a, b, c = random(m, 72), random(n, 72), poisoned(m, n, dtype=torch.float32)
    bias, residual = random(2 * n)[::2], random(n, m).T
    run(GemmOp.schedule(a=a, b=b, c=c, epilogue=[Bias(bias), ResidualAdd(residual)], tile_n=tile_n))
    assert error(c, a.double() @ b.double().T + bias.double() + residual.double()) < TOLERANCE[torch.float32]


def test_batched(run, random, poisoned, error) -> None:
    a, b, c, residual = random(3, 70, 64), random(3, 40, 64), poisoned(3, 70, 40), random(3, 70, 40)
    run(GemmOp.schedule(a=a, b=b, c=c, epilogue=[ResidualAdd(residual)]))
    assert error(c, a.double() @ b.double().mT + residual.double()) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("m", [1, 2, 140])
def test_residual_in_place(m, run, random, error, monkeypatch) -> None:
    """The result takes the place of the residual, twice in a row."""
    if m == 140:
        # Threads beyond the last row fetch an element of that row, that another warp overwrites, and discard it: a race
        # by the model, and harmless. Everything else about this case is checked.
        monkeypatch.setenv("MACHETE_SIM_CHECK", "memory")
    x, w = random(m, 128), random(128, 128, scale=0.1)
    a = random(m, 128)
    expected = x.double() + 2 * (a.double() @ w.double().T)
    op = GemmOp.schedule(a=a, b=w, c=x, epilogue=[ResidualAdd(x)])
    run(op + op)
    assert error(x, expected) < 2 * TOLERANCE[torch.bfloat16]


def test_nan_rows_of_the_residual(run, random, poisoned) -> None:
    a, b, c, residual = random(140, 64), random(90, 64), poisoned(140, 90), random(140, 90)
    residual[131, 89] = float("nan")
    run(GemmOp.schedule(a=a, b=b, c=c, epilogue=[ResidualAdd(residual), Activation("relu")]))
    assert torch.equal(c.isnan(), residual.isnan())


def test_one_kernel_with_and_without(run, random, poisoned, error) -> None:
    a, b, bias = random(64, 64), random(64, 64), random(64)
    plain, biased = poisoned(64, 64), poisoned(64, 64)
    kernel = run(GemmOp.schedule(a=a, b=b, c=plain) + GemmOp.schedule(a=a, b=b, c=biased, epilogue=[Bias(bias)]))
    assert len(kernel.plan.kinds) == 2
    assert error(plain, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]
    assert error(biased, a.double() @ b.double().T + bias.double()) < TOLERANCE[torch.bfloat16]


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


WRONG: dict[str, tuple[type[Exception], Callable[[], object], str]] = {
    "activation": (ScheduleError, lambda: Activation("swish"), "silu, sigmoid, gelu, relu"),
    "no fusion": (ScheduleError, lambda: product(epilogue=[torch.relu]), "derive a class"),
    "bias too long": (ShapeMismatchError, lambda: product(epilogue=[Bias(half(9))]), "dim N"),
    "residual of another shape": (ShapeMismatchError, lambda: product(epilogue=[ResidualAdd(half(7, 8))]), "dim M"),
    "complex bias": (DtypeError, lambda: product(epilogue=[Bias(half(8).to(torch.complex64))]), "device code"),
    "residual shifted": (OverlapError, lambda: shifted(), "overlap"),
}


def product(m: int = 6, **arguments: object) -> object:
    return GemmOp.schedule(**{"a": half(m, 64), "b": half(8, 64), "c": half(m, 8), **arguments})


def shifted() -> object:
    """One row's result would overwrite the next row's residual."""
    memory = half(7, 8)
    return product(c=memory[:6], epilogue=[ResidualAdd(memory[1:])])


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case: str) -> None:
    kind, call, text = WRONG[case]
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize(
    ("slot", "fusion"),
    [("prologue", RmsNormOnLoad(half(64))), ("combine", GluPair(half(8, 64)))],
    ids=["prologue", "combine"],
)
def test_tiles_refuse_what_needs_whole_rows(slot, fusion, arch) -> None:
    with pytest.raises(TargetError, match="2 to 16 rows"):
        Megakernel(product(m=17, **{slot: fusion}), arch=arch)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, True, "x", 10**400])
def test_numbers_that_make_no_sense(wrong) -> None:
    weight = torch.ones(8)
    with pytest.raises(ConfigError, match="eps="):
        RmsNormOnLoad(weight, wrong)
    if wrong != -1.0:
        with pytest.raises(ConfigError, match="alpha="):
            Scale(wrong)
