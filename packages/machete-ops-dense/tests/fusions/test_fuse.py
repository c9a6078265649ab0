"""`fuse`: which lists of ops it rewrites, and that the rewritten list computes the same.

Lists are run by a small reference in torch: it reads and writes the memory that scheduled ops name, one op after the
other, so that hundreds of lists are compared in seconds. The integration test of the decode chain runs fused lists as
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st

from machete.kernels.elementwise import AddOp
from machete.kernels.fusions import Bias, GluPair, ResidualAdd, RmsNormOnLoad, fuse
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import ScheduledOp

BF16 = torch.bfloat16
EPS = 1e-5


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


# ---------------------------------------------------------------------------------------------- the reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gemm(op: ScheduledOp, t: dict[str, torch.Tensor]) -> torch.Tensor:
    a = t["a"]
    kinds = {slot: kind for slot, _, kind in op.op.fusion_types}
    if "prologue" in kinds:
        assert kinds["prologue"] is RmsNormOnLoad
        a = rms_norm(a, t["prologue0_weight"], op.config["prologue0.eps"])
    c = a @ t["b"].mT
    if "combine" in kinds:
        assert kinds["combine"] is GluPair
        c = functional.silu(c) * (a @ t["combine0_up"].mT)
    for slot, position, kind in op.op.fusion_types:
        if slot == "epilogue":
            assert kind in (ResidualAdd, Bias)
            c = c + t[f"epilogue{position}_{'residual' if kind is ResidualAdd else 'bias'}"]
    return c


RUN: dict[type, tuple[str, Callable[[ScheduledOp, dict[str, torch.Tensor]], torch.Tensor]]] = {
    RMSNormOp: ("y", lambda op, t: rms_norm(t["x"], t["weight"], op.config["eps"])),
    GluOp: ("y", lambda op, t: functional.silu(t["gate"]) * t["up"]),
    AddOp: ("y", lambda op, t: t["a"] + t["b"]),
    GemmOp: ("c", gemm),
}


def execute(ops: list[ScheduledOp]) -> None:
    for op in ops:
        result, function = next(entry for kind, entry in RUN.items() if issubclass(op.op, kind))
        values = {name: op.tensors[name].double() for name in op.op.declaration.reads}
        op.tensors[result].copy_(function(op, values))


def names(ops: list[ScheduledOp]) -> list[str]:
    return [op.op.__name__ for op in ops]


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return ((out.double() - expected.double()).norm() / (expected.double().norm() + 1e-30)).item()


# ---------------------------------------------------------------------------------------------- examples


class Layer:
    """Tensors of one layer: norm, gate_up, GLU, down, residual."""

    def __init__(self, m: int = 1, d: int = 64, f: int = 128) -> None:
        torch.manual_seed(0)
        self.x, self.norm, self.y = random(m, d), random(d), random(m, d)
        self.gate_up, self.both, self.h = random(2 * f, d), random(m, 2 * f), random(m, f)
        self.gate, self.up = self.both[:, :f], self.both[:, f:]
        self.down, self.z, self.out = random(d, f), random(m, d), random(m, d)

    def ops(self) -> list[ScheduledOp]:
        return (
            RMSNormOp.schedule(x=self.x, weight=self.norm, y=self.y, eps=EPS)
            + GemmOp.schedule(a=self.y, b=self.gate_up, c=self.both)
            + GluOp.schedule(gate=self.gate, up=self.up, y=self.h)
            + GemmOp.schedule(a=self.h, b=self.down, c=self.z)
            + AddOp.schedule(a=self.x, b=self.z, y=self.out)
        )

    @property
    def temporaries(self) -> list[torch.Tensor]:
        return [self.y, self.both, self.z]


GATE_UP, DOWN = "GemmOp_RmsNormOnLoad_GluPair", "GemmOp_ResidualAdd"


@pytest.mark.parametrize("m", [1, 4, 16])
def test_a_layer_becomes_two_ops(m: int) -> None:
    layer = Layer(m)
    ops = fuse(layer.ops(), temporaries=layer.temporaries)
    assert names(ops) == [GATE_UP, DOWN]
    execute(layer.ops())
    expected = layer.out.clone()
    for tensor in (layer.y, layer.both, layer.h, layer.z, layer.out):
        tensor.fill_(float("nan"))
    execute(ops)
    assert error(layer.out, expected) < 1e-2


def test_more_rows_fuse_what_tiles_take() -> None:
    layer = Layer(17)
    ops = fuse(layer.ops(), temporaries=layer.temporaries)
    assert names(ops) == ["RMSNormOp", "GemmOp", "GluOp", DOWN]


def test_what_is_no_temporary_is_still_written() -> None:
    layer = Layer()
    assert names(fuse(layer.ops())) == names(layer.ops())
    assert names(fuse(layer.ops(), temporaries=[layer.y])) == ["GemmOp_RmsNormOnLoad", "GluOp", "GemmOp", "AddOp"]
    assert names(fuse(layer.ops(), temporaries=[layer.both])) == ["RMSNormOp", "GemmOp_GluPair", "GemmOp", "AddOp"]
    assert names(fuse(layer.ops(), temporaries=[layer.z])) == ["RMSNormOp", "GemmOp", "GluOp", DOWN]
    assert names(fuse(layer.ops(), temporaries=[layer.both[:, :7]])) == names(layer.ops())


def test_buffers_that_a_later_layer_overwrites_need_no_declaration() -> None:
    layer = Layer()
    once = fuse(layer.ops() + layer.ops())
    assert names(once) == [GATE_UP, DOWN, *names(layer.ops())]


def test_a_second_reader_keeps_the_value() -> None:
    layer = Layer()
    other = AddOp.schedule(a=layer.y, b=layer.x, y=random(1, 64))
    ops = fuse(layer.ops() + other, temporaries=layer.temporaries)
    assert names(ops) == ["RMSNormOp", "GemmOp_GluPair", DOWN, "AddOp"]


@pytest.mark.parametrize("changed", ["x", "norm"])
def test_an_operand_that_changes_in_between(changed: str) -> None:
    """The norm has to read before something else is written there."""
    layer = Layer()
    norm, *rest = layer.ops()
    tensor = getattr(layer, changed)
    between = AddOp.schedule(a=tensor, b=tensor, y=tensor)
    ops = fuse([norm, *between, *rest], temporaries=layer.temporaries)
    assert names(ops) == ["RMSNormOp", "AddOp", "GemmOp_GluPair", DOWN]


def test_in_place_residual_and_norm() -> None:
    """x is updated in place; the norm's result takes no memory of its own in the second case."""
    layer = Layer()
    layer.out = layer.x
    assert names(fuse(layer.ops(), temporaries=layer.temporaries)) == [GATE_UP, DOWN]
    layer.y = layer.x
    assert names(fuse(layer.ops(), temporaries=layer.temporaries))[0] == "RMSNormOp"


