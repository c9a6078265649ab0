"""`linear` as a torch op: values, gradients, torch.compile."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.gemm import linear
from machete.megakernel.errors import DtypeError, ScheduleError, ShapeMismatchError

TOLERANCE = 5e-3
ACTIVATIONS = {"": lambda x: x, "silu": functional.silu, "relu": torch.relu}

pytestmark = pytest.mark.archs("sm_90a")  # what torch ops on CPU tensors are simulated for


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2, 30, 72), (5, 64), (64,), (3, 0, 64), (7, 61), (20, 0)])
def test_values(shape, activation, random, error) -> None:
    """Also without rows or columns, and with rows of a length that copies cannot step over."""
    x, weight, bias = random(*shape), random(40, shape[-1], scale=0.2), random(40, dtype=torch.float32)
    y = linear(x, weight, bias, activation)
    expected = ACTIVATIONS[activation](functional.linear(x.double(), weight.double(), bias.double()))
    assert y.shape == expected.shape
    assert y.dtype == x.dtype
    assert not y.numel() or error(y, expected) < TOLERANCE


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation, random, error) -> None:
    x, weight, bias, dy = random(2, 35, 72), random(48, 72, scale=0.2), random(48), random(2, 35, 48)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    linear(*leaves, activation).backward(dy)
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    ACTIVATIONS[activation](functional.linear(*exact)).backward(dy.double())
    for leaf, reference in zip(leaves, exact, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.bfloat16
        assert error(leaf.grad, reference.grad) < 2 * TOLERANCE


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 32, 16), (9, 24, 5), (9, 5, 24), (3, 32, 20), (8, 1, 16), (3, 1, 1)], ids=str
)
def test_gradients_of_any_extents(m, k, n, random, error) -> None:
    """Also where rows, or what is a transpose for the gradients, are not whole units of copies; dy is expanded."""
    x, weight = random(m, k).requires_grad_(), random(n, k).requires_grad_()
    linear(x, weight).sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    functional.linear(*exact).sum().backward()
    for leaf, reference in zip((x, weight), exact, strict=True):
        assert error(leaf.grad, reference.grad) < TOLERANCE


@pytest.mark.parametrize(("k", "transposed"), [(12, "x"), (12, "weight"), (16, "both"), (1, "x")])
def test_views(k, transposed, random, error) -> None:
    x = random(k, 9).t() if transposed in ("x", "both") else random(9, k)
    weight = random(k, 24).t() if transposed in ("weight", "both") else random(24, k)
    assert error(linear(x, weight), x.double() @ weight.double().T) < TOLERANCE


def test_the_op_with_an_activation_has_no_gradients_and_says_so_at_once(random, error) -> None:
    x, weight = random(8, 64), random(16, 64).requires_grad_()
    with pytest.raises(ScheduleError, match=r"no gradients with activation 'silu'"):
        torch.ops.machete.linear(x, weight, None, "silu")
    with torch.no_grad():
        y = torch.ops.machete.linear(x, weight, None, "silu")
    assert error(y, functional.silu(x.double() @ weight.detach().double().t())) < TOLERANCE


def test_only_the_gradients_that_are_asked_for(random) -> None:
    x, weight = random(8, 64), random(16, 64).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_compile(backend, random, error) -> None:
    x, weight = random(8, 64), random(16, 64, scale=0.2).requires_grad_()

    def model(x: torch.Tensor) -> torch.Tensor:
        return linear(x, weight, activation="silu") + 1

    y = torch.compile(model, backend=backend, fullgraph=True)(x)
    y.sum().backward()
    exact = weight.detach().double().requires_grad_()
    expected = functional.silu(x.double() @ exact.T) + 1
    expected.sum().backward()
    assert error(y, expected) < TOLERANCE
    assert error(weight.grad, exact.grad) < 2 * TOLERANCE


def test_op_checks_of_torch(random) -> None:
    """Schema, fake implementation and autograd registration, as `torch.library.opcheck` sees them."""
    x, weight = random(8, 64).requires_grad_(), random(16, 64).requires_grad_()
    torch.library.opcheck(torch.ops.machete.linear.default, (x, weight, None, ""))


def test_wrong_calls(random) -> None:
    with pytest.raises(ShapeMismatchError, match="last dim of x"):
        linear(random(8, 64), random(16, 72))
    with pytest.raises(DtypeError):
        linear(random(8, 64), random(16, 64, dtype=torch.float16))
