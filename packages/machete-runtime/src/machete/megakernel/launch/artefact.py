"""A compiled kernel as bytes: what the GPU, the simulator, the disk cache and saved kernels share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Artefact:
    """PTX and machine code of one kernel.

    Attributes:
        arch: the target's name.
        entry: the kernel's symbol.
        ptx, cubin: the code.
        threads: the block size.
        shared_bytes: dynamic shared memory of a CTA.
        compile_seconds: how long tracing and compiling took, whenever that was.
        programmatic: its CTAs need not be resident together: they may start one by one beside those of the kernel ahead
            of it in its stream. As those of all our kernels, they wait for that one (PTX ISA, "griddepcontrol").
        cached: it was read from a file, and not compiled by this process.
    """

    arch: str
    entry: str
    ptx: str
    cubin: bytes
    threads: int
    shared_bytes: int
    compile_seconds: float
    programmatic: bool = False
    cached: bool = False

    def header(self) -> dict[str, Any]:
        """All that identifies it but the code, as JSON has it."""
        return {
            "arch": self.arch,
            "entry": self.entry,
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
            "programmatic": self.programmatic,
        }

    def sections(self) -> dict[str, bytes]:
        """The code, as sections of a file."""
        return {"ptx": self.ptx.encode(), "cubin": self.cubin}

    @classmethod
    def read(cls, header: Mapping[str, Any], sections: Mapping[str, bytes], compile_seconds: float) -> Artefact:
        """The artefact that `header()` and `sections()` describe."""
        return cls(
            **header,
            ptx=sections["ptx"].decode(),
            cubin=sections["cubin"],
            compile_seconds=compile_seconds,
            cached=True,
        )