def test_two_products_and_swapped_halves() -> None:
    layer, f = Layer(), 128
    gate, up = random(1, f), random(1, f)
    separate = (
        RMSNormOp.schedule(x=layer.x, weight=layer.norm, y=layer.y)
        + GemmOp.schedule(a=layer.y, b=layer.gate_up[:f], c=gate)
        + GemmOp.schedule(a=layer.y, b=layer.gate_up[f:], c=up)
        + GluOp.schedule(gate=up, up=gate, y=layer.h, activation="gelu")
    )
    ops = fuse(separate, temporaries=[gate, up, layer.y])
    assert names(ops) == [GATE_UP]
    assert ops[0].tensors["b"].data_ptr() == layer.gate_up[f:].data_ptr()
    assert ops[0].config["combine0.activation"] == "gelu"
    half = fuse(separate, temporaries=[gate, up])
    assert names(half) == ["RMSNormOp", "GemmOp_GluPair"]


def test_sum_of_two_products_takes_one_of_them() -> None:
    layer = Layer()
    other = random(1, 64)
    ops = (
        GemmOp.schedule(a=layer.h, b=layer.down, c=layer.z)
        + GemmOp.schedule(a=layer.h, b=layer.down, c=other)
        + AddOp.schedule(a=layer.z, b=other, y=layer.out)
    )
    assert names(fuse(ops, temporaries=[layer.z, other])) == ["GemmOp", DOWN]


def test_twice_the_same_operand_is_left_alone() -> None:
    layer = Layer()
    ops = GemmOp.schedule(a=layer.h, b=layer.down, c=layer.z) + AddOp.schedule(a=layer.z, b=layer.z, y=layer.out)
    assert names(fuse(ops, temporaries=[layer.z])) == ["GemmOp", "AddOp"]


def test_epilogues_that_are_there_stay_in_order() -> None:
    layer = Layer()
    bias = random(64)
    ops = GemmOp.schedule(a=layer.h, b=layer.down, c=layer.z, epilogue=[Bias(bias)])
    ops += AddOp.schedule(a=layer.z, b=layer.x, y=layer.out)
    (op,) = fuse(ops, temporaries=[layer.z])
    assert [kind for _, _, kind in op.op.fusion_types] == [Bias, ResidualAdd]


def test_contiguous_memory_covers_what_lies_in_it() -> None:
    layer = Layer()
    arena = torch.zeros(4096, dtype=BF16)
    layer.y, layer.z = arena[:64].view(1, 64), arena[1000:1064].view(1, 64)
    assert names(fuse(layer.ops(), temporaries=[arena, layer.both])) == [GATE_UP, DOWN]
    assert DOWN not in names(fuse(layer.ops(), temporaries=[arena[:1010], layer.both]))


# ---------------------------------------------------------------------------------------------- random lists

D, F = 64, 64  # of one size, so that any buffer can follow any other


