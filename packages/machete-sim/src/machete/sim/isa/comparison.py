"""Comparison, selection and predicate logic (PTX ISA 9.7.6 to 9.7.8)."""

from typing import TYPE_CHECKING

from .form import Groups, form
from .types import FTZ, NO_OPERAND

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

BOOL = {"and": 1, "or": 2, "xor": 3}
NEGATE_C = 256
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
ORDERED = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def native_compare(groups: Groups) -> tuple[str, str]:
    """Comparison and operand type as the native handlers name them."""
    kind, compare = groups["t"], groups["cmp"]
    return UNSIGNED_NAMES.get(compare, compare), kind.replace("b", "u") if kind in ("b16", "b32", "b64") else kind


def third_predicate(asm: "Assembler", operand: "Operand", groups: Groups) -> tuple[int, int]:
    index, negated = asm.predicate(operand)
    return index, BOOL[groups["bool"]] | (NEGATE_C if negated else 0)


@form(
    "setp.{cmp:eq|ne}[.{bool:and|or|xor}].{t:b16|b32|b64}",
    "setp.{cmp:eq|ne|lt|le|gt|ge}[.{bool:and|or|xor}].{t:u16|u32|u64|s16|s32|s64}",
    "setp.{cmp:lo|ls|hi|hs}[.{bool:and|or|xor}].{t:u16|u32|u64}",
    f"setp.{{cmp:{ORDERED}}}[.{{bool:and|or|xor}}][.{{ftz:ftz}}].{{t:f32}}",
    f"setp.{{cmp:{ORDERED}}}[.{{bool:and|or|xor}}].{{t:f64|bf16|bf16x2}}",
    f"setp.{{cmp:{ORDERED}}}[.{{bool:and|or|xor}}][.{{ftz:ftz}}].{{t:f16|f16x2}}",
    section="9.7.6.2",
)
def setp(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4 if "bool" in groups else 3)
    compare, kind = native_compare(groups)
    first, second = asm.pair(ops[0])
    if kind.endswith("x2") and second is None:
        raise asm.error("two predicates p|q are expected")
    c, mod = third_predicate(asm, ops[3], groups) if "bool" in groups else (NO_OPERAND, 0)
    a, b = (asm.source(op, kind) for op in ops[1:3])
    q = asm.predicate_dest(second) if second is not None else NO_OPERAND
    asm.emit(
        f"setp.{compare}.{kind}",
        d=asm.predicate_dest(first),
        e=q,
        a=a,
        b=b,
        c=c,
        mod=mod | (FTZ if "ftz" in groups else 0),
    )


@form(
    "set.{cmp:eq|ne|lt|le|gt|ge}[.{bool:and|or|xor}].{d:u32|s32|f32}.{t:u16|u32|u64|s16|s32|s64}",
    f"set.{{cmp:{ORDERED}}}[.{{bool:and|or|xor}}][.{{ftz:ftz}}].{{d:u32|s32|f32}}.{{t:f32|f64}}",
    section="9.7.6.1",
)
def set_(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4 if "bool" in groups else 3)
    compare, kind = native_compare(groups)
    c, mod = third_predicate(asm, ops[3], groups) if "bool" in groups else (NO_OPERAND, 0)
    a, b = (asm.source(op, kind) for op in ops[1:3])
    asm.emit(
        f"set.{compare}.{kind}",
        d=asm.dest(ops[0], groups["d"]),
        a=a,
        b=b,
        c=c,
        mod=mod | (FTZ if "ftz" in groups else 0),
        imm=groups["d"] == "f32",
    )


@form("selp.{t:b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64}", section="9.7.6.3")
def selp(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4)
    kind = groups["t"]
    a, b = (asm.source(op, kind) for op in ops[1:3])
    asm.emit(f"selp.b{kind[1:]}", d=asm.dest(ops[0], kind), a=a, b=b, c=asm.plain_predicate(ops[3]))


@form("slct[.{ftz:ftz}].{t:b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64}.{c:s32|f32}", section="9.7.6.4")
def slct(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 4)
    kind = groups["t"]
    a, b = (asm.source(op, kind) for op in ops[1:3])
    asm.emit(f"slct.b{kind[1:]}.{groups['c']}", d=asm.dest(ops[0], kind), a=a, b=b, c=asm.source(ops[3], groups["c"]))


@form(f"testp.{{test:{'|'.join(TESTS)}}}.{{t:f32|f64}}", section="9.7.3.1")
def testp(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit(
        f"testp.{groups['t']}",
        d=asm.predicate_dest(ops[0]),
        a=asm.source(ops[1], groups["t"]),
        mod=TESTS.index(groups["test"]),
    )


@form("{op:and|or|xor}.pred", section="9.7.8")
def logic(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    a, b = (asm.plain_predicate(op) for op in ops[1:])
    asm.emit(f"{groups['op']}.pred", d=asm.predicate_dest(ops[0]), a=a, b=b)


@form("{op:not|mov}.pred", section="9.7.8.4")
def single(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit(f"{groups['op']}.pred", d=asm.predicate_dest(ops[0]), a=asm.plain_predicate(ops[1]))
