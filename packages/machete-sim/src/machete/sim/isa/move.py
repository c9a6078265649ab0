"""mov, cvta, isspacep, mapa and other forms that move values (PTX ISA 9.7.9)."""

from typing import TYPE_CHECKING

from .. import _core
from ..ptx import Name, Vector
from .form import Groups, form
from .special import SPECIAL
from .types import ADDR64, CLUSTER, NO_OPERAND, REG64, WIDTHS

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

WINDOWS = {"shared": _core.SHARED_WINDOW, "local": _core.LOCAL_WINDOW, "global": 0, "const": 0}


@form("mov.{t:b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64}", section="9.7.9.3")
def mov(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    kind = groups["t"]
    width = WIDTHS[kind]
    target, value = ops
    if isinstance(value, Vector):
        _pack(asm, target, value, width)
    elif isinstance(target, Vector):
        _unpack(asm, target, value, kind)
    else:
        dest = asm.dest(target, kind)
        if isinstance(value, Name) and value.text in SPECIAL and not asm.is_register(value):
            asm.emit("mov.special", d=dest, mod=SPECIAL[value.text], flags=REG64 if width == 64 else 0)
        else:
            asm.emit(f"mov.b{width}", d=dest, a=asm.source(value, kind))


def _part(asm: "Assembler", vector: Vector, width: int) -> int:
    """Bits of one element of a vector that makes up `width` bits."""
    count = len(vector.items)
    if (width, count) not in ((16, 2), (32, 2), (32, 4), (64, 2), (64, 4), (128, 2), (128, 4)):
        raise asm.error(f".b{width} has no vector of {count} elements")
    return width // count


def _pack(asm: "Assembler", target: "Operand", value: Vector, width: int) -> None:
    count = len(value.items)
    part = _part(asm, value, width)
    name = f"pack.b{width}.b{part}x{count}"
    sources = [asm.source(item, f"b{part}") for item in value.items]
    a, b, c, e = sources + [NO_OPERAND] * (4 - len(sources))
    asm.emit(name, d=asm.dest(target, f"b{width}"), a=a, b=b, c=c, e=e)


def _unpack(asm: "Assembler", target: Vector, value: "Operand", kind: str) -> None:
    width = WIDTHS[kind]
    part = _part(asm, target, width)
    source = asm.source(value, kind)
    for index, item in enumerate(target.items):
        dest = asm.dest(item, f"b{part}")
        if dest != NO_OPERAND:
            asm.emit(f"part.b{part}.b{width}", d=dest, a=source, imm=index * part)


@form("cvta.{space:shared|shared::cta|shared::cluster|local|global|const|param|param::entry}.u64", section="9.7.9.20")
def cvta(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    space = groups["space"].partition(":")[0]
    dest, source = asm.dest(ops[0], "u64"), asm.source(ops[1], "u64")
    if space == "param":
        asm.emit("cvta.param", d=dest, a=source)
    else:
        asm.emit("cvta.window", d=dest, a=source, imm=WINDOWS[space], flags=ADDR64)


@form(
    "cvta.to.{space:shared|shared::cta|shared::cluster|local|global|const|param|param::entry}.u64", section="9.7.9.20"
)
def cvta_to(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    space = groups["space"].partition(":")[0]
    dest, source = asm.dest(ops[0], "u64"), asm.source(ops[1], "u64")
    if space in ("global", "const"):
        asm.emit("mov.b64", d=dest, a=source)
    else:
        asm.emit("cvta.to.param" if space == "param" else "cvta.to.window", d=dest, a=source)


@form("isspacep.{space:global|shared|shared::cta|shared::cluster|local|param|param::entry}", section="9.7.9.19")
def isspacep(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    space = groups["space"]
    names = {"global": 0, "shared": 1, "local": 2, "param": 3}
    number = 4 if space == "shared::cluster" else names[space.partition(":")[0]]
    asm.emit("isspacep", d=asm.predicate_dest(ops[0]), a=asm.source(ops[1], "u64"), mod=number)


def _shared_value(asm: "Assembler", groups: Groups) -> int:
    """Flags of an operand that is a shared address: 32 or 64 bits, of the window or generic."""
    if groups["t"] == "u32" and "space" not in groups:
        raise asm.error("a generic address has 64 bits; .shared::cluster is missing")
    return (REG64 if groups["t"] == "u64" else 0) | (CLUSTER if "space" in groups else 0)


@form("mapa[.{space:shared::cluster}].{t:u32|u64}", section="9.7.9.22")
def mapa(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    kind = groups["t"]
    flags = _shared_value(asm, groups)
    a, b = asm.source(ops[1], kind), asm.source(ops[2], "u32")
    dest = asm.dest(ops[0], kind)
    if dest == NO_OPERAND:
        raise asm.error("the result of this instruction cannot be discarded")
    asm.emit("mapa", d=dest, a=a, b=b, flags=flags)


@form("getctarank[.{space:shared::cluster}].{t:u32|u64}", section="9.7.9.23")
def getctarank(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    flags = _shared_value(asm, groups)
    a, dest = asm.source(ops[1], groups["t"]), asm.dest(ops[0], "u32")
    if dest == NO_OPERAND:
        raise asm.error("the result of this instruction cannot be discarded")
    asm.emit("getctarank", d=dest, a=a, flags=flags)
