"""Tensor-core instructions of warps and warpgroups (PTX ISA 9.7.14, 9.7.15)."""

from typing import TYPE_CHECKING

from ..ptx import Vector
from ..registers import Register
from .form import Groups, form
from .types import ADDR64

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

# In the order of Element in native/matrix.hpp, with the bits of an element.
ELEMENTS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f32": 32, "s32": 32, "b1": 1}
NUMBERS = {name: index for index, name in enumerate(ELEMENTS)}
BLACKWELL = ("sm_100a", "sm_100f", "sm_120a", "sm_120f")
SHARED = "[.{space:shared::cta|shared}]"


def _registers(asm: "Assembler", operand: "Operand", count: int, *, dest: bool = False) -> list[int]:
    """`count` 32-bit registers; PTX allows a single one without braces."""
    items = asm.vector(operand, count) if isinstance(operand, Vector) or count > 1 else (operand,)
    return [asm.dest(item, "b32") if dest else asm.source(item, "b32") for item in items]


@form(f"ldmatrix.sync.aligned.m8n8.x{{count:1|2|4}}[.{{trans:trans}}]{SHARED}.b16", section="9.7.14.5.15")
def ldmatrix(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    count = int(groups["count"])
    a, imm, flags = asm.address(ops[1], "shared" if "space" in groups else "generic")
    registers = _registers(asm, ops[0], count, dest=True)
    asm.emit("ldmatrix", a=a, imm=imm, flags=flags, ext=registers, mod=count | ("trans" in groups) << 8, defines=count)


@form(f"stmatrix.sync.aligned.m8n8.x{{count:1|2|4}}[.{{trans:trans}}]{SHARED}.b16", section="9.7.14.5.16")
def stmatrix(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    count = int(groups["count"])
    a, imm, flags = asm.address(ops[0], "shared" if "space" in groups else "generic")
    registers = _registers(asm, ops[1], count)
    asm.emit("stmatrix", a=a, imm=imm, flags=flags, ext=registers, mod=count | ("trans" in groups) << 8)


@form(
    f"ldmatrix.sync.aligned.m8n16.x{{count:1|2|4}}{SHARED}.b8x16.{{packed:b6x16_p32|b4x16_p64}}",
    f"ldmatrix.sync.aligned.m16n16.x{{count:1|2}}.{{trans:trans}}{SHARED}.b8",
    f"ldmatrix.sync.aligned.m16n16.x{{count:1|2}}.{{trans:trans}}{SHARED}.b8x16.{{packed:b6x16_p32|b4x16_p64}}",
    section="9.7.14.5.15",
)
def ldmatrix_bytes(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*BLACKWELL)
    asm.expect(ops, 2)
    trans = "trans" in groups
    count = int(groups["count"]) * (2 if trans else 1)
    a, imm, flags = asm.address(ops[1], "shared" if "space" in groups else "generic")
    registers = _registers(asm, ops[0], count, dest=True)
    mod = count | trans << 8 | {"b6x16_p32": 6, "b4x16_p64": 4}.get(groups.get("packed", ""), 0) << 12
    asm.emit("ldmatrix.bytes", a=a, imm=imm, flags=flags, ext=registers, mod=mod, defines=count)


@form(f"stmatrix.sync.aligned.m16n8.x{{count:1|2|4}}.trans{SHARED}.b8", section="9.7.14.5.16")
def stmatrix_bytes(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*BLACKWELL)
    asm.expect(ops, 2)
    count = int(groups["count"])
    a, imm, flags = asm.address(ops[0], "shared" if "space" in groups else "generic")
    asm.emit("stmatrix.bytes", a=a, imm=imm, flags=flags, ext=_registers(asm, ops[1], count), mod=count)


@form("movmatrix.sync.aligned.m8n8.trans.b16", section="9.7.14.5.17")
def movmatrix(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit("movmatrix", d=asm.dest(ops[0], "b32"), a=asm.source(ops[1], "b32"))


MMA = "mma.sync.aligned.m16n8k"


@form(
    f"{MMA}{{k:8|16}}.row.col.{{d:f16|f32}}.{{a:f16}}.{{b:f16}}.{{c:f16|f32}}",
    f"{MMA}{{k:8|16}}.row.col.{{d:f32}}.{{a:bf16}}.{{b:bf16}}.{{c:f32}}",
    f"{MMA}{{k:4|8}}.row.col.{{d:f32}}.{{a:tf32}}.{{b:tf32}}.{{c:f32}}",
    f"{MMA}{{k:16|32}}.row.col.{{d:f16|f32}}.{{a:e4m3|e5m2}}.{{b:e4m3|e5m2}}.{{c:f16|f32}}",
    f"{MMA}{{k:16|32}}.row.col[.{{sat:satfinite}}].{{d:s32}}.{{a:s8|u8}}.{{b:s8|u8}}.{{c:s32}}",
    section="9.7.14.5.14",
)
def mma(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4)
    d, a, b, k = groups["d"], groups["a"], groups["b"], int(groups["k"])
    if groups["c"] != d:
        raise asm.error("D and C have one type")
    accumulators = 2 if d == "f16" else 4
    registers = _registers(asm, ops[0], accumulators, dest=True)
    registers += _registers(asm, ops[1], 16 * k * ELEMENTS[a] // 1024)
    registers += _registers(asm, ops[2], 8 * k * ELEMENTS[b] // 1024)
    registers += _registers(asm, ops[3], accumulators)
    imm = NUMBERS[a] | NUMBERS[b] << 8 | NUMBERS[d] << 16 | k << 24 | ("sat" in groups) << 40
    asm.emit("mma", ext=registers, imm=imm, defines=accumulators)


# ---- floats of 8, 6 and 4 bits on sm_120a, with block scales

FORMATS = {"e4m3": 0, "e5m2": 1, "e2m3": 2, "e3m2": 3, "e2m1": 4}
PACKED = 5
NARROW = "|".join(FORMATS)
OPERANDS = f"{{d:f16|f32}}.{{a:{NARROW}}}.{{b:{NARROW}}}.{{c:f16|f32}}"
SCALED = f"f32.{{a:{NARROW}}}.{{b:{NARROW}}}.f32.{{scale:ue8m0}}"
SCALED_FOUR = "f32.e2m1.e2m1.f32.{scale:ue8m0|ue4m3}"
MX8 = "kind::{kind:mxf8f6f4}.block_scale[.{vector:scale_vec::1X}]"
MX4 = "kind::{kind:mxf4}.block_scale[.{vector:scale_vec::2X}]"
NV4 = "kind::{kind:mxf4nvf4}.block_scale.{vector:scale_vec::2X|scale_vec::4X}"


def _narrow(asm: "Assembler", ops: "tuple[Operand, ...]", *, half: bool, imm: int) -> None:
    outputs = 2 if half else 4
    registers = _registers(asm, ops[0], outputs, dest=True)
    registers += _registers(asm, ops[1], 4) + _registers(asm, ops[2], 2) + _registers(asm, ops[3], outputs)
    for scale, selectors in zip(ops[4::2], ops[5::2], strict=True):
        byte, thread = (asm.source(item, "u16") for item in asm.vector(selectors, 2))
        registers += [*_registers(asm, scale, 1), byte, thread]
    asm.emit("mma.narrow", ext=registers, imm=imm, defines=outputs)


@form(
    f"{MMA}32.row.col.kind::f8f6f4.{OPERANDS}",
    f"mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.{OPERANDS}",
    section="9.7.14.5.14",
)
def mma_narrow(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target("sm_120a", "sm_120f")
    asm.expect(ops, 4)
    if groups["c"] != groups["d"]:
        raise asm.error("D and C have one type")
    half = groups["d"] == "f16"
    _narrow(asm, ops, half=half, imm=FORMATS[groups["a"]] | FORMATS[groups["b"]] << 4 | 32 << 8 | half << 16)


@form(
    f"{MMA}32.row.col.{MX8}.{SCALED}",
    f"mma.sync.aligned.{MX8}.m16n8k32.row.col.{SCALED}",
    f"{MMA}64.row.col.{MX4}.f32.e2m1.e2m1.f32.{{scale:ue8m0}}",
    f"mma.sync.aligned.{MX4}.m16n8k64.row.col.f32.e2m1.e2m1.f32.{{scale:ue8m0}}",
    f"{MMA}64.row.col.{NV4}.{SCALED_FOUR}",
    f"mma.sync.aligned.{NV4}.m16n8k64.row.col.{SCALED_FOUR}",
    section="9.7.14.5.14",
)
def mma_block_scale(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target("sm_120a", "sm_120f")
    asm.expect(ops, 8)
    wide = groups["kind"] == "mxf8f6f4"
    count = int(groups["vector"][-2]) if "vector" in groups else 1 if wide else 2
    if groups["scale"] == "ue4m3" and count != 4:
        raise asm.error(".ue4m3 scales belong to .scale_vec::4X")
    a, b = (FORMATS[groups["a"]], FORMATS[groups["b"]]) if wide else (PACKED, PACKED)
    k = 32 if wide else 64
    _narrow(asm, ops, half=False, imm=a | b << 4 | k << 8 | count << 20 | (groups["scale"] == "ue8m0") << 24)


@form(
    f"mma.sp::ordered_metadata.sync.aligned.m16n8k{{k:16|32|64|128}}.row.col[.kind::{{kind:f8f6f4|mxf8f6f4|mxf4|mxf4nvf4}}]"
    f"[.block_scale][.{{vector:scale_vec::1X|scale_vec::2X|scale_vec::4X}}].{{d:f16|f32|s32}}"
    f".{{a:f16|bf16|tf32|s8|u8|{NARROW}}}.{{b:f16|bf16|tf32|s8|u8|{NARROW}}}.{{c:f16|f32|s32}}[.{{scale:ue8m0|ue4m3}}]",
    section="9.7.14.6",
)
def mma_sparse(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("sparse matrices are not simulated; the dense mma.sync is")


WGMMA = "wgmma.mma_async.sync.aligned.m64n{n:" + "|".join(str(8 * i) for i in range(32, 0, -1)) + "}k"


@form(
    WGMMA + "{k:16}.{d:f16|f32}.{a:f16}.{b:f16}",
    WGMMA + "{k:16}.{d:f32}.{a:bf16}.{b:bf16}",
    WGMMA + "{k:8}.{d:f32}.{a:tf32}.{b:tf32}",
    WGMMA + "{k:32}.{d:f16|f32}.{a:e4m3|e5m2}.{b:e4m3|e5m2}",
    WGMMA + "{k:32}[.{sat:satfinite}].{d:s32}.{a:s8|u8}.{b:s8|u8}",
    WGMMA + "{k:256}.{d:s32}.{a:b1}.{b:b1}.and.popc",
    section="9.7.15.5.2",
)
def wgmma(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target("sm_90a")
    d, a, b, n, k = groups["d"], groups["a"], groups["b"], int(groups["n"]), int(groups["k"])
    if d == "s32" and n > 32 and n % 16:
        raise asm.error(f"integer wgmma has no N of {n}")
    in_registers = len(ops) > 1 and isinstance(ops[1], Vector)
    half = ELEMENTS[a] == 16
    # scale-a and scale-b exist for floats; a transposition for each 16-bit operand in shared memory
    literals = (0 if d == "s32" else 2) + ((1 if in_registers else 2) if half else 0)
    asm.expect(ops, 4 + literals)
    accumulators = n // 4 if d == "f16" else n // 2
    registers = _registers(asm, ops[0], accumulators, dest=True)
    if in_registers:
        operands = _registers(asm, ops[1], 4)
        # Else a later register in the same place looks like one of these, overwritten.
        asm.held.update(register for register in operands if isinstance(register, Register))
        registers += operands
        a_source = 0
    else:
        a_source = asm.source(ops[1], "b64")
    scales = [asm.literal(op, -1, 1) for op in ops[4:6]] if d != "s32" else [1, 1]
    if 0 in scales:
        raise asm.error("scale-a and scale-b are 1 or -1")
    trans = [asm.literal(op, 0, 1) for op in ops[6:]] if half else [0, 0]
    if in_registers and half:
        trans.insert(0, 0)
    imm = (
        NUMBERS[a] | NUMBERS[b] << 8 | NUMBERS[d] << 16 | k % 256 << 24 | n << 32 | trans[0] << 44 | trans[1] << 45
        | (scales[0] < 0) << 46 | (scales[1] < 0) << 47 | ("sat" in groups) << 48
    )  # fmt: skip
    asm.emit(
        "wgmma", ext=registers, a=a_source, b=asm.source(ops[2], "b64"), c=asm.plain_predicate(ops[3]), imm=imm,
        mod=in_registers, flags=ADDR64,
    )  # fmt: skip


@form(
    WGMMA.replace(".sync", ".sp.sync") + "{k:16|32|64}[.{sat:satfinite}].{d:f16|f32|s32}"
    ".{a:f16|bf16|tf32|e4m3|e5m2|s8|u8}.{b:f16|bf16|tf32|e4m3|e5m2|s8|u8}",
    section="9.7.15.6",
)
def wgmma_sparse(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("sparse matrices are not simulated; the dense wgmma is")


@form(
    "mma.sync.aligned.m{m:8|16}n8k{k:128|256}.row.col.s32.b1.b1.s32.{op:and|xor}.popc",
    section="9.7.14.5.14",
)
def one_bit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("mma.sync of single bits is not simulated; wgmma is")


@form("wgmma.commit_group.sync.aligned", section="9.7.15.7.2")
def commit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("wgmma.commit")


@form("wgmma.wait_group.sync.aligned", section="9.7.15.7.3")
def wait(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("wgmma.wait", imm=asm.literal(ops[0], 0, 7))
