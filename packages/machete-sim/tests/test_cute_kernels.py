"""Kernels as the CuTe DSL compiles them for the three targets, executed and compared with NumPy."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from machete.sim import Image, LaunchConfig, Race, Region, Report, Uninitialised, run
from machete.sim._core import engine

cutlass = pytest.importorskip("cutlass")
runtime = pytest.importorskip("cutlass.cute.runtime")

_SPEC = importlib.util.spec_from_file_location("sim_cute_kernels", Path(__file__).with_name("cute_kernels.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
kernels = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(kernels)

ARCHITECTURES = ["sm_90a", "sm_100a", "sm_120a"]
ADDRESS = cutlass.Int64(0)
INTEGER = cutlass.Int32(0)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Image]:
    """Compiled once for all tests of this file."""
    cache: dict[tuple[str, str], Image] = {}
    folder = tmp_path_factory.mktemp("ptx")

    def get(name: str, arch: str, *arguments: Any) -> Image:
        if (name, arch) not in cache:
            text = kernels.compile_to_ptx(getattr(kernels, name), arch, folder / f"{name}-{arch}", *arguments)
            cache[name, arch] = Image.from_ptx(text, arch=arch)
        return cache[name, arch]

    return get


def launch(
    image: Image, arguments: list[Any], grid: int, threads: int, shared: int = 0, seed: int = 0, cluster: int = 1
) -> Report:
    """Arguments are arrays (their address is passed), integers (32 bits) or floats."""
    block = bytearray()
    regions: list[Region] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            block += b"\0" * (-len(block) % 8) + struct.pack("<Q", argument.ctypes.data)
            regions.append(Region(argument.ctypes.data, argument.nbytes, f"argument {len(regions)}"))
        elif isinstance(argument, float):
            block += struct.pack("<f", argument)
        else:
            block += struct.pack("<i", argument)
    config = LaunchConfig(
        (grid, 1, 1), (threads, 1, 1), dynamic_shared=shared, cluster=(cluster, 1, 1), sms=4, seed=seed
    )
    return run(image, bytes(block), config, regions)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    storage = np.zeros(nbytes + 128, np.uint8)
    start = -storage.ctypes.data % 128
    return storage[start : start + nbytes].view(dtype).reshape(shape)


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    out = aligned(shape, dtype)
    out[...] = np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)
    return out


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_elementwise(image: Callable[..., Image], arch: str) -> None:
    fake = runtime.make_fake_compact_tensor(cutlass.Float32, (1024,))
    x, y = normal((1024,), np.float32), normal((1024,), np.float32, 1)
    before = y.copy()
    launch(image("axpy", arch, fake, fake, cutlass.Float32(0), INTEGER), [x, y, 2.5, 1000], 8, 128)
    expected = (np.float64(2.5) * x + before).astype(np.float32)
    assert np.array_equal(y[:1000], expected[:1000])
    assert np.array_equal(y[1000:], before[1000:])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_bulk_pipeline(image: Callable[..., Image], arch: str, seed: int) -> None:
    chunks = 37
    x, y = normal((chunks, 1024), np.float32), aligned((chunks, 1024), np.float32)
    compiled = image("ring", arch, ADDRESS, ADDRESS, INTEGER)
    report = launch(compiled, [x, y, chunks], 4, 160, shared=13 * 1024, seed=seed)
    assert np.array_equal(y, 2 * x)
    assert report.async_copies == chunks
    assert report.max_stages_in_flight >= 2
    assert report.summary["bytes_loaded"] == x.nbytes


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tensor_tile(image: Callable[..., Image], arch: str) -> None:
    source = aligned((128, 256), ml_dtypes.bfloat16)
    source[...] = (np.arange(128 * 256) % 251).astype(np.float32).reshape(128, 256)
    descriptor = aligned((128,), np.uint8)
    descriptor[:] = engine.encode_tensormap(
        base=source.ctypes.data,
        dtype=10,
        dim=[256, 128],
        stride=[2, 512],
        box=[64, 64],
        elem_stride=[1, 1],
        swizzle=128,
    )
    out = aligned((64, 64), ml_dtypes.bfloat16)
    compiled = image("tile", arch, ADDRESS, ADDRESS, INTEGER, INTEGER)
    # The tensor itself is reached through the descriptor only, so it is no argument.
    block = struct.pack("<QQii", descriptor.ctypes.data, out.ctypes.data, 64, 80)
    memory = [
        Region(a.ctypes.data, a.nbytes, name) for a, name in ((descriptor, "map"), (out, "out"), (source, "source"))
    ]
    run(compiled, block, LaunchConfig((1, 1, 1), (64, 1, 1), dynamic_shared=10 * 1024), memory)
    expected = np.zeros((64, 64), np.float32)
    expected[:48] = source[80:128, 64:128].astype(np.float32)  # rows from 128 on do not exist
    assert np.array_equal(out.astype(np.float32), expected)


def check_product(image: Image) -> None:
    m, n, k = kernels.TILE_M, kernels.TILE_N, kernels.TILE_K
    a, b, c = normal((m, k), ml_dtypes.bfloat16), normal((n, k), ml_dtypes.bfloat16, 1), aligned((m, n), np.float32)
    report = launch(image, [a, b, c], 1, 128, shared=40 * 1024)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.linalg.norm(c - expected) / np.linalg.norm(expected) < 1e-6
    assert report.matrix_instructions > 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_mma_sync_with_ldmatrix(image: Callable[..., Image], arch: str) -> None:
    check_product(image("mma", arch, ADDRESS, ADDRESS, ADDRESS))


def test_wgmma(image: Callable[..., Image]) -> None:
    check_product(image("wgmma", "sm_90a", ADDRESS, ADDRESS, ADDRESS))


@pytest.mark.parametrize(("check", "message"), [("memory", "wgmma at instruction"), ("races", "wgmma.wait_group")])
def test_wgmma_operands_overwritten_too_early(
    image: Callable[..., Image], check: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store into an operand between the last wgmma and its wait: the hardware may still be reading."""
    text = image("wgmma", "sm_90a", ADDRESS, ADDRESS, ADDRESS).module.text
    at = text.rindex("wgmma.commit_group.sync.aligned;")
    shared = text[text.index(".extern .shared") :].split("[]")[0].split()[-1]
    text = f"{text[:at]}st.shared.b32 [{shared}+1024], 0; {text[at:]}"
    m, n, k = kernels.TILE_M, kernels.TILE_N, kernels.TILE_K
    a, b, c = normal((m, k), ml_dtypes.bfloat16), normal((n, k), ml_dtypes.bfloat16, 1), aligned((m, n), np.float32)
    monkeypatch.setenv("MACHETE_SIM_CHECK", check)
    with pytest.raises(Race, match=message):
        launch(Image.from_ptx(text), [a, b, c], 1, 128, shared=40 * 1024)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kernel", "group"), [("tensor_core", 1), ("tensor_core_pair", 2)])
