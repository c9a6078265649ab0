"""torch in a simulated GPU's context: which tensors say that they are on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from machete.sim import Simulation, SimulationError, simulated_gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Simulation]:
    with simulated_gpu("sm_100a", sms=8) as simulation:
        yield simulation


def test_there_is_one_gpu_of_the_architecture() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (10, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 8
    with pytest.raises(SimulationError, match="cuda:1"):
        torch.zeros(1, device="cuda:1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, device="cuda"),
        lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
        lambda: torch.zeros(4).cuda(),
        lambda: torch.zeros(4).to("cuda", torch.float16),
        lambda: torch.zeros(4).to(torch.zeros(1, device="cuda")),
        lambda: torch.as_tensor(torch.zeros(4), device="cuda"),
        lambda: torch.nn.Linear(4, 4).cuda().weight,
        lambda: torch.nn.Linear(4, 4, device="cuda").weight,
        lambda: torch.randn(4, device="cuda")[1:].exp(),
        lambda: torch.empty_like(torch.randn(4, device="cuda")),
        lambda: torch.zeros(4) + torch.randn(4, device="cuda"),
        lambda: torch.randn(4, 4, device="cuda").sort(dim=-1).indices,
        lambda: torch.randn(4, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
    ],
)
def test_a_tensor_on_the_gpu(make: object) -> None:
    tensor = make()  # type: ignore[operator]
    assert tensor.is_cuda
    assert not tensor.is_cpu
    assert tensor.device == torch.device("cuda", 0)
    assert tensor.get_device() == 0
    assert tensor.__dlpack_device__()[1] == 0
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        tensor.numpy()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4),
        lambda: torch.randn(4, device="cuda").cpu(),
        lambda: torch.randn(4, device="cuda").to("cpu"),
        lambda: torch.zeros_like(torch.randn(4, device="cuda"), device="cpu"),
        lambda: torch.zeros(4).copy_(torch.ones(4, device="cuda")),
    ],
)
def test_a_tensor_on_the_host(make: object) -> None:
    tensor = make()  # type: ignore[operator]
    assert not tensor.is_cuda
    assert tensor.device.type == "cpu"
    tensor.numpy()


def test_copies_to_and_from_the_gpu_share_no_memory() -> None:
    host = torch.zeros(4)
    device = host.cuda()
    back = device.cpu()
    assert len({tensor.data_ptr() for tensor in (host, device, back)}) == 3
    assert device.cuda() is device


def test_gradients_are_on_the_gpu() -> None:
    x = torch.randn(4, device="cuda", requires_grad=True)
    (x.exp() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.is_cuda
    (second,) = torch.autograd.grad((x * x).sum(), x)
    assert second.is_cuda


@pytest.mark.parametrize("through", ["backward", "grad"])
def test_an_autograd_function_is_given_gradients_on_the_gpu(through: str) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            assert dy.is_cuda
            assert torch.empty(1, device=dy.device).is_cuda
            return dy * 2

    x = torch.ones(4, device="cuda", requires_grad=True)
    y = Double.apply(x).sum()
    if through == "backward":
        y.backward()
        assert torch.equal(x.grad.cpu(), torch.full((4,), 2.0))  # type: ignore[union-attr]
    else:
        assert torch.autograd.grad(y, x)[0].is_cuda


_names = itertools.count()


def test_an_operator_registered_for_cuda_alone_runs_and_sees_the_gpu() -> None:
    @torch.library.custom_op(f"machete_sim_tests::twice{next(_names)}", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return torch.empty(x.shape, device=x.device).copy_(x * 2)

    x = torch.ones(4, device="cuda")
    y = twice(x)
    assert y.is_cuda
    assert torch.equal(y.cpu(), torch.full((4,), 2.0))
    with pytest.raises(NotImplementedError):
        twice(torch.ones(4))


def test_a_default_device_and_a_device_context() -> None:
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda
    torch.set_default_device("cuda")
    assert torch.zeros(1).is_cuda
    torch.set_default_device(None)
    assert not torch.zeros(1).is_cuda


def test_a_graph_replays_what_torch_computed() -> None:
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        out.copy_(y + 1)
    x.fill_(5)
    graph.replay()
    assert torch.equal(out.cpu(), torch.full((4,), 11.0))


@pytest.mark.parametrize("scales", [torch.float8_e8m0fnu, torch.float8_e4m3fn], ids=["mxfp4", "nvfp4"])
def test_products_with_block_scales_which_torch_has_for_cuda_alone(scales: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
    rows, columns, depth = 160, 96, 192
    block = 32 if scales is torch.float8_e8m0fnu else 16
    codes = [torch.randint(16, (count, depth)) for count in (rows, columns)]
    factors = [torch.exp2(torch.randint(-2, 3, (count, depth // block)).float()) for count in (rows, columns)]
    one, other = (values[c] * f.repeat_interleave(block, 1) for c, f in zip(codes, factors, strict=True))

    def packed(code: torch.Tensor) -> torch.Tensor:
        return (code[:, ::2] | code[:, 1::2] << 4).to(torch.uint8).view(torch.float4_e2m1fn_x2).cuda()

    def tiled(factor: torch.Tensor) -> torch.Tensor:
        """cuBLAS's layout, an element at a time."""
        tiles = -(-factor.shape[1] // 4)
        out = torch.zeros(-(-len(factor) // 128) * tiles * 512)
        for r in range(factor.shape[0]):
            for c in range(factor.shape[1]):
                out[(r // 128 * tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = factor[r, c]
        return out.to(scales).cuda()

    bias = torch.randn(columns).cuda()
    a, b = packed(codes[0]), packed(codes[1])
    c = torch._scaled_mm(a, b.t(), tiled(factors[0]), tiled(factors[1]), bias=bias, out_dtype=torch.float32)
    assert c.is_cuda
    assert torch.allclose(c.cpu(), one @ other.t() + bias.cpu(), rtol=1e-6)
