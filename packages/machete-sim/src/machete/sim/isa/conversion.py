"""cvt (PTX ISA 9.7.9.21)."""

from typing import TYPE_CHECKING

from .form import Groups, form
from .types import ADDR64, REG16, REG64, WIDTHS, is_signed, modifiers

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"
FLOAT_KINDS = {"f16": 0, "bf16": 1, "f32": 2, "f64": 3}
SOURCE, DEST, SIGNED_BIT = 12, 20, 0x80

# Handlers of their own for what kernels do most: (d, s) -> name
FAST_INTEGER = {
    **{(d, "u32"): "cvt.u64.u32" for d in ("u64", "s64")},
    **{(d, "s32"): "cvt.s64.s32" for d in ("u64", "s64")},
    **{(d, s): "cvt.u32.u64" for d in ("u32", "s32") for s in ("u64", "s64")},
    **{(d, "u16"): "cvt.u32.u16" for d in ("u32", "s32")},
    **{(d, "s16"): "cvt.s32.s16" for d in ("u32", "s32")},
    **{(d, s): "cvt.u16.u32" for d in ("u16", "s16") for s in ("u32", "s32")},
}
FAST_FLOAT = {
    ("f32", "f16"): "cvt.f32.f16", ("f32", "bf16"): "cvt.f32.bf16", ("f16", "f32"): "cvt.f16.f32",
    ("bf16", "f32"): "cvt.bf16.f32", ("f64", "f32"): "cvt.f64.f32", ("f32", "f64"): "cvt.f32.f64",
    ("f32", "s32"): "cvt.f32.s32", ("f32", "u32"): "cvt.f32.u32",
}  # fmt: skip


def _integer(kind: str) -> int:
    return WIDTHS[kind] | (SIGNED_BIT if is_signed(kind) else 0)


def _register_flags(asm: "Assembler", dest: "Operand", source: "Operand", kind: str) -> int:
    source_width = asm.width(source) if asm.is_register(source) else max(WIDTHS[kind], 16)
    dest_width = asm.width(dest)
    return (ADDR64 if source_width == 64 else 0) | {16: REG16, 32: 0, 64: REG64}[dest_width]


