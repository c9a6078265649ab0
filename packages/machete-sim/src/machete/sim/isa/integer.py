"""Integer arithmetic, logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.2, 9.7.8)."""

from typing import TYPE_CHECKING

from .form import Groups, form
from .table import compute
from .types import NO_OPERAND, WIDTHS

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

INTEGER = "{t:u16|u32|u64|s16|s32|s64}"
BITS = "{t:b16|b32|b64}"

for _op in ("add", "sub"):
    compute(f"{_op}.{INTEGER}", f"{_op}.b{{w}}", "t t t", "9.7.1.1")
    compute(f"{_op}.sat.s32", f"{_op}.sat.s32", "s32 s32 s32", "9.7.1.1", mod=0)
compute("add.{t:u16x2|s16x2}", "add.b16x2", "t t t", "9.7.1.1")
compute(f"mul.lo.{INTEGER}", "mul.lo.b{w}", "t t t", "9.7.1.3")
compute(f"mul.hi.{INTEGER}", "mul.hi.{t}", "t t t", "9.7.1.3")
compute(f"mad.lo.{INTEGER}", "mad.lo.b{w}", "t t t t", "9.7.1.4")
compute(f"mad.hi.{INTEGER}", "mad.hi.{t}", "t t t t", "9.7.1.4")
for _t, _wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
    compute(f"mul.wide.{_t}", f"mul.wide.{_t}", f"{_wide} {_t} {_t}", "9.7.1.3")
    compute(f"mad.wide.{_t}", f"mad.wide.{_t}", f"{_wide} {_t} {_t} {_wide}", "9.7.1.4")
compute("mul24.lo.{t:u32|s32}", "mul24.lo.{t}", "t t t", "9.7.1.5")
compute(f"sad.{INTEGER}", "sad.{t}", "t t t t", "9.7.1.7")
compute(f"div.{INTEGER}", "div.{t}", "t t t", "9.7.1.8")
compute(f"rem.{INTEGER}", "rem.{t}", "t t t", "9.7.1.9")
compute("abs.{t:s16|s32|s64}", "abs.{t}", "t t", "9.7.1.10")
compute("neg.{t:s16|s32|s64}", "neg.{t}", "t t", "9.7.1.11")
for _op in ("min", "max"):
    compute(f"{_op}.{INTEGER}", f"{_op}.{{t}}", "t t t", "9.7.1.12")
    compute(f"{_op}.{{t:u16x2|s16x2}}", f"{_op}.{{t}}", "t t t", "9.7.1.12")
    compute(f"{_op}.relu.{{t:s32|s16x2}}", f"{_op}.relu.{{t}}", "t t t", "9.7.1.12", mod=0)
compute("popc.{t:b32|b64}", "popc.{t}", "u32 t", "9.7.1.14")
compute("clz.{t:b32|b64}", "clz.{t}", "u32 t", "9.7.1.15")
compute("bfind.{t:u32|u64|s32|s64}", "bfind.{t}", "u32 t", "9.7.1.16", mod=0)
compute("bfind.shiftamt.{t:u32|u64|s32|s64}", "bfind.{t}", "u32 t", "9.7.1.16", mod=1)
compute("brev.{t:b32|b64}", "brev.{t}", "t t", "9.7.1.18")
compute("bfe.{t:u32|u64|s32|s64}", "bfe.{t}", "t t u32 u32", "9.7.1.19")
compute("bfi.{t:b32|b64}", "bfi.{t}", "t t t u32 u32", "9.7.1.20")

for _op in ("and", "or", "xor"):
    compute(f"{_op}.{BITS}", f"{_op}.{{t}}", "t t t", "9.7.8")
for _op in ("not", "cnot"):
    compute(f"{_op}.{BITS}", f"{_op}.{{t}}", "t t", "9.7.8")
compute(f"shl.{BITS}", "shl.{t}", "t t u32", "9.7.8.8")
compute(f"shr.{INTEGER}", "shr.{t}", "t t u32", "9.7.8.9")
compute("shr.{t:b16|b32|b64}", "shr.u{w}", "t t u32", "9.7.8.9")
compute("shf.l.clamp.b32", "shf", "b32 b32 b32 u32", "9.7.8.7", mod=0)
compute("shf.l.wrap.b32", "shf", "b32 b32 b32 u32", "9.7.8.7", mod=2)
compute("shf.r.clamp.b32", "shf", "b32 b32 b32 u32", "9.7.8.7", mod=1)
compute("shf.r.wrap.b32", "shf", "b32 b32 b32 u32", "9.7.8.7", mod=3)
for _mode, _name in enumerate(("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")):
    compute(f"prmt.b32{_name}", "prmt", "b32 b32 b32 b32", "9.7.9.7", mod=_mode)
for _a in ("u32", "s32"):
    for _b in ("u32", "s32"):
        _c = "s32" if "s32" in (_a, _b) else "u32"
        compute(f"dp4a.{_a}.{_b}", "dp4a", f"{_c} {_a} {_b} {_c}", "9.7.1.23", mod=(_a == "s32") | (_b == "s32") << 1)


@form("lop3.b32", section="9.7.8.6")
def lop3(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 5)
    a, b, c = (asm.source(op, "b32") for op in ops[1:4])
    asm.emit("lop3", d=asm.dest(ops[0], "b32"), a=a, b=b, c=c, mod=asm.literal(ops[4], 0, 255))


# Extended precision: CC.CF is per thread. The .cc suffix writes it, addc/subc/madc read it.
@form("{op:add|sub}.cc.{t:u32|s32|u64|s64}", "{op:addc|subc}[{cc:.cc}].{t:u32|s32|u64|s64}", section="9.7.2")
def carry(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    kind, op = groups["t"], groups["op"]
    reads = op.endswith("c")
    writes = not reads or "cc" in groups
    a, b = (asm.source(operand, kind) for operand in ops[1:])
    asm.emit(f"{op[:3]}.carry.b{WIDTHS[kind]}", d=asm.dest(ops[0], kind), a=a, b=b, mod=reads | writes << 1)


@form("mad.{half:lo|hi}.cc.{t:u32|s32|u64|s64}", "madc.{half:lo|hi}[{cc:.cc}].{t:u32|s32|u64|s64}", section="9.7.2.5")
def mad_carry(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4)
    kind = groups["t"]
    reads = asm.opcode_base == "madc"
    writes = not reads or "cc" in groups
    a, b, c = (asm.source(operand, kind) for operand in ops[1:])
    dest = asm.dest(ops[0], kind)
    if dest == NO_OPERAND:
        raise asm.error("the result of this instruction cannot be discarded")
    asm.emit(f"mad.carry.{kind}", d=dest, a=a, b=b, c=c, mod=reads | writes << 1 | (groups["half"] == "hi") << 2)
