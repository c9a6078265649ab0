"""Trace and compile a persistent kernel: kinds and a shared-memory layout in, PTX and cubin out. Needs no GPU.

CuTe DSL is used as the device compiler only. Extents, strides and addresses are data and play no part.
"""

import contextlib
import logging
import re
import tempfile
import time
from pathlib import Path

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.runtime import make_fake_stream

from machete.megakernel.abi.errors import LaunchError
from machete.megakernel.abi.target import Target
from machete.megakernel.device.kernel import PersistentKernel
from machete.megakernel.device.tracing import Hooks
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.shared import SharedLayout

from .artefact import Artefact
from .cache.traced import Recorder

logger = logging.getLogger("machete.megakernel")

_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(")


def compile_kernel(
    kinds: tuple[Kind, ...],
    layout: SharedLayout,
    target: Target,
    flags: str,
    hooks: Hooks | None = None,
    programmatic: bool = False,
    recorder: Recorder | None = None,
) -> Artefact:
    """The code for these kinds; a recorder sees what it is traced from. One thread at a time."""
    names = ", ".join(sorted({kind.op.__name__ for kind in kinds}))
    logger.info("compiling %d kind(s) for %s: %s", len(kinds), target.name, names)
    started = time.perf_counter()
    arguments = (
        Int64(0),
        Int64(0),
        Int64(0),
        Int64(0),
        Int64(0),
        Int32(0),
        Int64(0),
        Int32(0),
        Int64(0),
        Int64(0),
        None if hooks is None else Int64(0),
        make_fake_stream(),
    )
    kernel = PersistentKernel(kinds, layout, target.throttle, hooks)
    with tempfile.TemporaryDirectory(prefix="machete-compile-") as folder:
        with contextlib.nullcontext() if recorder is None else recorder.recording():
            compiled = cute.compile(
                kernel.launch,
                *arguments,
                options=f"--gpu-arch {target.name} {flags} --dump-dir {folder}",
            )
        ptx = _contents(compiled.artifacts.PTX).rstrip(b"\0").decode()
        cubin = _contents(compiled.artifacts.CUBIN)
    entries = _ENTRY.findall(ptx)
    if len(entries) != 1:
        raise LaunchError(
            what=f"the compiled kernel has {len(entries)} entry points, expected one",
            where=f"compiling {names} for {target.name}",
            why="an op launched a kernel of its own",
            fix="remove .launch() calls from the op's phases",
        )
    seconds = time.perf_counter() - started
    logger.info("compiled in %.2f s: %d bytes of PTX, %d bytes of machine code", seconds, len(ptx), len(cubin))
    return Artefact(target.name, entries[0], ptx, cubin, kernel.threads, layout.total_bytes, seconds, programmatic)


def _contents(artifact: bytes | str) -> bytes:
    """An artefact of the DSL is its contents, or the name of a file that holds them."""
    if isinstance(artifact, bytes):
        return artifact
    if len(artifact) < 4096 and "\n" not in artifact:
        return Path(artifact.rstrip("\0")).read_bytes()
    return artifact.encode()
