"""Activation functions on float32 values, by name."""

import cutlass.cute as cute
from cutlass import Float32

from machete.megakernel.errors import ScheduleError

LOG2_E = 1.4426950408889634


def sigmoid(x):
    """1 / (1 + exp(-x)); 0 and 1 at the infinities."""
    return cute.arch.rcp_approx(Float32(1.0) + cute.math.exp2(x * -LOG2_E, fastmath=True))


def silu(x):
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x):
    """x * Phi(x), with the error function."""
    return x * Float32(0.5) * (Float32(1.0) + cute.math.erf(x * Float32(0.7071067811865476)))


def relu(x):
    """max(x, 0); NaN stays NaN."""
    return cute.arch.fmax(x, Float32(0.0), nan=True)


ACTIVATIONS = {"silu": silu, "sigmoid": sigmoid, "gelu": gelu, "relu": relu}


def gated(name: str):
    """activation(gate) * up as a function of both, for the activation of this name."""
    activation = ACTIVATIONS[name]
    return lambda gate, up: activation(gate) * up


def check_activation(name: str, where: str) -> None:
    """Refuse a name that is none of `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        raise ScheduleError(
            what=f"unknown activation {name!r}",
            where=where,
            why="device code has a fixed set of activations",
            fix=f"use one of {', '.join(ACTIVATIONS)}",
        )
