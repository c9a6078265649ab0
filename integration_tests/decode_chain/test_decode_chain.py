"""The decode chain of the benchmark at a small size: general ops, `fuse`, one kernel, and torch's accuracy."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from machete.megakernel import Megakernel

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "decode_chain.py"


@pytest.fixture(scope="module")
def decode() -> ModuleType:
    """The benchmark as a module: its graph is the one to test."""
    spec = importlib.util.spec_from_file_location("decode_chain_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the DSL looks sources up here
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("batch", "ops_a_layer"),
    [
        (1, 2),
        (3, 2),
        (8, 2),
        (17, 4),  # tiles of many rows: the residual fuses, norm and GLU do not
    ],
)
def test_no_worse_than_torch(batch: int, ops_a_layer: int, decode: ModuleType, arch: str, device: str) -> None:
    torch.manual_seed(batch)
    chain = decode.Chain.random(3, 192, 320, batch, device)
    ops = chain.ops()
    assert len(ops) == 3 * ops_a_layer
    chain.xs[1:].fill_(float("nan"))
    reference = chain.reference()
    Megakernel(ops, arch=arch if device == "cpu" else None).run()
    torch_error = decode.relative_error(chain.torch_linear(chain.xs[0]), reference)
    assert decode.relative_error(chain.xs[-1], reference) < 1.1 * torch_error


@pytest.mark.archs("sm_90a")
def test_empty_dependencies_change_nothing(decode: ModuleType, arch: str, device: str) -> None:
    """With two of them after each layer, every layer waits for the grid four times."""
    torch.manual_seed(0)
    chain = decode.Chain.random(2, 128, 192, 1, device)
    plain, extended = chain.ops(), chain.ops(2, torch.zeros(4, dtype=torch.int32, device=device))
    assert len(extended) == len(plain) + 4
    kernels = [Megakernel(ops, arch=arch if device == "cpu" else None) for ops in (plain, extended)]
    assert [len(kernel.plan.dependencies) for kernel in kernels] == [3, 7]
    results = []
    for kernel in kernels:
        chain.xs[1:].fill_(float("nan"))
        kernel.run()
        results.append(chain.xs[-1].clone())
    assert torch.equal(*results)
    assert results[0].isfinite().all()


@pytest.mark.archs("sm_90a")
def test_read_only_kernel_streams(decode: ModuleType, arch: str, device: str) -> None:
    x, nothing = torch.randn(100_000, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    kernel = Megakernel(decode.ReadOp.schedule(x=x, nothing=nothing), arch=arch if device == "cpu" else None)
    kernel.run()
    if kernel.simulated:
        assert kernel.report is not None
        assert (kernel.report.max_stages_in_flight or 0) >= 2
