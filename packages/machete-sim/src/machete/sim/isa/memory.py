"""Loads, stores, atomics and prefetches (PTX ISA 9.7.9.8 to 9.7.9.18, 9.7.13.6 to 9.7.13.8).

Cache and eviction hints are listed, checked and have no effect. Warps are interleaved at whole instructions, so
ordering modifiers change no value: they are what the race checker goes by, and loads that have them count as polling
when they see the same value again.
"""

from typing import TYPE_CHECKING

from ..ptx import Address, Name, Vector
from .form import Groups, form
from .types import ADDR64, CLUSTER, NO_OPERAND, POLL, REG64, SIGNED, WIDTHS, is_signed

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

# MemoryOrder and ScopeLevel in native/checker.hpp.
ORDERS = {"relaxed": 1, "volatile": 1, "acquire": 2, "release": 3, "acq_rel": 4}
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "gl": 2, "sys": 3}
SCOPE_SHIFT, ATOMIC_ORDER_SHIFT = 3, 16
SCOPE = "{scope:cta|cluster|gpu|sys}"
L1 = "{l1:L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate}"
L2 = "{l2:L2::evict_normal|L2::evict_first|L2::evict_last}"
HINT = "{hint:L2::cache_hint}"
PREFETCH = "{prefetch:L2::64B|L2::128B|L2::256B}"
CACHING = f"[.{L1}][.{L2}][.{HINT}][.{PREFETCH}]"
LOAD_SPACE = "{space:const|global|local|param::entry|param|shared::cta|shared::cluster|shared}"
STORE_SPACE = "{space:global|local|shared::cta|shared::cluster|shared}"
KINDS = "{t:b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64}"
TAIL = f"[.{{vec:v2|v4|v8}}].{KINDS}"


def native_space(groups: Groups) -> str:
    space = groups.get("space", "generic")
    if space == "shared::cluster":
        return "cluster"
    return {"const": "global"}.get(space.partition(":")[0], space.partition(":")[0])


def ordering(groups: Groups) -> int:
    """MemoryOrder and ScopeLevel of a load or store; volatile is relaxed at the widest scope."""
    order = groups.get("order")
    return 0 if order is None else ORDERS[order] | SCOPES[groups.get("scope", "sys")] << SCOPE_SHIFT


def checked_vector(asm: "Assembler", operand: "Operand", groups: Groups) -> "tuple[Operand, ...]":
    """The registers of a scalar or vector access."""
    if "vec" not in groups:
        if isinstance(operand, Vector):
            raise asm.error("a vector operand needs .v2, .v4 or .v8")
        return (operand,)
    count = int(groups["vec"][1:])
    nbytes = count * WIDTHS[groups["t"]] // 8
    if nbytes > 32 or (nbytes == 32 and WIDTHS[groups["t"]] < 32) or (count == 8 and WIDTHS[groups["t"]] != 32):
        raise asm.error(f".{groups['vec']}.{groups['t']} does not exist")
    return asm.vector(operand, count)


@form(
    f"ld[.weak][.{LOAD_SPACE}]{CACHING}{TAIL}",
    f"ld[.weak][.{LOAD_SPACE}].{{cop:ca|cg|cs|lu|cv}}[.{HINT}][.{PREFETCH}]{TAIL}",
    f"ld.{{order:volatile}}[.{LOAD_SPACE}][.{PREFETCH}]{TAIL}",
    f"ld.{{order:relaxed|acquire}}.{SCOPE}[.{LOAD_SPACE}]{CACHING}{TAIL}",
    f"ld.mmio.{{order:relaxed}}.sys[.{{space:global}}].{KINDS}",
    f"ld.{{space:global}}[.{{cop:ca|cg|cs}}].nc{CACHING}{TAIL}",
    section="9.7.9.8",
)
def load(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3 if "hint" in groups else 2)
    if "hint" in groups:
        asm.source(ops[2], "b64")
    kind, space = groups["t"], native_space(groups)
    if space == "param" and asm.is_argument(ops[1]):
        argument = ops[1].base  # type: ignore[union-attr]
        asm.emit(f"mov.b{max(WIDTHS[kind], 16)}", d=asm.dest(ops[0], kind), a=asm.source(argument, kind))
        return
    targets = checked_vector(asm, ops[0], groups)
    registers = [asm.dest(op, kind, wider=True) for op in targets]
    a, offset, wide = asm.address(ops[1], groups.get("space", "generic").partition(":")[0])
    flags = (
        wide | asm.data_flags(targets, kind) | (SIGNED if is_signed(kind) else 0) | (POLL if "order" in groups else 0)
    )
    name = f"ld.{space}.{WIDTHS[kind]}"
    if "vec" in groups:
        asm.emit(name, a=a, imm=offset, flags=flags, mod=ordering(groups), ext=registers, defines=len(registers))
    else:
        asm.emit(name, d=registers[0], a=a, imm=offset, flags=flags, mod=ordering(groups))


