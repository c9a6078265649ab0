"""A compiled kernel as bytes: what the GPU, the simulator and a disk cache share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Artefact:
    """PTX and machine code of one kernel.

    `arch` is the target's name, `entry` the kernel's symbol, `threads` the block size, `shared_bytes` the dynamic
    shared memory, `compile_seconds` how long tracing and compiling took.
    """

    arch: str
    entry: str
    ptx: str
    cubin: bytes
    threads: int
    shared_bytes: int
    compile_seconds: float
