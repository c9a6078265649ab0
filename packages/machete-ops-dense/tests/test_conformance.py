"""The dense ops fit: the suite that every op package runs."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from machete.kernels.elementwise import AddOp
from machete.kernels.fusions import Activation, Bias, GluPair, ResidualAdd, RmsNormOnLoad
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import ScheduledOp
from machete.megakernel.conformance import Case, Conformance

BF16 = torch.bfloat16
ROUNDED = 3e-3  # one rounding to bfloat16
ROUNDED_TWICE = 6e-3  # the normalised rows too, as operands of the tensor cores
EPS = 1e-5

Tensors = dict[str, torch.Tensor]
Made = tuple[list[ScheduledOp], Tensors]


def random(device: str, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def norm_case(name: str, m: int, d: int, streaming: bool, dtype: torch.dtype = BF16) -> Case:
    def make(device: str) -> Made:
        x, weight = random(device, m, d, dtype=dtype), random(device, d, dtype=dtype)
        y = torch.empty_like(x)
        ops = RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=streaming)
        return ops, {"x": x, "weight": weight, "y": y}

    return Case(RMSNormOp, make, lambda x, weight: {"y": rms_norm(x, weight)}, ROUNDED, name)


def glu_case(name: str, m: int, f: int, streaming: bool) -> Case:
    def make(device: str) -> Made:
        gate, up, y = (random(device, m, f) for _ in range(3))
        return GluOp.schedule(gate=gate, up=up, y=y, streaming=streaming), {"gate": gate, "up": up, "y": y}

    return Case(GluOp, make, lambda gate, up: {"y": functional.silu(gate) * up}, ROUNDED, name)


def add_case(name: str, m: int, n: int, streaming: bool) -> Case:
    def make(device: str) -> Made:
        x, z = random(device, m, n, dtype=torch.float32), random(device, m, n, dtype=torch.float32)
        return AddOp.schedule(a=x, b=z, y=x, streaming=streaming), {"x": x, "z": z}

    return Case(AddOp, make, lambda x, z: {"x": x + z}, 1e-6, name)


def gemm_case(name: str, m: int, n: int, k: int) -> Case:
    def make(device: str) -> Made:
        a, b, c = random(device, m, k), random(device, n, k), random(device, m, n)
        return GemmOp.schedule(a=a, b=b, c=c), {"a": a, "b": b, "c": c}

    return Case(GemmOp, make, lambda a, b: {"c": a @ b.mT}, ROUNDED, name)


def fused_row(device: str) -> Made:
    a, weight, gate, up = (random(device, *shape) for shape in ((2, 256), (256,), (40, 256), (40, 256)))
    residual, c = random(device, 2, 40), random(device, 2, 40)
    fusions = {"prologue": RmsNormOnLoad(weight, EPS), "combine": GluPair(up), "epilogue": [ResidualAdd(residual)]}
    tensors = {"a": a, "weight": weight, "gate": gate, "up": up, "residual": residual, "c": c}
    return GemmOp.schedule(a=a, b=gate, c=c, **fusions), tensors


def fused_row_reference(
    a: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, residual: torch.Tensor
) -> Tensors:
    y = rms_norm(a, weight)
    return {"c": functional.silu(y @ gate.mT) * (y @ up.mT) + residual}


def fused_tiles(device: str) -> Made:
    a, b, bias, c = random(device, 70, 128), random(device, 50, 128), random(device, 50), random(device, 70, 50)
    ops = GemmOp.schedule(a=a, b=b, c=c, epilogue=[Bias(bias), Activation("relu")])
    return ops, {"a": a, "b": b, "bias": bias, "c": c}


class TestRMSNorm(Conformance):
    cases = [norm_case("streaming", 40, 512, True), norm_case("direct", 5, 100, False)]


class TestGlu(Conformance):
    cases = [glu_case("streaming", 40, 512, True), glu_case("direct", 5, 100, False)]


class TestAdd(Conformance):
    cases = [add_case("streaming", 40, 512, True), add_case("direct", 5, 101, False)]


class TestGemm(Conformance):
    cases = [
        gemm_case("tiles", 70, 50, 128),
        gemm_case("row", 1, 40, 256),
        Case(GemmOp, fused_tiles, lambda a, b, bias: {"c": (a @ b.mT + bias).relu()}, ROUNDED, "tiles-fused"),
        Case(GemmOp, fused_row, fused_row_reference, ROUNDED_TWICE, "row-fused"),
    ]
