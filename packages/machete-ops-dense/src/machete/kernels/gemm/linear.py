"""`linear`: `torch.nn.functional.linear` as a `GemmOp`, with gradients, for eager code and torch.compile."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

from machete.megakernel import Fusion, RegisteredOp, ScheduledOp, register_op
from machete.megakernel.errors import ScheduleError, ShapeMismatchError

from .op import TMA_ALIGNMENT, GemmOp, is_transposed

#: The activations of `GemmOp` in torch, for when gradients need the values before them.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "relu": torch.relu,
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "") -> Tensor:
    """activation(x @ weight.T + bias), on the current stream.

    Args:
        x: (..., K), bfloat16 or float16.
        weight: (N, K), of the same type.
        bias: (N,), of any floating type, or None.
        activation: "silu", "sigmoid", "gelu" or "relu"; none if it is empty.

    Returns (..., N) in the type of x. It is `torch.ops.machete.linear` on the rows of x, which torch.compile can trace.
    Gradients are products of the same kind: dx = dy @ weight (`grad_input`), dweight = dy.T @ x (`grad_weight`).

    Raises `ShapeMismatchError` where the shapes do not fit, and what `GemmOp.schedule` raises.
    """
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeMismatchError(
            what=f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}",
            where="machete.kernels.gemm.linear",
            why="the last dim of x is the last of weight (N, K)",
            fix="pass weight as torch.nn.Linear has it",
        )
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    if activation in _ACTIVATIONS and needs_grad:
        y = _ACTIVATIONS[activation](_linear(rows, weight, bias, ""))
    else:
        y = _linear(rows, weight, bias, activation)
    return y.view(*x.shape[:-1], weight.shape[0])


def grad_input(dy: Tensor, weight: Tensor) -> Tensor:
    """dx (M, K) of `linear`, from dy (M, N) and weight (N, K)."""
    return _linear(dy, weight.t(), None, "")


def grad_weight(dy: Tensor, x: Tensor) -> Tensor:
    """dweight (N, K) of `linear`, from dy (M, N) and x (M, K)."""
    return _linear(dy.t(), x.t(), None, "")


@torch.library.custom_op("machete::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return x.new_empty((x.shape[0], weight.shape[0]))
    if x.shape[1] == 0:
        x, weight = (t.new_zeros((t.shape[0], 1)) for t in (x, weight))  # the sum of nothing
    return _product()(*_loadable(x, weight), bias, activation)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _save(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias, activation = inputs
    if activation and any(ctx.needs_input_grad):
        raise ScheduleError(
            what=f"torch.ops.machete.linear has no gradients with activation {activation!r}",
            where="torch.ops.machete.linear",
            why="they need the values before the activation, which the fused kernel does not keep",
            fix="machete.kernels.gemm.linear, which then applies it outside; or torch.no_grad()",
        )
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _gradients(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
    return (
        grad_input(dy, weight) if needs_x else None,
        grad_weight(dy, x) if needs_weight else None,
        dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype) if needs_bias else None,
        None,
    )


_linear.register_autograd(_gradients, setup_context=_save)


def _loadable(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both matrices as they are if their rows, or their columns, can be copied; else copies, with zeros behind rows."""
    as_they_are = [_steps_over(matrix) for matrix in (x, weight)]
    if all(as_they_are):
        return x, weight
    padding = -x.shape[1] % (TMA_ALIGNMENT // x.element_size())
    if padding:
        return functional.pad(x, (0, padding)), functional.pad(weight, (0, padding))
    return x if as_they_are[0] else x.contiguous(), weight if as_they_are[1] else weight.contiguous()


def _steps_over(matrix: Tensor) -> bool:
    """Whether copies can step from row to row, or for a view like `x.T` from column to column."""
    unit = TMA_ALIGNMENT // matrix.element_size()
    if matrix.data_ptr() % TMA_ALIGNMENT:
        return False
    across = 1 if is_transposed(matrix) else 0
    along = 1 - across
    adjacent = matrix.shape[along] == 1 or matrix.stride(along) == 1
    steps = matrix.stride(across) > 0 and matrix.stride(across) % unit == 0
    return adjacent and (matrix.shape[across] == 1 or steps)


@functools.cache
def _product() -> RegisteredOp:
    """The product of matrices that can be loaded as they are."""
    return register_op(
        "gemm_rows", _build, outputs={"y": lambda x, weight, **_: x.new_empty((x.shape[0], weight.shape[0]))}
    )


def _build(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, y: Tensor) -> Sequence[ScheduledOp]:
    from machete.kernels.fusions import Activation, Bias

    epilogue: list[Fusion] = [] if bias is None else [Bias(bias)]
    if activation:
        epilogue.append(Activation(activation))
    return GemmOp.schedule(a=x, b=weight, c=y, epilogue=epilogue)
