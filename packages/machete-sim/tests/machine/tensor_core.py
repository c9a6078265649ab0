"""One tcgen05 kernel in PTX for tests: operands go to shared memory, a product to tensor memory and back."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from machete.sim import Image, LaunchConfig, Region, Report, run

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "s8": 8, "u8": 8}
DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
FORMATS = {
    "f16": {"f16": 0, "bf16": 1}, "tf32": {"tf32": 2}, "i8": {"u8": 0, "s8": 1},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}, "mxf4": {"e2m1": 1},
}  # fmt: skip
FORMATS |= {"mxf8f6f4": FORMATS["f8f6f4"], "mxf4nvf4": FORMATS["mxf4"]}
DEPTH = {"f16": 16, "tf32": 8, "i8": 32, "f8f6f4": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
ACCUMULATORS = {"f16": 0, "f32": 1, "s32": 2}


def random_matrix(element: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Values that the type holds exactly."""
    rng = np.random.default_rng(seed)
    if element in ("s8", "u8"):
        return rng.integers(*((-128, 128) if element == "s8" else (0, 256)), shape).astype(DTYPES[element])
    values = rng.standard_normal(shape).astype(np.float32)
    if element == "tf32":
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(DTYPES[element])


def packed_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of `bits` bits, the first lowest, as bytes."""
    ones = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    return np.packbits(ones.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def row_bytes(matrix: np.ndarray, element: str, *, packed: bool) -> np.ndarray:
    """Rows of bytes as shared memory holds them. Not packed: 16 narrow elements, then padding up to 16 bytes."""
    bits = BITS[element]
    if bits >= 8:
        return matrix.view(np.uint8).reshape(matrix.shape[0], -1)
    codes = matrix.view(np.uint8)
    if packed:
        return packed_bits(codes, bits)
    groups = packed_bits(codes.reshape(codes.shape[0], -1, 16), bits)
    padded = np.zeros((*groups.shape[:2], 16), np.uint8)
    padded[..., : groups.shape[2]] = groups
    return padded.reshape(codes.shape[0], -1)


@dataclass
class Tile:
    """A matrix in shared memory, and the fields of its descriptor."""

    image: np.ndarray  # bytes
    leading: int
    stride: int
    mode: int = 0

    def descriptor(self) -> int:
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | 1 << 46 | self.mode << 61


def k_major(rows: np.ndarray) -> Tile:
    """Core matrices of 8 rows x 16 bytes, no swizzle: those of one column of matrices are neighbours."""
    count, width = rows.shape
    matrices = rows.reshape(count // 8, 8, width // 16, 16).transpose(2, 0, 1, 3)
    return Tile(np.ascontiguousarray(matrices).reshape(-1), leading=16 * count, stride=128)


def k_major_swizzled(rows: np.ndarray) -> Tile:
    """Rows of 128 bytes, of which the first are used; 16-byte units are XORed with the row."""
    count, width = rows.shape
    wide = np.zeros((count, 8, 16), np.uint8)
    for unit in range(width // 16):
        for row in range(count):
            wide[row, unit ^ row % 8] = rows[row, 16 * unit : 16 * unit + 16]
    return Tile(wide.reshape(-1), leading=16, stride=1024, mode=2)


def mn_major_swizzled(matrix: np.ndarray, atom: int = 16) -> Tile:
    """Lines of 128 bytes along the rows, one for each k: 64 rows of 16 bits, or 32 of 32 bits."""
    size, group = matrix.itemsize, 8 if atom == 16 else 4
    rows, depth = matrix.shape
    per_line = 128 // size
    blocks = rows // per_line
    out = np.zeros((blocks, depth, 128 // atom, atom), np.uint8)
    for block in range(blocks):
        for k in range(depth):
            line = matrix[block * per_line : (block + 1) * per_line, k].copy().view(np.uint8).reshape(-1, atom)
            for unit in range(len(line)):
                out[block, k, unit ^ k % (128 // atom)] = line[unit]
    return Tile(out.reshape(-1), leading=128 * depth, stride=128 * group, mode=2 if atom == 16 else 1)


def instruction(
    kind: str, a: str, b: str, m: int, n: int, *, d: str = "f32", negate: tuple[int, int] = (0, 0),
    mn_major: tuple[int, int] = (0, 0), scale_ids: tuple[int, int] = (0, 0), ue8m0: bool = True, extra: int = 0,
) -> int:  # fmt: skip
    """The instruction descriptor (PTX ISA 9.7.16.4.2)."""
    bits = FORMATS[kind][a] << 7 | FORMATS[kind][b] << 10 | negate[0] << 13 | negate[1] << 14
    bits |= mn_major[0] << 15 | mn_major[1] << 16 | n // 8 << 17 | m // 16 << 24 | extra
    if kind.startswith("mx"):
        return bits | scale_ids[1] << 4 | scale_ids[0] << 29 | ue8m0 << 23
    return bits | ACCUMULATORS[d] << 4


def scale_image(scales: np.ndarray, offset: int = 0) -> np.ndarray:
    """Scales [rows, count] of one byte as tcgen05.cp.32x128b wants them: row r in row r % 32, word r // 32."""
    rows, count = scales.shape
    image = np.zeros((32, 4 * (-(-rows // 128)), 4), np.uint8)
    for row in range(rows):
        image[row % 32, row // 32, offset : offset + count] = scales[row]
    # One tile of 32 rows x 16 bytes for every 128 rows.
    return np.ascontiguousarray(image.reshape(32, -1, 16).transpose(1, 0, 2)).reshape(-1)


@dataclass
class Product:
    """What the kernel does. Tiles are given per CTA of the group."""

    a: list[Tile]
    b: list[Tile]
    opcode: str
    descriptor: int
    columns: int  # of the accumulator in tensor memory
    accumulate: list[str] = field(default_factory=lambda: ["0"])  # enable-input-d of the instructions, in order
    operands: str = ""  # between the instruction descriptor and enable-input-d
    trailing: str = ""
    group: int = 1
    a_in_tensor: bool = False
    a_columns: int = 8
    copy_a: str = "128x256b"
    scales: tuple[np.ndarray, np.ndarray] | None = None
    scale_copy: str = "32x128b.warpx4"
    tiles_of_scales: int = 0  # to copy; 0: all
    loads: str = "32x32b"
    prologue: str = ""  # PTX before the first instruction, by all threads
    before_wait: str = ""  # PTX after the commit, by the thread that issued

    def ptx(self) -> str:
        sizes = [len(self.a[0].image), len(self.b[0].image), *(len(s) for s in self.scales or ())]
        places = [sum(-(-s // 1024) * 1024 for s in sizes[:i]) for i in range(len(sizes) + 1)]
        group = f"cta_group::{self.group}"
        sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if self.group == 2 else "bar.sync 0;"
        copies = "".join(
            f"""add.u32 %r20, %r4, {at}; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r20], [%a{i}], {size}, [%r5];\n"""
            for i, (at, size) in enumerate(zip(places, sizes, strict=False))
        )
        load = "".join(
            f"""add.u32 %r11, %r10, {c}; tcgen05.ld.sync.aligned.32x32b.x8.b32
            {{{", ".join(f"%t{j}" for j in range(8))}}}, [%r11];
            tcgen05.wait::ld.sync.aligned;\n"""
            + "".join(f"st.global.u32 [%d6+{4 * (c + j)}], %t{j};" for j in range(8))
            for c in range(0, self.columns, 8)
        )
        a_column = 256
        a_operand = f"[%r7+{a_column}]" if self.a_in_tensor else "%d1"
        before = ""
        if self.a_in_tensor:
            before += f"add.u32 %r12, %r7, {a_column}; tcgen05.cp.{group}.{self.copy_a} [%r12], %d1;\n"
        scale_operands = ""
        if self.scales is not None:
            columns = (320, 384)
            for which in (0, 1):
                tiles = self.tiles_of_scales or len(self.scales[which]) // 512
                for tile in range(tiles):
                    before += (
                        f"add.u32 %r13, %r7, {columns[which] + 4 * tile}; add.u32 %r14, %r4, "
                        f"{places[2 + which] + 512 * tile}; and.b32 %r14, %r14, 0x3ffff; shr.u32 %r14, %r14, 4;"
                        f"cvt.u64.u32 %d3, %r14; or.b64 %d3, %d3, {8 << 32 | 1 << 46};\n"
                        f"tcgen05.cp.{group}.{self.scale_copy} [%r13], %d3;\n"
                    )
            scale_operands = f"[%r7+{columns[0]}], [%r7+{columns[1]}], "
        products = "".join(
            f"setp.ne.u32 %p2, {enable}, 0; {self.opcode} [%r7], {a_operand}, %d2, %r8, "
            f"{self.operands}{scale_operands}%p2{self.trailing};\n"
            for enable in self.accumulate
        )
        multicast = (", 3", ".multicast::cluster") if self.group == 2 else ("", "")
        return f"""
        .reg .b32 %t<8>; .reg .b16 %mask;
        mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0;
        mov.u32 %r4, tiles; mov.u32 %r5, bars; mov.u32 %r6, slot; add.u32 %r9, %r5, 8;
        @%p1 mbarrier.init.shared::cta.b64 [%r5], 1; @%p1 mbarrier.init.shared::cta.b64 [%r9], 1;
        fence.mbarrier_init.release.cluster; {sync}
        setp.lt.u32 %p3, %r2, 32; @!%p3 bra $allocated;
        tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [%r6], 512;
        tcgen05.relinquish_alloc_permit.{group}.sync.aligned;
        $allocated: bar.sync 0; ld.shared.u32 %r7, [%r6];
        @!%p1 bra $loaded;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {sum(sizes)};
        {copies}
        $loaded: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r5], 0; @!%p4 bra $loaded;
        {self.prologue}
        {sync}
        setp.eq.and.u32 %p5, %r1, 0, %p1; @!%p5 bra $issued;
        and.b32 %r15, %r4, 0x3ffff; shr.u32 %r15, %r15, 4; cvt.u64.u32 %d1, %r15;
        add.s64 %d2, %d1, {places[1] >> 4}; or.b64 %d1, %d1, {self.a[0].descriptor()};
        or.b64 %d2, %d2, {self.b[0].descriptor()}; mov.u32 %r8, {self.descriptor};
        {before}{products}
        tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster{multicast[1]}.b64 [%r9]{multicast[0]};
        {self.before_wait}
        $issued: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r9], 0; @!%p4 bra $issued;
        tcgen05.fence::after_thread_sync;
        shr.u32 %r16, %r2, 5; shl.b32 %r17, %r16, 21; add.u32 %r10, %r7, %r17;
        mad.lo.u32 %r18, %r1, 128, %r2; mul.wide.u32 %d5, %r18, {4 * self.columns};
        add.s64 %d6, %a{len(sizes)}, %d5;
        {load}
        tcgen05.fence::before_thread_sync; bar.sync 0;
        @!%p3 bra $done; tcgen05.dealloc.{group}.sync.aligned.b32 %r7, 512;
        $done: {sync}
        """


def execute(module: Any, product: Product, seed: int = 0) -> tuple[np.ndarray, Report]:
    """The cells of tensor memory [CTA, lane, column] after the product, and the report.

    Every CTA of a pair gets the same addresses, so each has its own copy of the inputs behind one another.
    """
    per_cta = [[product.a[c].image, product.b[c].image, *(product.scales or ())] for c in range(len(product.a))]
    arrays = [np.concatenate(parts) for parts in zip(*per_cta, strict=True)]
    out = np.zeros((product.group, 128, product.columns), np.uint32)
    offsets = "".join(
        f"mul.wide.u32 %d9, %r3, {len(part)}; add.s64 %a{i}, %a{i}, %d9;\n" for i, part in enumerate(per_cta[0])
    )
    shared = sum(-(-len(part) // 1024) * 1024 for part in per_cta[0])
    before = f".shared .align 1024 .b8 tiles[{shared}];\n.shared .align 8 .b64 bars[2];\n.shared .align 4 .b32 slot;"
    body = f"mov.u32 %r3, %cluster_ctarank;\n{offsets}{product.ptx()}"
    text = module(body, parameters=len(arrays) + 1, before=before, target="sm_100a").replace(
        ".version 8.8", ".version 9.0"
    )
    image = Image.from_ptx(text, arch="sm_100a")
    storage = [aligned(array) for array in arrays]
    params = b"".join(struct.pack("<Q", array.ctypes.data) for array in [*storage, out])
    regions = [Region(a.ctypes.data, a.nbytes, f"operand {i}") for i, a in enumerate([*storage, out])]
    config = LaunchConfig((product.group, 1, 1), (128, 1, 1), cluster=(product.group, 1, 1), seed=seed)
    return out, run(image, params, config, regions)


def aligned(array: np.ndarray) -> np.ndarray:
    storage = np.zeros(array.nbytes + 128, np.uint8)
    start = -storage.ctypes.data % 128
    storage[start : start + array.nbytes] = array
    return storage[start : start + array.nbytes]
