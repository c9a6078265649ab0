"""Op lists with derivatives: against finite differences and torch's own, eager, in place and under torch.compile."""

from __future__ import annotations

import itertools
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from torch import Tensor

import small_ops
from machete.megakernel import DifferentiableOp, Op, differentiable, temporary
from machete.megakernel.errors import MissingTensorError, UnknownArgumentError

_numbers = itertools.count()  # an op's name is taken for as long as the process lives


class Mul(Op):
    """y = a * b."""

    reads = {"a": (None, ("N",)), "b": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, a, b, y):
        return [cls._schedule_single(tile_sizes={"N": 256}, a=a, b=b, y=y)]

    @cute.jit
    def compute(self, tile_N, a, b, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = a[n] * b[n]


def multiply() -> DifferentiableOp:
    """y = x * w; both inputs are saved."""

    def forward(x: Tensor, w: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return Mul.schedule(a=x, b=w, y=y)

    def backward(grad_y: Tensor, x: Tensor, w: Tensor, grad_x: Tensor, grad_w: Tensor):  # type: ignore[no-untyped-def]
        return Mul.schedule(a=grad_y, b=w, y=grad_x) + Mul.schedule(a=grad_y, b=x, y=grad_w)

    outputs = {"y": lambda x, w: torch.empty_like(x)}
    return differentiable(f"multiply_{next(_numbers)}", forward, backward, outputs=outputs)


def cube() -> DifferentiableOp:
    """y = factor x³; x² is an output that only the backward list sees; the factor is a runtime scalar of both."""

    def forward(x: Tensor, y: Tensor, square: Tensor, factor: float = 1.0):  # type: ignore[no-untyped-def]
        third = temporary(x.shape, x.dtype, x.device)
        ops = Mul.schedule(a=x, b=x, y=square) + Mul.schedule(a=square, b=x, y=third)
        return ops + small_ops.Scale.schedule(x=third, y=y, factor=factor)

    def backward(grad_y: Tensor, square: Tensor, grad_x: Tensor, factor: float):  # type: ignore[no-untyped-def]
        part, whole = (temporary(square.shape, square.dtype, square.device) for _ in range(2))
        ops = Mul.schedule(a=grad_y, b=square, y=part) + Scale3.schedule(x=part, y=whole)
        return ops + small_ops.Scale.schedule(x=whole, y=grad_x, factor=factor)

    outputs = {"y": lambda x, factor: torch.empty_like(x), "square": lambda x, factor: torch.empty_like(x)}
    return differentiable(
        f"cube_{next(_numbers)}", forward, backward, outputs=outputs, saved=["square"], scalars=["factor"]
    )


class Scale3(Op):
    """y = 3 x."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"N": 256}, x=x, y=y)]

    @cute.jit
    def compute(self, tile_N, x, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = x[n] * 3.0


def accumulate() -> DifferentiableOp:
    """total += x * w, in place: the gradient of what total was is that of what it is."""

    def forward(total: Tensor, x: Tensor, w: Tensor):  # type: ignore[no-untyped-def]
        product = temporary(x.shape, x.dtype, x.device)
        return Mul.schedule(a=x, b=w, y=product) + small_ops.Accumulate.schedule(x=product, y=total)

    def backward(grad_total: Tensor, x: Tensor, w: Tensor, grad_x: Tensor, grad_w: Tensor):  # type: ignore[no-untyped-def]
        return Mul.schedule(a=grad_total, b=w, y=grad_x) + Mul.schedule(a=grad_total, b=x, y=grad_w)

    return differentiable(f"accumulate_{next(_numbers)}", forward, backward, mutates_args=["total"])


def multiply_in_place() -> DifferentiableOp:
    """x *= w: the gradient of what x was is another one."""

    def forward(x: Tensor, w: Tensor):  # type: ignore[no-untyped-def]
        return Mul.schedule(a=x, b=w, y=x)

    def backward(grad_x: Tensor, w: Tensor, grad_x_before: Tensor):  # type: ignore[no-untyped-def]
        return Mul.schedule(a=grad_x, b=w, y=grad_x_before)

    return differentiable(f"multiply_in_place_{next(_numbers)}", forward, backward, mutates_args=["x"])


def doubles(count: int, device: str, size: int = 6) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size, dtype=torch.float64, device=device, requires_grad=True) for _ in range(count)]


def test_saved_inputs(anywhere: str) -> None:
    torch.autograd.gradcheck(multiply(), doubles(2, anywhere))


def test_an_output_that_only_the_backward_list_reads(anywhere: str) -> None:
    op = cube()
    (x,) = doubles(1, anywhere)
    assert torch.allclose(op(x, 2.0), 2.0 * x**3)
    torch.autograd.gradcheck(lambda x: op(x, factor=-0.5), (x,))
    torch.autograd.gradcheck(op, (x,))  # the default


@pytest.mark.parametrize("make", [accumulate, multiply_in_place])
def test_in_place(make: Any, anywhere: str) -> None:
    op = make()
    inputs = doubles(3 if make is accumulate else 2, anywhere)
    if make is multiply_in_place:
        inputs[1].requires_grad_(False)  # it has no gradient for the factor

    def function(first: Tensor, *rest: Tensor) -> Tensor:
        changed = first * 1.0  # what is changed in place is no leaf
        assert op(changed, *rest) is None
        return changed * changed

    torch.autograd.gradcheck(function, inputs)


def test_in_place_on_a_leaf_is_refused_as_torch_does(anywhere: str) -> None:
    x, w = doubles(2, anywhere)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        multiply_in_place()(x, w.detach())


def test_a_gradient_that_nobody_computes_is_no_zero(anywhere: str) -> None:
    x, w = doubles(2, anywhere)
    with pytest.raises(UnknownArgumentError, match="`w` requires a gradient, and the backward list does not write one"):
        multiply_in_place()(x * 1.0, w)


def test_what_was_saved_must_not_change(anywhere: str) -> None:
    op = multiply()
    x, w = doubles(2, anywhere)
    factor = w * 1.0
    y = op(x, factor)
    factor.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_only_what_is_needed(anywhere: str) -> None:
    op = multiply()
    x, w = doubles(2, anywhere)
    with torch.no_grad():
        assert not op(x, w).requires_grad
    (gradient,) = torch.autograd.grad(op(x, w.detach()).sum(), x)
    assert torch.equal(gradient, w)


def test_gradients_of_any_layout(anywhere: str) -> None:
    """That of a sum is one number, expanded; that of a slice has gaps."""
    op = multiply()
    x, w = doubles(2, anywhere, size=8)
    op(x, w).sum().backward()
    assert torch.equal(x.grad, w)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(op(x, w)[::2].square().sum(), x)
    expected = torch.where(torch.arange(8, device=anywhere) % 2 == 0, 2 * x * w * w, 0)
    assert torch.allclose(gradient, expected)


def test_second_derivatives_are_refused(anywhere: str) -> None:
    x, w = doubles(2, anywhere)
    (gradient,) = torch.autograd.grad(multiply()(x, w).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(gradient.sum(), w)


def test_under_torch_compile(anywhere: str) -> None:
    """One graph, forward and backward, in-place changes included."""
    product, power, in_place = multiply(), cube(), accumulate()

    def function(x: Tensor, w: Tensor) -> Tensor:
        total = power(x, 2.0) + 1.0
        in_place(total, x, w)
        return product(total, w).sin()

    inputs = doubles(2, anywhere)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected = ((2 * inputs[0] ** 3 + 1.0 + inputs[0] * inputs[1]) * inputs[1]).sin()
    result = compiled(*inputs)
    assert torch.allclose(result, expected)
    gradients = torch.autograd.grad(result.sum(), inputs)
    for gradient, reference in zip(gradients, torch.autograd.grad(expected.sum(), inputs), strict=True):
        assert torch.allclose(gradient, reference)


def test_in_a_module(anywhere: str) -> None:
    """Training steps with a machete op in the middle go as torch's own do."""
    op = multiply()

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(6, dtype=torch.float64, device=anywhere))

        def forward(self, x: Tensor) -> Tensor:
            return op(x, self.weight)

    (x,) = doubles(1, anywhere)
    model, reference = Gate(), torch.ones(6, dtype=torch.float64, device=anywhere, requires_grad=True)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD([reference], 0.1)]
    for _ in range(3):
        for optimizer, y in zip(optimizers, (model(x.detach()), x.detach() * reference), strict=True):
            optimizer.zero_grad()
            (y - 1).square().sum().backward()
            optimizer.step()
    assert torch.allclose(model.weight, reference)


