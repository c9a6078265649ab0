"""Small PTX kernels for tests."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from machete.sim import Image, LaunchConfig, Region, Report, run

REGISTERS = """
    .reg .pred %p<32>;
    .reg .b16 %h<32>;
    .reg .b32 %r<64>;
    .reg .b64 %d<64>;
    .reg .b128 %q<4>;
"""


def module(body: str, *, parameters: int = 0, before: str = "", target: str = "sm_90a") -> str:
    """A module with one kernel `k`; parameter i is loaded into the 64-bit register %a{i}."""
    names = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "\n".join(f"    ld.param.u64 %a{i}, [p{i}];" for i in range(parameters))
    return (
        f".version 8.8\n.target {target}\n.address_size 64\n{before}\n.visible .entry k({names})\n{{\n{REGISTERS}"
        f"    .reg .b64 %a<{max(parameters, 1)}>;\n{loads}\n{body}\n    ret;\n}}\n"
    )


def launch(
    body: str,
    arrays: Sequence[np.ndarray] = (),
    *,
    threads: int = 32,
    ctas: int = 1,
    before: str = "",
    names: Sequence[str] | None = None,
    **config: Any,
) -> Report:
    """Assemble and run a kernel whose parameters are the addresses of the arrays."""
    image = Image.from_ptx(module(body, parameters=len(arrays), before=before))
    params = b"".join(struct.pack("<Q", a.ctypes.data) for a in arrays)
    regions = [Region(a.ctypes.data, a.nbytes, names[i] if names else f"p{i}") for i, a in enumerate(arrays)]
    config = {"grid": (ctas, 1, 1), "block": (threads, 1, 1)} | config
    return run(image, params, LaunchConfig(**config), regions)


NUMPY = {
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16, "b32": np.uint32,
    "u32": np.uint32, "s32": np.int32, "f32": np.float32, "f16x2": np.uint32, "bf16x2": np.uint32, "u16x2": np.uint32,
    "s16x2": np.uint32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64, "f32x2": np.uint64,
    "u8": np.uint8, "s8": np.int8,
}  # fmt: skip
_PREFIX = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}


def compute(instruction: str, result: str, *operands: tuple[str, Any]) -> np.ndarray:
    """The result of `op.type {d}, {0}, {1}` for arrays of operands, one element a thread.

    operands are (type, array). Predicates: the type "pred" loads a 0/1 array; a result "pred" stores 0 or 1.
    """
    count = len(np.asarray(operands[0][1])) if operands else 32
    padded = -(-count // 32) * 32
    arrays, lines, names = [], [], []
    lines.append("mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;")
    for index, (kind, values) in enumerate(operands):
        dtype = np.uint32 if kind == "pred" else NUMPY[kind]
        array = np.zeros(padded, dtype)
        array[:count] = values
        arrays.append(array)
        size = array.itemsize
        width = 8 * size
        register = f"{_PREFIX[width]}{10 + index}"
        lines.append(
            f"mul.wide.u32 %d1, %r3, {size}; add.s64 %d2, %a{index}, %d1; ld.global.b{width} {register}, [%d2];"
        )
        if kind == "pred":
            lines.append(f"setp.ne.u32 %p{10 + index}, {register}, 0;")
            register = f"%p{10 + index}"
        names.append(register)
    out = np.zeros(padded, np.uint32 if result == "pred" else NUMPY[result])
    width = 8 * out.itemsize
    target = "%p9" if result == "pred" else f"{_PREFIX[width]}9"
    lines.append(instruction.format(*names, d=target) + ";")
    if result == "pred":
        lines.append("selp.u32 %r9, 1, 0, %p9;")
        target = "%r9"
    lines.append(f"mul.wide.u32 %d1, %r3, {out.itemsize}; add.s64 %d2, %a{len(arrays)}, %d1;")
    lines.append(f"st.global.b{width} [%d2], {target};")
    threads = min(padded, 256)
    while padded % threads:
        threads -= 32
    launch("\n".join(lines), [*arrays, out], threads=threads, ctas=padded // threads, sms=4)
    return out[:count]


@pytest.fixture(name="launch")
def launch_fixture() -> Callable[..., Report]:
    return launch


@pytest.fixture(name="compute")
def compute_fixture() -> Callable[..., np.ndarray]:
    return compute


@pytest.fixture(name="module")
def module_fixture() -> Callable[..., str]:
    return module
