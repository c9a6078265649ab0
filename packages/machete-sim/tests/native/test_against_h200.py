"""The same PTX on the simulator and on an H200: kernels and record are in the folder h200.

To record again, on a machine with an H200, NumPy and pytest: `python test_against_h200.py h200/recorded.json`. The
driver compiles the PTX. Each case is a kernel, its inputs (from a hash, so that no library's generator matters) and, in
the record, a digest of what it wrote; or the CUDA error it ended with.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FOLDER = Path(__file__).with_name("h200")
RECORD = FOLDER / "recorded.json"


def kernel(name: str, **parts: object) -> str:
    """The PTX of h200/{name}.ptx with its $parts filled in."""
    return Template((FOLDER / f"{name}.ptx").read_text()).substitute(parts)


def hashed(count: int, seed: int) -> NDArray[np.uint32]:
    """`count` well mixed 32-bit words (the finaliser of MurmurHash3)."""
    x = np.arange(count, dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return x


@dataclass
class TensorMapSpec:
    """What cuTensorMapEncodeTiled is asked for; the address is that of the case's global buffer."""

    dtype: int  # hardware code
    dim: list[int]
    stride: list[int]  # bytes, without the innermost
    box: list[int]
    elem_stride: list[int]
    swizzle: int

    # CUtensorMapDataType of the hardware's codes used here
    DRIVER_TYPES = {0: 0, 1: 1, 2: 2, 4: 4, 6: 6, 7: 7, 10: 9}
    BYTES = {0: 1, 1: 2, 2: 4, 4: 8, 6: 2, 7: 4, 10: 2}


@dataclass
class Case:
    """A kernel `k(in, out, [tensor map], words…)`, one CTA row of `grid` x `block` threads."""

    name: str
    ptx: str
    source: NDArray[np.uint32]
    out_words: int
    grid: int = 1
    block: int = 32
    words: list[int] = field(default_factory=list)  # further 64-bit parameters
    tensor_map: TensorMapSpec | None = None
    map_of_out: bool = False  # the map describes `out`, not `in`
    result_type: str = ""  # PTX type of the words of `out`, if they are floats that may be NaN


# ---- scalar instructions ---------------------------------------------------------------------------------------------

SCALARS = 8192

