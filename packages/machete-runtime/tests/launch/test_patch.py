"""The kernel that changes words on the device, and the structs that launch it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from machete.megakernel.launch import patch
from machete.megakernel.launch.driver import LaunchAttribute, LaunchConfig, PreparedLaunch, launch_config
from machete.megakernel.launch.simulator import find_simulator


@pytest.mark.parametrize("count", [0, 1, 31, patch.CAPACITY])
def test_kernel_writes_each_word(count: int) -> None:
    """The PTX itself, executed by the simulator: the words named, and no others."""
    pytest.importorskip("machete.sim")
    words = np.arange(1000, dtype=np.uint64)
    random = np.random.default_rng(count)
    positions = random.permutation(1000)[:count].astype(np.int64)
    values = random.integers(0, 2**64, count, dtype=np.uint64)
    block, parameters = patch.parameter_block(words.ctypes.data)
    patch.fill(block, positions, values)
    expected = words.copy()
    expected[positions] = values
    find_simulator()(
        ptx=patch.PTX.replace("sm_80", "sm_90a"),
        entry=patch.ENTRY,
        arch="sm_90a",
        params=bytes(parameters),
        grid=(1, 1, 1),
        block=(patch.THREADS, 1, 1),
        dynamic_shared=0,
        memory=[(words.ctypes.data, words.nbytes, "words", True)],
        sms=1,
        seed=0,
        max_instructions=None,
        progress=None,
    )
    assert (words == expected).all()


@pytest.mark.parametrize("overlapping", [False, True])
def test_launch_config_is_that_of_the_driver(overlapping: bool) -> None:
    """Byte for byte what `cuda.bindings` lays out, whose declarations come from NVIDIA's header."""
    driver = pytest.importorskip("cuda.bindings.driver")
    identifiers, wanted = driver.CUlaunchAttributeID, [driver.CUlaunchAttribute() for _ in range(1 + overlapping)]
    wanted[0].id, wanted[0].value.cooperative = identifiers.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
    if overlapping:
        wanted[1].id = identifiers.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        wanted[1].value.programmaticStreamSerializationAllowed = 1
    theirs = driver.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 132, 1, 1
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 384, 1, 1
    theirs.sharedMemBytes = 200_000
    theirs.hStream = driver.CUstream(0x1234)
    theirs.attrs, theirs.numAttrs = wanted, len(wanted)
    ours = launch_config(132, 384, 200_000, 0x1234, cooperative=True, overlapping=overlapping)
    attributes = LaunchConfig.attributes.offset
    pointer = slice(attributes, attributes + 8)
    mine, other = bytearray(bytes(ours)), bytearray(ctypes.string_at(theirs.getPtr(), ctypes.sizeof(LaunchConfig)))
    nbytes = len(wanted) * ctypes.sizeof(LaunchAttribute)
    assert ctypes.string_at(ours.attributes, nbytes) == ctypes.string_at(
        int.from_bytes(other[pointer], "little"), nbytes
    )
    mine[pointer] = other[pointer] = bytes(8)
    assert mine == other


@pytest.mark.skipif(not torch.cuda.is_available(), reason="launches on a GPU")
def test_patches_are_in_stream_order() -> None:
    """More words than fit one launch, changed twice without waiting; readers in between see what is theirs."""
    words = torch.zeros(1000, dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        patcher = patch.Patcher(words.data_ptr(), side.cuda_stream, torch.cuda.current_device())
        positions = np.arange(0, 1000, 2)
        seen = []
        for value in (1, 2, 3):
            patcher.write(positions, np.full(len(positions), value, dtype=np.uint64))
            seen.append(words.clone())
    side.synchronize()
    for value, tensor in zip((1, 2, 3), seen, strict=True):
        assert (tensor[::2] == value).all()
        assert (tensor[1::2] == 0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="launches on a GPU")
def test_a_refused_launch_says_why() -> None:
    from machete.megakernel.errors import LaunchError
    from machete.megakernel.launch.gpu import load

    function = load(patch.PTX.encode() + b"\0", patch.ENTRY, 0, torch.cuda.current_device())
    _, parameters = patch.parameter_block(0)
    launch = PreparedLaunch(
        function,
        torch.cuda.current_device(),
        grid=1 << 20,
        block=patch.THREADS,
        shared_bytes=0,
        stream=0,
        parameters=[ctypes.addressof(parameters)],
        cooperative=True,
    )
    with pytest.raises(LaunchError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        launch()
