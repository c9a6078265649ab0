"""That the ops fit the framework: the suite that comes with machete-runtime, and nothing else."""

import torch
from outside_ops import ClampOp, MixOp

from machete.megakernel.conformance import Case, Conformance


def clamp(device):
    x = torch.randn(37, 600, device=device).bfloat16()[:, :300]
    y = torch.empty(37, 300, device=device, dtype=torch.bfloat16)
    return ClampOp.schedule(x=x, y=y, low=-0.5, high=1.0), {"x": x, "y": y}


def mix(device):
    x, y, z = torch.randn(3, 5000, device=device)
    return MixOp.schedule(x=x, y=y, z=z, weight=0.25), {"x": x, "y": y, "z": z}


class TestOps(Conformance):
    cases = (
        Case(ClampOp, clamp, lambda x: {"y": x.clamp(-0.5, 1.0)}, tolerance=1e-6),
        Case(MixOp, mix, lambda x, y: {"z": torch.lerp(x, y, 0.25)}, tolerance=1e-6),
    )