@form(f"cvt[.{{sat:sat}}].{{d:{INTEGERS}}}.{{s:{INTEGERS}}}", section="9.7.9.21")
def integer_to_integer(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    d, s = groups["d"], groups["s"]
    dest, source = asm.dest(ops[0], d, wider=True), asm.source(ops[1], s, wider=True)
    exact = asm.width(ops[0]) == WIDTHS[d] and (not asm.is_register(ops[1]) or asm.width(ops[1]) == WIDTHS[s])
    if exact and "sat" not in groups and (d, s) in FAST_INTEGER:
        asm.emit(FAST_INTEGER[d, s], d=dest, a=source)
    else:
        mod = modifiers(groups) | _integer(s) << SOURCE | _integer(d) << DEST
        asm.emit("cvt.i.i", d=dest, a=source, mod=mod, flags=_register_flags(asm, ops[0], ops[1], s))


@form(f"cvt.{{rnd:rn|rz|rm|rp}}[.{{sat:sat}}].{{d:f16|bf16|f32|f64}}.{{s:{INTEGERS}}}", section="9.7.9.21")
def integer_to_float(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    d, s = groups["d"], groups["s"]
    dest, source = asm.dest(ops[0], d), asm.source(ops[1], s, wider=True)
    exact = not asm.is_register(ops[1]) or asm.width(ops[1]) == WIDTHS[s]
    if exact and modifiers(groups) == 0 and (d, s) in FAST_FLOAT:
        asm.emit(FAST_FLOAT[d, s], d=dest, a=source)
    else:
        mod = modifiers(groups) | _integer(s) << SOURCE | FLOAT_KINDS[d] << DEST
        asm.emit("cvt.f.i", d=dest, a=source, mod=mod, flags=_register_flags(asm, ops[0], ops[1], s))


@form(
    f"cvt.{{rnd:rni|rzi|rmi|rpi}}[.{{ftz:ftz}}][.{{sat:sat}}].{{d:{INTEGERS}}}.{{s:f16|bf16|f32|f64}}",
    section="9.7.9.21",
)
def float_to_integer(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    d, s = groups["d"], groups["s"]
    dest, source = asm.dest(ops[0], d, wider=True), asm.source(ops[1], s)
    if (groups["rnd"], d, s) == ("rzi", "s32", "f32") and "ftz" not in groups and asm.width(ops[0]) == 32:
        asm.emit("cvt.rzi.s32.f32", d=dest, a=source)
        return
    mod = modifiers({k: v for k, v in groups.items() if k != "sat"}) | FLOAT_KINDS[s] << SOURCE | _integer(d) << DEST
    asm.emit("cvt.i.f", d=dest, a=source, mod=mod, flags=_register_flags(asm, ops[0], ops[1], s))


@form(
    "cvt[.{ftz:ftz}][.{sat:sat}].{d:f32}.{s:f16|bf16|f32}",
    "cvt[.{sat:sat}].{d:f64}.{s:f16|bf16|f32|f64}",
    "cvt.{rnd:rn|rz|rm|rp}[.{ftz:ftz}][.{sat:sat}].{d:f32}.{s:f64}",
    "cvt.{rnd:rn|rz|rm|rp}[.{ftz:ftz}][.{sat:sat}].{d:f16}.{s:f32|f64}",
    "cvt.{rnd:rn|rz}[.{satfinite:satfinite}][.{relu:relu}].{d:f16|bf16}.{s:f32}",
    "cvt.{rnd:rz|rm|rp}.{d:bf16}.{s:f32}",
    "cvt.{rnd:rn|rz|rm|rp}.{d:f16|bf16}.{s:f16|bf16}",
    "cvt.{rnd:rn|rz|rm|rp}.{d:bf16}.{s:f64}",
    "cvt.{rnd:rni|rzi|rmi|rpi}[.{ftz:ftz}][.{sat:sat}].{d:f16|bf16|f32|f64}.{s:f16|bf16|f32|f64}",
    section="9.7.9.21",
)
def float_to_float(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    d, s = groups["d"], groups["s"]
    dest, source = asm.dest(ops[0], d), asm.source(ops[1], s)
    integral = groups.get("rnd", "").endswith("i")
    if integral and d != s:
        raise asm.error("rounding to an integral value keeps the type")
    if modifiers(groups) == 0 and not integral and (d, s) in FAST_FLOAT:
        asm.emit(FAST_FLOAT[d, s], d=dest, a=source)
    else:
        mod = modifiers(groups) | FLOAT_KINDS[s] << SOURCE | FLOAT_KINDS[d] << DEST
        asm.emit("cvt.f.f", d=dest, a=source, mod=mod, imm=integral)


# Narrow formats, with the number of the native conversion (native/convert_narrow.cpp).
@form("cvt.{rnd:rn|rz}[.{satfinite:satfinite}][.{relu:relu}].{d:f16x2|bf16x2}.f32", section="9.7.9.21")
def pack_halves(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    mod = modifiers(groups)
    a, b = (asm.source(op, "f32") for op in ops[1:])
    d = groups["d"]
    asm.emit(f"cvt.{d}.f32" if mod == 0 else f"cvt.narrow.{d}", d=asm.dest(ops[0], d), a=a, b=b, mod=mod)


@form("cvt.rn.satfinite[.{relu:relu}].{d:e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2}.f32", section="9.7.9.21")
def pack_narrow(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    a, b = (asm.source(op, "f32") for op in ops[1:])
    asm.emit(f"cvt.{groups['d']}.f32", d=asm.dest(ops[0], groups["d"]), a=a, b=b, mod=modifiers(groups))


@form(
    "cvt.rn.satfinite[.{relu:relu}].{d:e4m3x2|e5m2x2}.{s:f16x2}",
    "cvt.rn.satfinite[.{relu:relu}].{d:e2m3x2|e3m2x2|e2m1x2}.{s:f16x2}",
    "cvt.rn.satfinite[.{relu:relu}].{d:e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2}.{s:bf16x2}",
    section="9.7.9.21",
)
def repack_narrow(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit(
        f"cvt.{groups['d']}.{groups['s']}",
        d=asm.dest(ops[0], groups["d"]),
        a=asm.source(ops[1], groups["s"]),
        mod=modifiers(groups),
    )


@form("cvt.rn[.{relu:relu}].{d:f16x2|bf16x2}.{s:e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2}", section="9.7.9.21")
def unpack_narrow(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit(
        f"cvt.{groups['d']}.{groups['s']}",
        d=asm.dest(ops[0], groups["d"]),
        a=asm.source(ops[1], groups["s"]),
        mod=modifiers(groups),
    )


@form("cvt.{rnd:rz|rp}[.{satfinite:satfinite}].ue8m0x2.f32", section="9.7.9.21")
def pack_scales(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    a, b = (asm.source(op, "f32") for op in ops[1:])
    asm.emit("cvt.ue8m0x2.f32", d=asm.dest(ops[0], "ue8m0x2"), a=a, b=b, mod=modifiers(groups))


@form("cvt.{rnd:rz|rp}[.{satfinite:satfinite}].ue8m0x2.bf16x2", section="9.7.9.21")
def repack_scales(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    a = asm.source(ops[1], "bf16x2")
    asm.emit("cvt.ue8m0x2.bf16x2", d=asm.dest(ops[0], "ue8m0x2"), a=a, mod=modifiers(groups))


@form("cvt.rn.bf16x2.ue8m0x2", section="9.7.9.21")
def unpack_scales(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit("cvt.bf16x2.ue8m0x2", d=asm.dest(ops[0], "bf16x2"), a=asm.source(ops[1], "ue8m0x2"))


@form(
    "cvt.rs[.{relu:relu}][.{satfinite:satfinite}].{d:f16x2|bf16x2}.f32",
    "cvt.rs[.{relu:relu}].satfinite.{d:e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4}.f32",
    section="9.7.9.21",
)
def stochastic(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("stochastic rounding is not simulated: how the random bits are used is not documented")


@form("cvt.{how:rna|rn|rz}[.{satfinite:satfinite}][.{relu:relu}].tf32.f32", section="9.7.9.21")
def to_tf32(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    mod = modifiers(groups) | {"rn": 0, "rz": 1, "rna": 256}[groups["how"]]
    asm.emit("cvt.tf32.f32", d=asm.dest(ops[0], "b32"), a=asm.source(ops[1], "f32"), mod=mod)
