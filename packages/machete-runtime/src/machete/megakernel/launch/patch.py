"""Change single words of a launch's data on the device, in stream order.

A kernel that runs may be reading its records, so the host must not write to them. A tiny kernel does, before the next
launch on the same stream and after the last one. The new values travel as its parameters, which the driver copies at
the launch: no staging buffer that a later change could overwrite.
"""

import ctypes

import numpy as np

from .driver import PreparedLaunch
from .gpu import load

CAPACITY = 255  # 4096 bytes of parameters: address and count, then (position, value) pairs of 16 bytes
THREADS = 256

#: base[position] = value for each of the pairs, in 8-byte words. Compiled by the driver, for every device.
PTX = """\
.version 7.0
.target sm_80
.address_size 64

.visible .entry machete_patch(.param .align 8 .b8 block[4096])
{
    .reg .pred %past;
    .reg .b32 %thread, %count;
    .reg .b64 %base, %pair, %position, %value;

    ld.param.u32 %count, [block+8];
    mov.u32 %thread, %tid.x;
    setp.ge.u32 %past, %thread, %count;
    @%past bra DONE;
    ld.param.u64 %base, [block];
    cvta.to.global.u64 %base, %base;
    mov.b64 %pair, block;
    mad.wide.u32 %pair, %thread, 16, %pair;
    ld.param.u64 %position, [%pair+16];
    ld.param.u64 %value, [%pair+24];
    shl.b64 %position, %position, 3;
    add.s64 %base, %base, %position;
    st.global.u64 [%base], %value;
DONE:
    ret;
}
"""
ENTRY = "machete_patch"


class Patcher:
    """Patches one memory on one stream. Not to be used by two threads at a time."""

    def __init__(self, address: int, stream: int, device: int) -> None:
        """`address` is that of word 0, a multiple of 8 bytes."""
        self._block, self.parameters = parameter_block(address)
        self._launch = PreparedLaunch(
            load(PTX.encode() + b"\0", ENTRY, 0, device),
            device,
            grid=1,
            block=THREADS,
            shared_bytes=0,
            stream=stream,
            parameters=[ctypes.addressof(self.parameters)],
            cooperative=False,
        )

    def write(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Set words (uint64) at positions (in words), after everything that the stream has been given."""
        for first in range(0, len(positions), CAPACITY):
            fill(self._block, positions[first : first + CAPACITY], values[first : first + CAPACITY])
            self._launch()


def parameter_block(address: int) -> tuple[np.ndarray, ctypes.Array]:
    """The parameter of the kernel, as words and as the memory that holds them."""
    memory = (ctypes.c_uint64 * (2 + 2 * CAPACITY))()
    words = np.ctypeslib.as_array(memory)
    words[0] = address
    return words, memory


def fill(block: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Put at most `CAPACITY` pairs into the parameter block."""
    count = len(positions)
    block[1] = count
    block[2 : 2 + 2 * count : 2] = positions
    block[3 : 3 + 2 * count : 2] = values
