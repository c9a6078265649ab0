"""Extents that are smaller than those that the plan was made for, from run to run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from machete.megakernel import Megakernel
from machete.megakernel.errors import ExtentError, UnknownArgumentError


def poisoned(*shape: int, device: str) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=device)


def kernel_of(ops: list, arch: str, device: str) -> Megakernel:
    return Megakernel(ops, arch=arch if device == "cpu" else None)


@pytest.mark.parametrize("extents", [[1000, 1, 0, 256, 999], [0, 257]])
def test_fewer_elements(arch: str, device: str, op_classes: SimpleNamespace, extents: list[int]) -> None:
    """A chain of a plain and a streaming op: N reaches both, and no tile outside is touched."""
    x = torch.randint(-8, 9, (1000,)).to(device=device, dtype=torch.float32)
    y, z = poisoned(1000, device=device), poisoned(1000, device=device)
    kernel = kernel_of(op_classes.Scale.schedule(x=x, y=y) + op_classes.Add.schedule(x=x, y=y, z=z), arch, device)
    for n in extents:
        y.fill_(float("nan"))
        z.fill_(float("nan"))
        kernel.run(extents={"N": n})
        assert torch.equal(z[:n], 3 * x[:n])
        assert y[n:].isnan().all()
        assert z[n:].isnan().all()


def test_a_dim_is_followed_under_other_names(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    """M of the outer product is N of the op that makes its operand; its own N is another dim, of the same name."""
    x, w = torch.arange(10.0, device=device), torch.arange(100.0, device=device)
    y, z = poisoned(10, device=device), poisoned(10, 100, device=device)
    kernel = kernel_of(op_classes.Scale.schedule(x=x, y=y) + op_classes.Outer.schedule(x=y, y=w, z=z), arch, device)
    for m in (10, 3, 0, 5):
        z.fill_(float("nan"))
        y.fill_(float("nan"))
        kernel.run(extents={"M": m})
        assert torch.equal(z[:m], torch.outer(2 * x[:m], w))
        assert y[m:].isnan().all()
        assert z[m:].isnan().all()


@pytest.mark.parametrize("m", [130, 64, 3, 0])
def test_tma_descriptors_have_the_extents(arch: str, device: str, m: int) -> None:
    gemm = pytest.importorskip("machete.kernels.gemm")
    a = torch.randn(130, 72, device=device, dtype=torch.bfloat16)
    b = torch.randn(64, 72, device=device, dtype=torch.bfloat16)
    c = poisoned(130, 64, device=device)
    kernel = kernel_of(gemm.GemmOp.schedule(a=a, b=b, c=c), arch, device)
    kernel.run(extents={"M": m, "K": 40})
    torch.testing.assert_close(c[:m], a[:m, :40].float() @ b[:, :40].float().T, rtol=1e-4, atol=1e-3)
    assert c[m:].isnan().all()
    kernel.run(extents={"M": 130, "K": 72})
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-4, atol=1e-3)


def test_dims_of_one_name_that_differ(op_classes) -> None:
    x, w = torch.ones(10), torch.ones(100)
    y, z = torch.ones(10), torch.ones(10, 100)
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=y) + op_classes.Outer.schedule(x=y, y=w, z=z))
    with pytest.raises(ExtentError, match="'N' is 10, 100 in different ops"):
        kernel.run(extents={"N": 5})


@pytest.mark.parametrize("extent", [-1, 11, 2.0, True])
def test_extents_that_were_not_planned(op_classes, extent) -> None:
    kernel = Megakernel(op_classes.Scale.schedule(x=torch.ones(10), y=torch.ones(10)))
    with pytest.raises(ExtentError, match=f"extent {extent!r} of dim 'N'"):
        kernel.run(extents={"N": extent})


def test_dims_that_code_rests_on(op_classes) -> None:
    table, y = torch.ones(50), torch.ones(300)
    index, length = torch.zeros(300, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernel = Megakernel(op_classes.Take.schedule(table=table, index=index, length=length, y=y))
    with pytest.raises(ExtentError, match=r"dim 'N' of op 0 \(Take\) keeps the extent"):
        kernel.run(extents={"N": 5})


def test_unknown_dims(op_classes) -> None:
    kernel = Megakernel(op_classes.Scale.schedule(x=torch.ones(10), y=torch.ones(10)))
    with pytest.raises(UnknownArgumentError, match="no op has a dim 'M'"):
        kernel.run(extents={"M": 1})
