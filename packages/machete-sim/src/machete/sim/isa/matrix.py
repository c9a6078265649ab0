"""Tensor-core instructions of warps and warpgroups (PTX ISA 9.7.14, 9.7.15)."""

from typing import TYPE_CHECKING

from ..ptx import Vector
from .form import Groups, form
from .types import ADDR64

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

# In the order of Element in native/matrix.hpp, with the bits of an element.
ELEMENTS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f32": 32, "s32": 32}
NUMBERS = {name: index for index, name in enumerate(ELEMENTS)}
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
    f"{MMA}{{k:32}}.row.col.kind::f8f6f4.{{d:f16|f32}}.{{a:e4m3|e5m2}}.{{b:e4m3|e5m2}}.{{c:f16|f32}}",
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


WGMMA = "wgmma.mma_async.sync.aligned.m64n{n:" + "|".join(str(8 * i) for i in range(32, 0, -1)) + "}k"


@form(
    WGMMA + "{k:16}.{d:f16|f32}.{a:f16}.{b:f16}",
    WGMMA + "{k:16}.{d:f32}.{a:bf16}.{b:bf16}",
    WGMMA + "{k:8}.{d:f32}.{a:tf32}.{b:tf32}",
    WGMMA + "{k:32}.{d:f16|f32}.{a:e4m3|e5m2}.{b:e4m3|e5m2}",
    WGMMA + "{k:32}[.{sat:satfinite}].{d:s32}.{a:s8|u8}.{b:s8|u8}",
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
        registers += _registers(asm, ops[1], 4)
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
        NUMBERS[a] | NUMBERS[b] << 8 | NUMBERS[d] << 16 | k << 24 | n << 32 | trans[0] << 44 | trans[1] << 45
        | (scales[0] < 0) << 46 | (scales[1] < 0) << 47 | ("sat" in groups) << 48
    )  # fmt: skip
    asm.emit(
        "wgmma", ext=registers, a=a_source, b=asm.source(ops[2], "b64"), c=asm.plain_predicate(ops[3]), imm=imm,
        mod=in_registers, flags=ADDR64,
    )  # fmt: skip


@form("wgmma.commit_group.sync.aligned", section="9.7.15.7.2")
def commit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("wgmma.commit")


@form("wgmma.wait_group.sync.aligned", section="9.7.15.7.3")
def wait(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("wgmma.wait", imm=asm.literal(ops[0], 0, 7))