@form(
    f"st[.weak][.{STORE_SPACE}][.{L1}][.{L2}][.{HINT}]{TAIL}",
    f"st[.weak][.{STORE_SPACE}].{{cop:wb|cg|cs|wt}}[.{HINT}]{TAIL}",
    f"st.{{order:volatile}}[.{STORE_SPACE}]{TAIL}",
    f"st.{{order:relaxed|release}}.{SCOPE}[.{STORE_SPACE}][.{L1}][.{L2}][.{HINT}]{TAIL}",
    f"st.mmio.{{order:relaxed}}.sys[.{{space:global}}].{KINDS}",
    section="9.7.9.11",
)
def store(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3 if "hint" in groups else 2)
    if "hint" in groups:
        asm.source(ops[2], "b64")
    kind = groups["t"]
    values = checked_vector(asm, ops[1], groups)
    registers = [asm.source(op, kind, wider=True) for op in values]
    a, offset, wide = asm.address(ops[0], groups.get("space", "generic").partition(":")[0])
    width_flags = {
        (REG64 if asm.width(op) == 64 else 0) if asm.is_register(op) else (REG64 if WIDTHS[kind] == 64 else 0)
        for op in values
    }
    if len(width_flags) > 1:
        raise asm.error("registers of one vector must have one width")
    flags = wide | width_flags.pop() | (POLL if "order" in groups else 0)
    name = f"st.{native_space(groups)}.{WIDTHS[kind]}"
    if "vec" in groups:
        asm.emit(name, a=a, imm=offset, flags=flags, mod=ordering(groups), ext=registers)
    else:
        asm.emit(name, d=registers[0], a=a, imm=offset, flags=flags, mod=ordering(groups), reads_d=True)


@form(f"st.param.{KINDS}", section="9.7.9.11")
def store_argument(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    """An argument of a call."""
    asm.expect(ops, 2)
    kind = groups["t"]
    if not asm.is_argument(ops[0]):
        raise asm.error("an argument of a call is expected; parameters of kernels are read-only")
    target = asm.dest(ops[0].base, kind)  # type: ignore[union-attr]
    asm.emit(f"mov.b{max(WIDTHS[kind], 16)}", d=target, a=asm.source(ops[1], kind))


# ---- atomics

OPERATIONS = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5, "exch": 6, "cas": 7, "inc": 8, "dec": 9}
ATOMIC_TYPES = {
    "u32": 0, "s32": 1, "u64": 2, "s64": 3, "b32": 4, "b64": 5, "f32": 6, "f64": 7, "f16": 8, "bf16": 9, "f16x2": 10,
    "bf16x2": 11, "b16": 12, "b128": 13,
}  # fmt: skip
SPACE = "{space:global|shared::cta|shared::cluster|shared}"
ATOM = f"atom[.{{sem:relaxed|acquire|release|acq_rel}}][.{SCOPE}][.{SPACE}]"
RED = f"red[.{{sem:relaxed|release}}][.{SCOPE}][.{SPACE}]"
# NVVM writes atomics without .sem the other way round, and ptxas takes it.
SPACE_FIRST = f".{SPACE}.{SCOPE}"
ARITHMETIC = (
    f".{{op:add}}[.{HINT}].{{t:u32|s32|u64|s64|f32|f64}}",
    f".{{op:min|max}}[.{HINT}].{{t:u32|s32|u64|s64}}",
    f".{{op:and|or|xor}}[.{HINT}].{{t:b32|b64}}",
    f".{{op:inc|dec}}[.{HINT}].{{t:u32}}",
    f".{{op:add|min|max}}.noftz[.{HINT}].{{t:f16|bf16|f16x2|bf16x2}}",
    f".{{op:add}}[.{HINT}].{{vec:v2|v4}}.{{t:f32}}",
    f".{{op:add|min|max}}.noftz[.{HINT}].{{vec:v2|v4|v8}}.{{t:f16|bf16}}",
    f".{{op:add|min|max}}.noftz[.{HINT}].{{vec:v2|v4}}.{{t:f16x2|bf16x2}}",
)