class Memory:
    """Activations of two widths and weights, at the same places whenever it is made anew."""

    def __init__(self, m: int) -> None:
        torch.manual_seed(7)
        arena = random(8 * m * D)
        self.narrow = [arena[i * m * D : (i + 1) * m * D].view(m, D) for i in range(4)]
        self.wide = [arena[(4 + 2 * i) * m * D :][: 2 * m * D].view(m, 2 * D) for i in range(2)]
        self.arena = arena
        self.weights = [random(2 * D, D) * 0.2 for _ in range(2)]
        self.norms = [random(D) for _ in range(2)]

    def places(self) -> list[torch.Tensor]:
        """Everything of width D: buffers, and halves of wide ones."""
        return self.narrow + [half for wide in self.wide for half in (wide[:, :D], wide[:, D:])]


Step = tuple[str, int, int, int, int]


def schedule(memory: Memory, step: Step) -> list[ScheduledOp]:
    kind, first, second, last, which = step
    places = memory.places()
    x, z, y = places[first], places[second], places[last]
    weight = memory.weights[which]
    if kind == "norm":
        return RMSNormOp.schedule(x=x, weight=memory.norms[which], y=y, eps=EPS)
    if kind == "gemm":
        return GemmOp.schedule(a=x, b=weight[:D], c=y)
    if kind == "wide":
        return GemmOp.schedule(a=x, b=weight, c=memory.wide[last % 2])
    if kind == "glu":
        return GluOp.schedule(gate=x, up=z, y=y)
    return AddOp.schedule(a=x, b=z, y=y)


PLACE = st.integers(0, 7)
ANY = st.tuples(st.sampled_from(["norm", "gemm", "wide", "glu", "add"]), PLACE, PLACE, PLACE, st.integers(0, 1))


@st.composite
def parts(draw: Any) -> list[Step]:
    """Ops as the rules look for them, and often one in between that reads or overwrites what they work on."""
    which, wide = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    x, y, z, out = (draw(PLACE) for _ in range(4))
    pattern: list[Step] = draw(
        st.sampled_from(
            [
                [("norm", x, x, y, which), ("gemm", y, y, z, which)],
                [("norm", x, x, y, which), ("wide", y, y, wide, which)],
                [("wide", x, x, wide, which), ("glu", 4 + 2 * wide, 5 + 2 * wide, z, 0)],
                [("gemm", x, x, y, which), ("gemm", x, x, z, 1 - which), ("glu", z, y, out, 0)],
                [("gemm", x, x, y, which), ("add", y, z, out, 0)],
                [("gemm", x, x, y, which), ("add", z, y, z, 0)],
            ]
        )
    )
    near = st.sampled_from([x, y, z, out, draw(PLACE)])
    meddler = st.tuples(st.sampled_from(["norm", "add"]), near, near, near, st.just(which))
    for _ in range(draw(st.integers(0, 2))):
        pattern.insert(draw(st.integers(1, len(pattern))), draw(meddler))
    return pattern


PROGRAM = st.lists(st.one_of(parts(), parts(), st.lists(ANY, min_size=1, max_size=1)), min_size=1, max_size=3)
FUSED = {"lists": 0, "rewritten": 0}


def scheduled(memory: Memory, program: list[list[Step]]) -> list[ScheduledOp]:
    """What of the program can be scheduled: no op overwrites what it reads."""
    ops: list[ScheduledOp] = []
    for step in (step for part in program for step in part):
        try:
            ops += schedule(memory, step)
        except ValueError:
            continue
    return ops


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    program=PROGRAM,
    m=st.sampled_from([1, 2, 5]),
    temporary=st.lists(st.sampled_from([True, True, False]), min_size=6, max_size=6),
)
def test_random_lists(program: list[list[Step]], m: int, temporary: list[bool]) -> None:
    """After the fused list, everything but temporaries holds what it holds after the list itself."""
    memory, fused_memory = Memory(m), Memory(m)
    buffers, fused_buffers = memory.narrow + memory.wide, fused_memory.narrow + fused_memory.wide
    temporaries = [buffer for buffer, is_temporary in zip(fused_buffers, temporary, strict=True) if is_temporary]
    ops = scheduled(memory, program)
    fused = fuse(scheduled(fused_memory, program), temporaries=temporaries)
    FUSED["lists"] += 1
    FUSED["rewritten"] += len(fused) < len(ops)
    execute(ops)
    execute(fused)
    for buffer, other, is_temporary in zip(buffers, fused_buffers, temporary, strict=True):
        if not is_temporary:
            torch.testing.assert_close(
                other.double(), buffer.double(), rtol=0.05, atol=0.05 * buffer.abs().max().item()
            )


def test_random_lists_were_rewritten() -> None:
    """The property above is about something."""
    assert FUSED["lists"] == 0 or FUSED["rewritten"] > FUSED["lists"] / 20