@pytest.mark.parametrize(
    ("args", "names", "error", "message"),
    [
        (2, ["z"], UnknownArgumentError, "no argument `z`"),
        (1, ["w", "ww"], UnknownArgumentError, r"no argument `ww` \(did you mean `w`\?\)"),
        (2, ["w"], UnknownArgumentError, "`w` is passed twice"),
        (3, [], UnknownArgumentError, "3 arguments, 2 expected"),
        (1, [], MissingTensorError, "w not passed"),
        (0, ["w"], MissingTensorError, "x not passed"),
    ],
)
def test_wrong_arguments(args: int, names: list[str], error: type, message: str) -> None:
    op = multiply()
    with pytest.raises(error, match=message):
        op(*(torch.ones(4) for _ in range(args)), **{name: torch.ones(4) for name in names})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"grad_z": Tensor, "grad_x": Tensor}, r"`grad_z` of backward stands for nothing \(did you mean `grad_.`\?\)"),
        ({"grad_y": Tensor}, "backward writes no gradient"),
        ({"grad_y": Tensor, "grad_x": Tensor, "other": Tensor}, "`other` of backward stands for nothing"),
    ],
)
def test_parameters_that_mean_nothing(parameters: dict[str, type], message: str) -> None:
    import inspect

    def forward(x: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        return Scale3.schedule(x=x, y=y)

    def backward(**given: Tensor):  # type: ignore[no-untyped-def]
        raise AssertionError("it is only looked at")

    backward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in parameters.items()
        ]
    )
    backward.__qualname__ = "backward"
    with pytest.raises(UnknownArgumentError, match=message):
        differentiable(f"wrong_{next(_numbers)}", forward, backward, outputs={"y": lambda x: torch.empty_like(x)})