@form(
    *(head + tail for head in (ATOM, "atom" + SPACE_FIRST) for tail in ARITHMETIC),
    *(f"{head}.{{op:exch}}[.{HINT}].{{t:b32|b64|b128}}" for head in (ATOM, "atom" + SPACE_FIRST)),
    *(f"{head}.{{op:cas}}[.{HINT}].{{t:b16|b32|b64|b128}}" for head in (ATOM, "atom" + SPACE_FIRST)),
    section="9.7.13.6",
)
def atom(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    count = 4 if groups["op"] == "cas" else 3
    asm.expect(ops, count + ("hint" in groups))
    if "hint" in groups:
        asm.source(ops[count], "b64")
    _atomic(asm, ops[0], ops[1], ops[2:count], groups)


@form(*(head + tail for head in (RED, "red" + SPACE_FIRST) for tail in ARITHMETIC), section="9.7.13.8")
def red(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2 + ("hint" in groups))
    if "hint" in groups:
        asm.source(ops[2], "b64")
    _atomic(asm, None, ops[0], ops[1:2], groups)


def _atomic(
    asm: "Assembler", target: "Operand | None", address: "Operand", values: "tuple[Operand, ...]", groups: Groups
) -> None:
    kind, space = groups["t"], native_space(groups)
    if "vec" in groups and space != "global":
        raise asm.error("vector atomics exist in .global only")
    a, offset, flags = asm.address(address, {"generic": "", "cluster": "shared"}.get(space, space))
    if space == "cluster":
        space, flags = "shared", flags | CLUSTER
    name = f"atom.{space}.{WIDTHS[kind]}"
    mod = OPERATIONS[groups["op"]] | ATOMIC_TYPES[kind] << 8
    order = ORDERS[groups.get("sem", "relaxed")] | SCOPES[groups.get("scope", "gpu")] << SCOPE_SHIFT
    mod |= order << ATOMIC_ORDER_SHIFT
    if "vec" in groups:
        count = int(groups["vec"][1:])
        targets = [NO_OPERAND] * count if target is None else [asm.dest(op, kind) for op in asm.vector(target, count)]
        sources = [asm.source(op, kind) for op in asm.vector(values[0], count)]
        asm.emit(name, a=a, imm=offset, flags=flags, mod=mod, ext=targets + sources, count=count, defines=count)
        return
    b = asm.source(values[0], kind)
    c = asm.source(values[1], kind) if len(values) > 1 else NO_OPERAND
    asm.emit(
        name,
        d=NO_OPERAND if target is None else asm.dest(target, kind),
        a=a,
        b=b,
        c=c,
        imm=offset,
        flags=flags,
        mod=mod,
    )


REDUCED = "{t:u32|s32|u64|s64|b32|b64|f16|f16x2|bf16|bf16x2|f32|f64|e5m2|e5m2x2|e5m2x4|e4m3|e4m3x2|e4m3x4}"
MULTIMEM = f"[.{{vec:v2|v4|v8}}].{REDUCED}"


@form(
    f"multimem.ld_reduce[.{{sem:weak|relaxed|acquire}}][.{SCOPE}][.global].{{op:add|min|max|and|or|xor}}"
    f"[.acc::{{acc:f32|f16}}]{MULTIMEM}",
    f"multimem.st[.{{sem:weak|relaxed|release}}][.{SCOPE}][.global]{MULTIMEM}",
    f"multimem.red[.{{sem:relaxed|release}}][.{SCOPE}][.global].{{op:add|min|max|and|or|xor}}{MULTIMEM}",
    "multimem.cp.async.bulk.global.shared::cta[.{group:bulk_group}]",
    "multimem.cp.reduce.async.bulk.global.shared::cta[.{group:bulk_group}].{op:add|min|max|and|or|xor|inc|dec}[.noftz]"
    f".{REDUCED}",
    section="9.7.9.12",
)
def multimem(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("the driver makes addresses of multimem for the memory of several GPUs; one GPU is simulated")


# ---- prefetches


@form(
    "prefetch[.{space:global|local}].{level:L1|L2}",
    "prefetch.{space:global}.L2::{evict:evict_last|evict_normal}",
    "prefetchu.L1",
    section="9.7.9.15",
)
def prefetch(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.address(ops[0], groups.get("space", "generic"))
    asm.emit("nop")


@form("prefetch[.{space:param|const}].tensormap", section="9.7.9.15")
def prefetch_tensormap(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("prefetch.tensormap", ext=[generic_address(asm, ops[0])], imm=1)


@form("applypriority[.global].L2::evict_normal", "discard[.global].L2", section="9.7.9.16")
def priority(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.address(ops[0], "global")
    asm.literal(ops[1], 128, 128)
    asm.emit("nop")


@form(
    f"createpolicy.fractional.{L2.replace('{l2:', '{first:')}[.{{second:L2::evict_first|L2::evict_unchanged}}].b64",
    section="9.7.9.18",
)
def createpolicy(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1, 2)
    asm.emit("mov.b64", d=asm.dest(ops[0], "b64"), a=asm.constant(0, 64))


def generic_address(asm: "Assembler", operand: "Operand") -> int:
    """A 64-bit register that holds a generic address; parameters are given by name."""
    if not isinstance(operand, Address):
        raise asm.error("an address is expected")
    base = operand.base
    if isinstance(base, Name) and asm.symbols.get(base.text, ("",))[0] == "param":
        offset = asm.constant(asm.symbols[base.text][1] + operand.offset, 64)
        target = asm.temporary(64)
        asm.emit("cvta.param", d=target, a=offset)
        return target
    a, offset, wide = asm.address(operand, "generic")
    if wide != ADDR64:
        raise asm.error("a 64-bit address is expected")
    if offset == 0:
        return a
    target = asm.temporary(64)
    asm.emit("add.b64", d=target, a=a, b=asm.constant(offset, 64))
    return target