def test_tcgen05(image: Callable[..., Image], kernel: str, group: int, seed: int) -> None:
    m = 128 * group
    a, b, c = normal((m, 64), ml_dtypes.bfloat16), normal((64, 64), ml_dtypes.bfloat16, 1), aligned((m, 64), np.float32)
    compiled = image(kernel, "sm_100a", ADDRESS, ADDRESS, ADDRESS)
    report = launch(compiled, [a, b, c], group, 128, shared=40 * 1024, seed=seed, cluster=group)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.linalg.norm(c - expected) / np.linalg.norm(expected) < 1e-6
    assert report.matrix_instructions == 4


def test_tcgen05_read_before_it_is_done(image: Callable[..., Image]) -> None:
    """Without the wait for the commit the accumulator is not there yet."""
    text = image("tensor_core", "sm_100a", ADDRESS, ADDRESS, ADDRESS).module.text
    at = text.index("mbarrier.try_wait")
    end = text.index(";", at)
    predicate = text[at:end].split()[1].rstrip(",")
    text = f"{text[:at]}setp.eq.u32 {predicate}, 0, 0{text[end:]}"
    a, b, c = (
        normal((128, 64), ml_dtypes.bfloat16),
        normal((64, 64), ml_dtypes.bfloat16, 1),
        aligned((128, 64), np.float32),
    )
    with pytest.raises(Uninitialised, match=r"tcgen05\.ld"):
        launch(Image.from_ptx(text, arch="sm_100a"), [a, b, c], 1, 128, shared=40 * 1024, seed=4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_multicast_and_distributed_shared_memory(image: Callable[..., Image], arch: str, seed: int) -> None:
    x, y = normal((128,), np.float32), aligned((4, 128), np.float32)
    launch(image("share", arch, ADDRESS, ADDRESS), [x, y], 4, 128, shared=4096, seed=seed, cluster=4)
    factor = np.arange(1, 5, dtype=np.float32)
    assert np.array_equal(y, x * factor[:, None] + x * np.roll(factor, -1)[:, None])
