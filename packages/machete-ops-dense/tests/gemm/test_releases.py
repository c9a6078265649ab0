"""A stage is released when what was read of it has arrived: without `after`, the simulator says so (decision 17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel
from machete.megakernel.device.ring import ComputeRing, Stage
from machete.megakernel.launch.compilation import forget
from machete.sim import Race

PATHS = {"gemv": (1, 256, 2048, "Gemv"), "few rows": (8, 256, 2048, "FewRowsGemm"), "tiles": (128, 128, 1024, "")}


def multiply(path: str, arch: str) -> str:
    """Run a product whose stages are used many times; the name of its implementation."""
    m, n, k, _ = PATHS[path]
    a, b = (torch.randn(rows, k).to(torch.bfloat16) for rows in (m, n))
    kernel = Megakernel(GemmOp.schedule(a=a, b=b, c=torch.zeros(m, n, dtype=torch.bfloat16)), arch=arch, num_sms=1)
    kernel.run()
    return kernel.plan.kinds[0].name.rpartition(".")[2]


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages are released by an arrival alone."""
    release = ComputeRing.release

    def careless(ring: ComputeRing, stage: Stage, after: object = None) -> None:
        release(ring, stage, after=())

    monkeypatch.setattr(ComputeRing, "release", careless)
    monkeypatch.setenv("MACHETE_CACHE", "off")
    forget()
    yield
    forget()


@pytest.mark.parametrize("path", PATHS)
def test_releases_wait_for_loads(path: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_SIM_CHECK", "strict")
    assert multiply(path, arch).startswith(PATHS[path][-1])


@pytest.mark.parametrize("path", ["gemv", "few rows"])
@pytest.mark.usefixtures("careless")
def test_an_arrival_alone_is_reported(path: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_SIM_CHECK", "strict")
    with pytest.raises(Race, match="load in flight when its stage was released") as report:
        multiply(path, arch)
    assert "compute of op 0 (" in str(report.value.waiting[0])


@pytest.mark.usefixtures("careless")
def test_products_do_not_hold_an_arrival_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_SIM_CHECK", "strict")
    with pytest.raises(Race, match="load in flight when its stage was released"):
        multiply("tiles", "sm_120a")


@pytest.mark.usefixtures("careless")
def test_an_arrival_before_any_use_is_always_reported(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GEMV hands its stage back before it multiplies."""
    monkeypatch.setenv("MACHETE_SIM_CHECK", "races")
    with pytest.raises(Race, match="load in flight when its stage was released"):
        multiply("gemv", arch)