# instruction: register classes of d and of its sources (r: 32 bits, h: the low 16, q: 64)
SCALAR_FORMS = {
    **{f"cvt.{m}.{t}.f32": "h:r" for t in ("f16", "bf16") for m in ("rn", "rz", "rn.relu", "rn.satfinite")},
    **{f"cvt.{m}.tf32.f32": "r:r" for m in ("rn", "rz", "rn.relu")},
    **{f"cvt.rn.satfinite.{m}{t}x2.f32": "h:rr" for t in ("e4m3", "e5m2") for m in ("", "relu.")},
    **{f"cvt.rn.satfinite.{t}x2.f16x2": "h:r" for t in ("e4m3", "e5m2")},
    **{f"cvt.rn.f16x2.{t}x2": "r:h" for t in ("e4m3", "e5m2")},
    **{f"cvt.rn.{t}x2.f32": "r:rr" for t in ("f16", "bf16")},
    **{f"cvt.f32.{t}": "r:h" for t in ("f16", "bf16")},
    **{f"cvt.rn.{t}.s32": "h:r" for t in ("f16", "bf16")},
    **{f"cvt.{m}.{t}.f32": "r:r" for m in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32")},
    **{f"cvt.{m}.f32.{t}": "r:r" for m in ("rn", "rz", "rm", "rp") for t in ("s32", "u32")},
    **{f"cvt.{m}.f32.f32": "r:r" for m in ("rni", "rzi", "rmi", "rpi")},
    "cvt.rzi.ftz.s32.f32": "r:r",
    "cvt.rzi.s64.f32": "q:r",
    "cvt.rn.f32.s64": "r:q",
    "cvt.rni.f16.f16": "h:h",
    "cvt.rzi.s16.f16": "h:h",
    **{f"{op}.{m}.f32": "r:rr" for op in ("add", "sub", "mul") for m in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat")},
    **{f"fma.{m}.f32": "r:rrr" for m in ("rn", "rz", "rm", "rp", "rn.ftz", "rn.sat")},
    **{f"{op}.rn.f32": ("r:rr" if op == "div" else "r:r") for op in ("div", "rcp", "sqrt")},
    **{f"{op}.{m}f32": "r:rr" for op in ("min", "max") for m in ("", "ftz.", "NaN.")},
    **{f"{op}.{t}": "r:r" for op in ("neg", "abs") for t in ("f32", "f16x2", "bf16x2")},
    **{f"{op}.rn.{t}": "r:rr" for op in ("add", "sub", "mul") for t in ("f16x2", "bf16x2")},
    **{f"fma.rn.{m}{t}": "r:rrr" for t in ("f16x2", "bf16x2") for m in ("", "relu.")},
    **{f"{op}.{m}{t}": "r:rr" for op in ("min", "max") for t in ("f16x2", "bf16x2") for m in ("", "NaN.")},
    **{f"{op}.rn.{t}": "h:hh" for op in ("add", "mul") for t in ("f16", "bf16")},
    "fma.rn.f32x2": "q:qqq",
    "add.rn.f32x2": "q:qq",
    **{f"{op}.{t}": "r:rr" for op in ("min", "max") for t in ("s32", "u32")},
    **{f"mul.{m}.{t}": "r:rr" for m in ("lo", "hi") for t in ("s32", "u32")},
    "mad.lo.s32": "r:rrr",
    "mad.hi.u32": "r:rrr",
    "mul.wide.s32": "q:rr",
    "mad.wide.u32": "q:rrq",
    "mul.hi.u64": "q:qq",
    "sad.s32": "r:rrr",
    **{f"{op}.b32": "r:r" for op in ("popc", "clz", "brev", "not")},
    "bfind.s32": "r:r",
    "bfind.shiftamt.u32": "r:r",
    **{f"{op}.{t}": "r:rr" for op in ("div", "rem") for t in ("s32", "u32")},
    **{f"{op}.b32": "r:rr" for op in ("and", "or", "xor", "shl")},
    **{f"shr.{t}": "r:rr" for t in ("s32", "u32", "b32")},
    **{f"shf.{d}.{m}.b32": "r:rrr" for d in ("l", "r") for m in ("clamp", "wrap")},
    **{f"bfe.{t}": "r:rrr" for t in ("s32", "u32")},
    **{f"prmt.b32{m}": "r:rrr" for m in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")},
    "dp4a.s32.s32": "r:rrr",
    "dp4a.u32.s32": "r:rrr",
}
# Not on sm_90, or not before.
for only_newer in ("fma.rn.f32x2", "add.rn.f32x2"):
    del SCALAR_FORMS[only_newer]


def scalar_inputs() -> NDArray[np.uint32]:
    """Three operands of 8192 words: random bits, halves and floats near 1, ties of narrower formats, specials."""
    halves_and_brains = (0x7C00FC00, 0x7E01FE01, 0x7F80FF80, 0x7FC1FFC1, 0x00018001)
    nans_and_ends = (
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFFC00001,
        0x7F800001,
        0x7F7FFFFF,
        1,
        0x80000001,
        0,
        0x80000000,
    )
    edges_of_formats = (0x477FEFFF, 0x477FF000, 0x43E80000, 0x43E7FFFF, 0x43F00000, 0x3F000000, 0x4F000000, 0xCF000000)
    integers = (0x7FFFFFFF, 0xFFFFFFFF, 32, 31)
    specials = np.array([*halves_and_brains, *nans_and_ends, *edges_of_formats, *integers], np.uint32)
    x, kind = hashed(3 * SCALARS, 1), hashed(3 * SCALARS, 2)
    choice = kind % 8
    near_one = x & np.uint32(0x80FFFFFF) | (np.uint32(112) + (kind >> np.uint32(8)) % 30) << np.uint32(23)
    tie = near_one & np.uint32(0xFFFFE000) | (kind >> np.uint32(20)) % 2 << np.uint32(12)
    halves = x & np.uint32(0x83FF83FF) | np.uint32(0x3C003C00) ^ (kind >> np.uint32(9)) % 32 << np.uint32(10)
    brains = x & np.uint32(0x807F807F) | np.uint32(0x3F803F80) ^ (kind >> np.uint32(9)) % 8 << np.uint32(7)
    small = x % 64
    table = [x, near_one, tie, halves, brains, small, specials[(kind >> np.uint32(8)) % specials.size], x]
    return np.choose(choice, table).astype(np.uint32)


def scalar_case(text: str, classes: str) -> Case:
    target, sources = classes.split(":")
    names, body = [], ""
    for index, kind in enumerate(sources):
        names.append({"r": f"%r{10 + index}", "h": f"%h{index}", "q": f"%q{10 + index}"}[kind])
        if kind == "h":
            body += f"mov.b32 {{%h{index}, %h9}}, %r{10 + index};\n"
        if kind == "q":
            body += f"mov.b64 %q{10 + index}, {{%r{10 + index}, %r{10 + (index + 1) % 3}}};\n"
    opcode, *immediate = text.split(" ")
    result = {"r": "%r20", "h": "%h8", "q": "%q20"}[target]
    body += f"{opcode} {', '.join([result, *names, *immediate])};\n"
    body += {
        "r": "",
        "h": "cvt.u32.u16 %r20, %h8;\n",
        "q": "mov.b64 {%r20, %r21}, %q20;\nxor.b32 %r20, %r20, %r21;\n",
    }[target]
    ptx = kernel("scalar", body=body, second=4 * SCALARS, third=8 * SCALARS)
    parts = text.split(".")
    result_type = parts[-2] if parts[0] == "cvt" else parts[-1]
    return Case(f"scalar {text}", ptx, scalar_inputs(), SCALARS, SCALARS // 256, 256, result_type=result_type)


# ---- tensor cores ----------------------------------------------------------------------------------------------------


def packed_integers(name: str, words: int, seed: int) -> NDArray[np.uint32]:
    """Small integers in an operand format, packed into words: all sums are exact."""
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "s8": 8, "u8": 8}[name]
    values = (hashed(words * 32 // bits, seed) % 17).astype(np.int32) - 8
    if name in ("s8", "u8"):
        return values.astype(np.int8).view(np.uint32)
    single = values.astype(np.float32).view(np.uint32)
    if name == "tf32":
        return single | hashed(words, seed + 1) % 0x2000 * (values != 0).astype(np.uint32)  # low bits are ignored
    if name == "bf16":
        return (single >> 16).astype(np.uint16).view(np.uint32)
    if name == "f16":
        return values.astype(np.float16).view(np.uint32)
    magnitude = ((single & 0x7FFFFFFF) - (120 << 23) >> 20) | single >> 24 & 0x80
    return np.where(values == 0, 0, magnitude).astype(np.uint8).view(np.uint32)


def registers(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


# shape and types, packed operands' format, registers of a, b, d
MMA_FORMS = [
    *((f"m16n8k{k}.row.col.f32.{t}.{t}.f32", t, k // 4, k // 8, 4) for t in ("f16", "bf16") for k in (8, 16)),
    *((f"m16n8k{k}.row.col.f16.f16.f16.f16", "f16", k // 4, k // 8, 2) for k in (8, 16)),
    *((f"m16n8k{k}.row.col.f32.tf32.tf32.f32", "tf32", k // 2, k // 4, 4) for k in (4, 8)),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "e4m3", 4, 2, 4),
    ("m16n8k32.row.col.f32.e5m2.e4m3.f32", "e4m3", 4, 2, 4),
    *((f"m16n8k{k}.row.col.s32.{t}.s32", "s8", k // 8, k // 16, 4) for k in (16, 32) for t in ("s8.s8", "u8.s8")),
    ("m16n8k32.row.col.satfinite.s32.s8.u8.s32", "s8", 4, 2, 4),
]


def mma_case(text: str, name: str, a: int, b: int, d: int) -> Case:
    loads = "".join(
        f"ld.global.b32 %{prefix}{i}, [%q4+{128 * (first + i)}];\n"
        for prefix, first, count in (("a", 0, a), ("b", 4, b), ("c", 6, d))
        for i in range(count)
    )
    stores = "".join(f"st.global.b32 [%q5+{128 * i}], %d{i};\n" for i in range(d))
    instruction = f"mma.sync.aligned.{text} " + ", ".join(
        registers(prefix, count) for prefix, count in (("d", d), ("a", a), ("b", b), ("c", d))
    )
    ptx = kernel("mma", loads=loads, instruction=instruction, stores=stores)
    accumulators = {"s32": hashed(128, 77), "f16": packed_integers("f16", 128, 78)}.get(
        text.rsplit(".", 1)[1], packed_integers("tf32", 128, 79) & np.uint32(0xFFFFE000)
    )
    return Case(f"mma {text}", ptx, np.concatenate([packed_integers(name, 192, 5), accumulators]), 32 * d)


# types, format of operands, accumulators per lane, A from registers, modifiers after the descriptors and scale-d
WGMMA_FORMS = [
    *(("m64n32k16.f32.bf16.bf16", "bf16", 16, False, f"1, 1, {a}, {b}") for a in (0, 1) for b in (0, 1)),
    ("m64n32k16.f32.f16.f16", "f16", 16, False, "-1, 1, 0, 0"),
    ("m64n32k16.f16.f16.f16", "f16", 8, False, "1, 1, 1, 0"),
    ("m64n32k16.f32.f16.f16", "f16", 16, True, "1, -1, 1"),
    ("m64n32k8.f32.tf32.tf32", "tf32", 16, False, "1, 1"),
    ("m64n32k8.f32.tf32.tf32", "tf32", 16, True, "-1, 1"),
    ("m64n32k32.f32.e4m3.e4m3", "e4m3", 16, False, "1, 1"),
    ("m64n32k32.f32.e4m3.e4m3", "e4m3", 16, True, "1, 1"),
    ("m64n32k32.s32.s8.s8", "s8", 16, False, ""),
]
OPERAND_BYTES = 40 * 1024


def wgmma_case(form: tuple[str, str, int, bool, str], number: int) -> Case:
    """One wgmma whose descriptors are random: start, offsets, swizzle and (in every third case) base offset."""
    text, name, count, from_registers, tail = form
    dice = random.Random(f"{text} {from_registers} {tail} {number}")
    descriptors = []
    for _ in range(2):
        start = dice.randrange(768) & ~(0 if number % 2 else 63)
        base_offset = dice.randrange(8) if number % 3 == 2 else 0
        descriptors.append(
            start | dice.randrange(128) << 16 | dice.randrange(128) << 32 | base_offset << 49 | dice.randrange(4) << 62
        )
    loads = "".join(f"ld.global.b32 %a{i}, [%q6+{128 * 4 * i}];\n" for i in range(4))
    loads += "".join(f"ld.global.b32 %d{i}, [%q6+{128 * 4 * (4 + i)}];\n" for i in range(count))
    stores = "".join(f"st.global.b32 [%q5+{128 * 4 * i}], %d{i};\n" for i in range(count))
    operand_a = registers("a", 4) if from_registers else "%q10"
    operands = [registers("d", count), operand_a, "%q11", "%p2", *([tail] if tail else [])]
    instruction = f"wgmma.mma_async.sync.aligned.{text} {', '.join(operands)}"
    ptx = kernel("wgmma", operand_bytes=OPERAND_BYTES, loads=loads, instruction=instruction, stores=stores)
    d_type = text.split(".")[1]
    accumulators = {"s32": hashed(2048, 11), "f16": packed_integers("f16", 2048, 12)}.get(
        d_type, packed_integers("tf32", 2048, 13) & np.uint32(0xFFFFE000)
    )
    source = np.concatenate([packed_integers(name, OPERAND_BYTES // 4 + 512, 14), accumulators])
    where = "registers" if from_registers else "shared"
    return Case(
        f"wgmma {text} a in {where}, {tail or 'plain'}, descriptors {number}",
        ptx,
        source,
        128 * count,
        block=128,
        words=[*descriptors, number % 4],
    )


# ---- TMA -------------------------------------------------------------------------------------------------------------

TILE_WINDOW = 32 * 1024


def tile_case(name: str, spec: TensorMapSpec, coords: list[int], offset: int, store: bool) -> Case:
    """Loads a tile into shared memory full of 0xa5 and copies that out, or stores a pattern from shared memory."""
    rank = len(spec.dim)
    size = spec.BYTES[spec.dtype]
    transaction = spec.box[0] * size
    for extent, step in zip(spec.box[1:], spec.elem_stride[1:], strict=True):
        transaction *= -(-extent // step)
    at = "{" + ", ".join(f"%c{i}" for i in range(rank)) + "}"
    load_coords = "".join(f"ld.param.u32 %c{i}, [k_c{i}];\n" for i in range(rank))
    params = "".join(f", .param .u64 k_c{i}" for i in range(rank))
    ptx = kernel(
        "tile_store" if store else "tile_load",
        params=params,
        load_coords=load_coords,
        window=TILE_WINDOW,
        rank=rank,
        at=at,
        offset=offset,
        transaction=transaction,
    )
    return Case(
        name,
        ptx,
        hashed(32 * 1024, 21),
        (128 if store else TILE_WINDOW // 1024) * 256,
        block=128,
        words=[c & 0xFFFFFFFF for c in coords],
        tensor_map=spec,
        map_of_out=store,
    )


def random_tile(number: int, store: bool) -> Case:
    dice = random.Random(f"tile {number} {store}")
    dtype = dice.choice([0, 1, 2, 4, 6, 7, 10])
    size = TensorMapSpec.BYTES[dtype]
    unit = 16 // size
    swizzle = dice.choice([0, 32, 64, 128])
    rank = dice.choice([2, 2, 3, 5] if store else [1, 2, 2, 3, 5])
    most = [8, 4, 2, 2] if rank == 5 else [16, 4]
    box = [unit * dice.randint(1, swizzle // 16 or 8), *(dice.randint(1, most[i]) for i in range(rank - 1))]
    dim = [
        dice.randint(1, 12) * unit,
        *(dice.randint(1, [24 if rank == 2 else 8, 5, 3, 3][i]) for i in range(rank - 1)),
    ]
    if number % 2 and unit > 1:
        dim[0] -= dice.randrange(unit)
    stride, pitch = [], -(-dim[0] * size // 16) * 16 + 16 * dice.randrange(3)
    for extent in dim[1:]:
        stride.append(pitch)
        pitch *= extent
    elem_stride = [1, *(dice.choice([1, 1, 1, 2, 3]) for _ in range(rank - 1))]
    low = 0 if store else -1
    coords = [unit * dice.randint(low, dim[0] // unit), *(dice.randint(low, extent) for extent in dim[1:])]
    spec = TensorMapSpec(dtype, dim, stride, box, elem_stride, swizzle)
    return tile_case(f"tile {'store' if store else 'load'} {number}", spec, coords, 128 * dice.randrange(10), store)


def faulting_tiles() -> Iterator[Case]:
    plain = TensorMapSpec(10, [64, 16], [128], [16, 8], [1, 1], 0)
    yield tile_case("tile load at 64 bytes of shared memory", plain, [0, 0], 64, False)
    yield tile_case("tile load from an innermost coordinate off 16 bytes", plain, [4, 0], 0, False)
    yield tile_case("tile store to an innermost coordinate off 16 bytes", plain, [4, 0], 0, True)
    yield tile_case("tile store to a negative row", plain, [0, -1], 0, True)
    yield tile_case("tile store to a negative column", plain, [-8, 0], 0, True)


def cases() -> Iterator[Case]:
    for text, classes in SCALAR_FORMS.items():
        yield scalar_case(text, classes)
    for form in MMA_FORMS:
        yield mma_case(*form)
    for form in WGMMA_FORMS:
        for number in range(12):
            yield wgmma_case(form, number)
    for number in range(60):
        yield random_tile(number, store=False)
        yield random_tile(number, store=True)
    yield from faulting_tiles()


CASES = {case.name: case for case in cases()}


def digest(case: Case, out: NDArray[np.uint32]) -> str:
    """Of the words written. Which NaN a float instruction gives is not compared: the PTX ISA leaves most open."""
    infinity = {"f32": 0x7F800000, "f16": 0x7C00, "f16x2": 0x7C00, "bf16": 0x7F80, "bf16x2": 0x7F80}.get(
        case.result_type
    )
    if infinity is not None:
        out = out.copy().view(np.uint32 if case.result_type == "f32" else np.uint16)
        largest = np.iinfo(out.dtype).max >> 1
        out[(out & largest) > infinity] = largest
    return hashlib.sha256(out.tobytes()).hexdigest()[:16]


# ---- on the simulator ------------------------------------------------------------------------------------------------


def aligned_buffer(words: int) -> NDArray[np.uint32]:
    """Zeros at a multiple of 128 bytes."""
    store = np.zeros(words + 32, np.uint32)
    return store[-store.ctypes.data % 128 // 4 :][:words]


def simulate(case: Case) -> str:
    from machete.sim import Image, LaunchConfig, Region, run  # the card's machine has no machete
    from machete.sim._core import engine

    source, out = aligned_buffer(case.source.size), aligned_buffer(case.out_words)
    source[:] = case.source
    params = struct.pack("<QQ", source.ctypes.data, out.ctypes.data)
    if case.tensor_map is not None:
        spec = case.tensor_map
        address = (out if case.map_of_out else source).ctypes.data
        size = spec.BYTES[spec.dtype]
        raw = engine.encode_tensormap(
            address, spec.dtype, spec.dim, [size, *spec.stride], spec.box, spec.elem_stride, spec.swizzle
        )
        params = params.ljust(64, b"\0") + raw.tobytes()
    params += struct.pack(f"<{len(case.words)}Q", *case.words)
    memory = [
        Region(source.ctypes.data, source.nbytes, "in", writable=False),
        Region(out.ctypes.data, out.nbytes, "out"),
    ]
    config = LaunchConfig(grid=(case.grid, 1, 1), block=(case.block, 1, 1), dynamic_shared=0, sms=None)
    run(Image.from_ptx(case.ptx, arch="sm_90a"), params, config, memory)
    return digest(case, out)


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    return json.loads(RECORD.read_text())


def test_the_record_is_of_these_cases(recorded: dict[str, str]) -> None:
    assert list(recorded) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, recorded: dict[str, str]) -> None:
    from machete.sim import SimulationError

    if recorded[name].startswith("error"):
        with pytest.raises(SimulationError):
            simulate(CASES[name])
    else:
        assert simulate(CASES[name]) == recorded[name]


# ---- on the card -----------------------------------------------------------------------------------------------------


def on_card(names: list[str]) -> dict[str, str]:
    """Runs cases through the CUDA driver. Stops at the first error, which ends a process's use of the card."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if (status := getattr(cuda, name)(*arguments)) != 0:
            raise RuntimeError(f"error {status} of {name}")

    call("cuInit", 0)
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)

    def device_buffer(words: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * words))
        return address

    out: dict[str, str] = {}
    for name in names:
        case = CASES[name]
        call("cuModuleLoadData", ctypes.byref(module), case.ptx.encode())
        call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        source, target = device_buffer(case.source.size), device_buffer(case.out_words)
        call(
            "cuMemcpyHtoD_v2", source, case.source.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(case.source.nbytes)
        )
        call("cuMemsetD8_v2", target, ctypes.c_ubyte(0), ctypes.c_size_t(4 * case.out_words))
        parameters: list[Any] = [source, target]
        if (spec := case.tensor_map) is not None:
            buffer = (ctypes.c_ubyte * 256)()
            start = -ctypes.addressof(buffer) % 64
            tensor_map = (ctypes.c_ubyte * 128).from_buffer(buffer, start)
            rank = len(spec.dim)
            call(
                "cuTensorMapEncodeTiled",
                ctypes.byref(tensor_map),
                spec.DRIVER_TYPES[spec.dtype],
                rank,
                target if case.map_of_out else source,
                (ctypes.c_uint64 * rank)(*spec.dim),
                (ctypes.c_uint64 * rank)(*spec.stride),
                (ctypes.c_uint32 * rank)(*spec.box),
                (ctypes.c_uint32 * rank)(*spec.elem_stride),
                0,
                {0: 0, 32: 1, 64: 2, 128: 3}[spec.swizzle],
                0,
                0,
            )
            parameters.append(tensor_map)
        parameters += [ctypes.c_uint64(word) for word in case.words]
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(p) for p in parameters))
        try:
            call("cuLaunchKernel", function, case.grid, 1, 1, case.block, 1, 1, 0, None, pointers, None)
            call("cuCtxSynchronize")
        except RuntimeError as failure:
            out[name] = str(failure)
            return out
        result = np.zeros(case.out_words, np.uint32)
        call("cuMemcpyDtoH_v2", result.ctypes.data_as(ctypes.c_void_p), target, ctypes.c_size_t(result.nbytes))
        out[name] = digest(case, result)
        for address in (source, target):
            call("cuMemFree_v2", address)
        call("cuModuleUnload", module)
    return out


def record(path: Path) -> None:
    """One process after another, each from where the last one stopped."""
    done: dict[str, str] = {}
    while left := [name for name in CASES if name not in done]:
        worker = subprocess.run(
            [sys.executable, __file__, "--worker", left[0]], capture_output=True, text=True, check=False
        )
        if worker.returncode:
            raise RuntimeError(f"after {list(done)[-1:]}: {worker.stderr}")
        done |= json.loads(worker.stdout)
    path.write_text(json.dumps(done, indent=0) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        names = list(CASES)
        print(json.dumps(on_card(names[names.index(sys.argv[2]) :])))
    else:
        record(Path(sys.argv[1]))
