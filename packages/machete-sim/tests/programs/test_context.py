"""Kernels of the DSL in a simulated GPU's context, and what is left when it ends."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

from machete.sim import OutOfBounds, SimulationError, UnsupportedLaunch, simulated_gpu
from machete.sim.programs.images import UnknownImage


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    y[thread + block * 32] = x[thread + block * 32] * factor


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr) -> None:
    scale_kernel(x, y, factor).launch(grid=(4, 1, 1), block=(32, 1, 1))


def tensors(count: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(count, dtype=torch.float32, device="cuda")
    return x, torch.zeros_like(x)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100a", "120"])
def test_a_kernel_runs_through_the_dsl_s_own_launch(arch: str) -> None:
    with simulated_gpu(arch) as simulation:
        x, y = tensors()
        scale(from_dlpack(x), from_dlpack(y), 2.0)
        assert torch.equal(y.cpu(), x.cpu() * 2)
    assert [launched.grid for launched in simulation.launches] == [(4, 1, 1)]
    assert simulation.instructions > 0


def test_a_function_compiled_for_tvm_ffi_takes_tensors_of_torch() -> None:
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        arguments = [from_dlpack(t, enable_tvm_ffi=True) for t in (x, y)]
        compiled = cute.compile(scale, *arguments, 3.0, options="--enable-tvm-ffi")
        compiled(x, y)
        assert torch.equal(y.cpu(), x.cpu() * 3)
        with pytest.raises(ValueError, match="device"):
            compiled(x.cpu(), y)


def test_code_is_bound_to_its_image_not_to_the_name_of_its_kernel() -> None:
    with simulated_gpu("sm_90a") as simulation:
        x, y = tensors()
        arguments = from_dlpack(x), from_dlpack(y)
        compiled = [cute.compile(scale, *arguments, factor) for factor in (2.0, 5.0)]
        for factor, function in zip((2.0, 5.0), compiled, strict=True):
            function(*arguments)
            assert torch.equal(y.cpu(), x.cpu() * factor)
    names = {launched.kernel for launched in simulation.launches}
    assert len(names) <= 2


def run_direct(x: torch.Tensor, y: torch.Tensor) -> None:
    scale(from_dlpack(x), from_dlpack(y), 2.0)


def run_tvm_ffi(x: torch.Tensor, y: torch.Tensor) -> None:
    fake = [cute.runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),)) for _ in range(2)]
    cute.compile(scale, *fake, 2.0, options="--enable-tvm-ffi")(x, y)


@pytest.mark.parametrize("run", [run_direct, run_tvm_ffi])
def test_an_access_out_of_bounds_is_raised_where_the_kernel_was_launched(run: Callable[..., None]) -> None:
    with simulated_gpu("sm_90a"):
        x, _ = tensors()
        small = torch.zeros(100, device="cuda")
        with pytest.raises(OutOfBounds, match=r"float32\[100\]") as caught:
            run(x, small)
        assert caught.value.place is not None
        assert "test_context.py" in str(caught.value)
        assert caught.value.cta == (3, 0, 0)


def test_a_tensor_on_the_host_is_out_of_bounds() -> None:
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        host = from_dlpack(x.cpu()), from_dlpack(y)
        compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y), 2.0)
        with pytest.raises(OutOfBounds):
            compiled(*host)


@pytest.mark.parametrize("run", [run_direct, run_tvm_ffi])
def test_host_code_calls_the_simulator_though_the_dsl_s_own_runtime_is_loaded(run: Callable[..., None]) -> None:
    for library in cute.runtime.find_runtime_libraries(enable_tvm_ffi=False):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # as flash-attn-4 does when it is imported
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        run(x, y)
        assert torch.equal(y.cpu(), x.cpu() * 2)


def test_a_graph_replays_launches() -> None:
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y), 2.0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(from_dlpack(x), from_dlpack(y))
        x.fill_(7)
        graph.replay()
        assert torch.equal(y.cpu(), torch.full((128,), 14.0))


def test_a_function_outlives_its_context_and_runs_in_the_next() -> None:
    with simulated_gpu("sm_90a", seed=1):
        x, y = tensors()
        compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y), 2.0)
    with simulated_gpu("sm_90a", seed=2):
        x, y = tensors()
        compiled(from_dlpack(x), from_dlpack(y))
        assert torch.equal(y.cpu(), x.cpu() * 2)


def test_code_for_another_architecture_is_refused() -> None:
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y), 2.0)
    with simulated_gpu("sm_120a"):
        x, y = tensors()
        with pytest.raises(UnsupportedLaunch, match="compiled for sm_90a"):
            compiled(from_dlpack(x), from_dlpack(y))


def test_an_image_whose_ptx_is_not_known_is_refused(caches: Any) -> None:
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y), 2.0)
    for kept in caches.rglob("*.ptx"):
        kept.unlink()
    with simulated_gpu("sm_90a"):
        x, y = tensors()
        with pytest.raises(UnknownImage, match="compile inside the context"):
            compiled(from_dlpack(x), from_dlpack(y))


def state() -> dict[str, Any]:
    from cutlass.base_dsl import dsl
    from cutlass.utils.hardware_info import HardwareInfo

    return {
        "torch.cuda": dict(vars(torch.cuda)),
        "torch": (torch.compile, torch.Generator, torch.set_default_device, torch.autograd._engine_run_backward),
        "driver": {name: getattr(driver, name) for name in ("cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute")},
        "dsl": (dsl.BaseDSL._compile_or_jit_module, HardwareInfo.get_max_active_clusters),
        "settings": [dict(vars(one.envar)) for one in dsl.DSLSingletonMeta._instances.values()],
        "environment": dict(os.environ),
        "modes": len(torch.overrides._get_current_function_mode_stack()),
    }


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_everything_is_as_before_when_the_context_ends(ends: str) -> None:
    with simulated_gpu("sm_90a"):
        pass  # whatever is imported, is imported
    before = state()
    try:
        with simulated_gpu("sm_100a"):
            x, y = tensors()
            scale(from_dlpack(x), from_dlpack(y), 2.0)
            if ends == "with an error":
                raise RuntimeError
    except RuntimeError:
        pass
    assert state() == before
    assert not x.is_cuda
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "machete-sim sm_100a"
    torch.from_dlpack(x)


def test_one_context_at_a_time() -> None:
    with (
        simulated_gpu("sm_90a"),
        pytest.raises(SimulationError, match="active already"),
        simulated_gpu("sm_90a"),
    ):
        pass


@pytest.mark.parametrize(("arch", "sms"), [("sm_80", 4), ("hopper", 4), ("sm_90a", 0)])
def test_a_gpu_that_cannot_be(arch: str, sms: int) -> None:
    with pytest.raises(UnsupportedLaunch), simulated_gpu(arch, sms=sms):
        pass
