"""The fifth-generation tensor core and tensor memory: tcgen05 (PTX ISA 9.7.16)."""

from typing import TYPE_CHECKING

from ..ptx import Address, Vector
from ..registers import Register
from .copies import Entries
from .form import Groups, form
from .types import CLUSTER, NO_OPERAND

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

GROUP = "cta_group::{group:1|2}"
COLLECTOR = "[.collector::a::{collector:fill|use|lastuse|discard}]"
TARGETS = ("sm_100a", "sm_100f")


def _address(asm: "Assembler", operand: "Operand") -> int:
    """A register with an address in tensor memory: lane in the upper half, column in the lower."""
    if not isinstance(operand, Address) or operand.coordinates is not None:
        raise asm.error("an address in tensor memory is expected")
    a = asm.source(operand.base, "b32")
    if operand.offset == 0:
        return a
    target = asm.temporary(32)
    asm.emit("add.b32", d=target, a=a, b=asm.constant(operand.offset & 0xFFFFFFFF, 32))
    return target


# ---- allocation


@form(f"tcgen05.alloc.{GROUP}.sync.aligned[.{{space:shared::cta}}].b32", section="9.7.16.7.1")
def alloc(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    a, imm, flags = asm.address(ops[0], "shared" if "space" in groups else "generic")
    asm.emit("tcgen05.alloc", a=a, b=asm.source(ops[1], "u32"), imm=imm, flags=flags, mod=int(groups["group"]))


@form(f"tcgen05.dealloc.{GROUP}.sync.aligned.b32", section="9.7.16.7.1")
def dealloc(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    a, b = asm.source(ops[0], "b32"), asm.source(ops[1], "u32")
    asm.emit("tcgen05.dealloc", a=a, b=b, mod=int(groups["group"]))


@form(f"tcgen05.relinquish_alloc_permit.{GROUP}.sync.aligned", section="9.7.16.7.1")
def relinquish(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 0)
    asm.emit("tcgen05.relinquish", mod=int(groups["group"]))


# ---- ld, st

SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
REGISTERS = {"16x128b": 2, "16x256b": 4}  # of one repetition; else 1
COUNT = "x{count:1|2|4|8|16|32|64|128}"
SHAPE = "{shape:32x32b|16x64b|16x128b|16x256b|16x32bx2}"


def _move(
    asm: "Assembler", address: "Operand", half: "Operand | None", values: "Operand", groups: Groups, *, load: bool
) -> None:
    asm.require_target(*TARGETS)
    shape = groups["shape"]
    count = int(groups["count"]) * REGISTERS.get(shape, 1)
    if count > 128:
        raise asm.error(f".{shape} has no .x{groups['count']}")
    items = asm.vector(values, count) if isinstance(values, Vector) or count > 1 else (values,)
    registers = [asm.dest(item, "b32") if load else asm.source(item, "b32") for item in items]
    split = 0 if half is None else asm.literal(half, 0, 511)
    mod = SHAPES.index(shape) | ("packed" in groups) << 8
    name = "tcgen05.ld" if load else "tcgen05.st"
    a = _address(asm, address)
    if load and "tcgen05.fence" in asm.module.text:  # which holds them to wait::ld
        asm.held.update(register for register in registers if isinstance(register, Register))
    asm.emit(name, a=a, ext=registers, imm=split, mod=mod, defines=count if load else 0)


@form(f"tcgen05.ld.sync.aligned.{SHAPE}.{COUNT}[.{{packed:pack::16b}}].b32", section="9.7.16.8.3")
def load(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    split = groups["shape"] == "16x32bx2"
    asm.expect(ops, 2 + split)
    _move(asm, ops[1], ops[2] if split else None, ops[0], groups, load=True)


@form(f"tcgen05.st.sync.aligned.{SHAPE}.{COUNT}[.{{packed:unpack::16b}}].b32", section="9.7.16.8.4")
def store(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    split = groups["shape"] == "16x32bx2"
    asm.expect(ops, 2 + split)
    _move(asm, ops[0], ops[1] if split else None, ops[-1], groups, load=False)


@form("tcgen05.wait::{what:ld|st}.sync.aligned", section="9.7.16.8.5")
def wait(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 0)
    asm.emit("tcgen05.wait", mod=groups["what"] == "st")


@form("tcgen05.fence::{what:before_thread_sync|after_thread_sync}", section="9.7.16.11.1")
def fence(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 0)
    asm.emit("tcgen05.fence", mod=groups["what"] == "after_thread_sync")


# ---- cp, shift, commit

COPIES = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")


@form(
    f"tcgen05.cp.{GROUP}.{{shape:{'|'.join(COPIES)}}}[.b8x16.{{packed:b6x16_p32|b4x16_p64}}]",
    section="9.7.16.9.1",
)
def copy(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    expand = {"b6x16_p32": 6, "b4x16_p64": 4}.get(groups.get("packed", ""), 0)
    mod = int(groups["group"]) | COPIES.index(groups["shape"]) << 4 | expand << 8
    asm.emit("tcgen05.cp", a=_address(asm, ops[0]), b=asm.source(ops[1], "b64"), mod=mod)


@form(f"tcgen05.shift.{GROUP}.down", section="9.7.16.9.2")
def shift(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 1)
    asm.emit("tcgen05.shift", a=_address(asm, ops[0]), mod=int(groups["group"]))


@form(
    f"tcgen05.commit.{GROUP}.mbarrier::arrive::one[.{{space:shared::cluster}}][.{{multicast:multicast::cluster}}].b64",
    section="9.7.16.12.1",
)
def commit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    multicast = "multicast" in groups
    asm.expect(ops, 1 + multicast)
    entries = Entries(asm)
    entries.shared(ops[0])
    mask = asm.source(ops[1], "u16") if multicast else NO_OPERAND
    asm.emit("tcgen05.commit", a=entries.registers[0], b=mask, mod=int(groups["group"]), flags=CLUSTER | entries.wide)


# ---- mma

KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
PLAIN = "kind::{kind:f16|tf32|f8f6f4|i8}"
SCALED = "kind::{kind:mxf8f6f4|mxf4|mxf4nvf4}.block_scale"
# How many scale factors a row has in one instruction. K is 32 for mxf8f6f4, else 64.
SCALES = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}


def _multiply(
    asm: "Assembler",
    ops: "list[Operand]",
    groups: Groups,
    *,
    scales: "tuple[int, Operand, Operand] | None" = None,
    lanes: "tuple[Operand, ...]" = (),
    halvings: int = 0,
    weight_stationary: bool = False,
) -> None:
    """ops: d, a, b, instruction descriptor, enable-input-d."""
    asm.require_target(*TARGETS)
    d, a, b, descriptor, enable = ops
    in_tensor = isinstance(a, Address)
    ext = [
        _address(asm, d),
        _address(asm, a) if in_tensor else asm.source(a, "b64"),
        asm.source(b, "b64"),
        asm.source(descriptor, "b32"),
    ]
    ext += [NO_OPERAND, NO_OPERAND] if scales is None else [_address(asm, operand) for operand in scales[1:]]
    ext += [asm.source(lane, "b32") for lane in lanes]
    kind = KINDS.index(groups["kind"])
    count = 0 if scales is None else scales[0]
    imm = int(groups["group"]) | in_tensor << 2 | kind << 4 | count << 8 | halvings << 12 | weight_stationary << 16
    asm.emit("tcgen05.mma", ext=ext, c=asm.plain_predicate(enable), imm=imm)


@form(f"tcgen05.mma.{GROUP}.{PLAIN}{COLLECTOR}", section="9.7.16.10.9.1")
def mma(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    operands = list(ops)
    lanes: tuple[Operand, ...] = ()
    if len(operands) > 4 and isinstance(operands[4], Vector):
        lanes = asm.vector(operands.pop(4), 4 * int(groups["group"]))
    halvings = 0
    if len(operands) == 6:
        if groups["kind"] not in ("f16", "tf32"):
            raise asm.error("scale-input-d exists for .kind::f16 and .kind::tf32 only")
        halvings = asm.literal(operands.pop(), 0, 15)
    if len(operands) != 5:
        raise asm.error("[d], a, b, descriptor, {disabled lanes}, enable-input-d, scale-input-d are expected")
    _multiply(asm, operands, groups, lanes=lanes, halvings=halvings)


@form(
    f"tcgen05.mma.{GROUP}.{SCALED}[.{{vector:scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32}}]{COLLECTOR}",
    section="9.7.16.10.9.1",
)
def mma_block_scale(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 7)
    count = SCALES[groups["kind"]].get(groups.get("vector", ""))
    if count is None:
        raise asm.error(f".kind::{groups['kind']} has no .{groups.get('vector', 'block_scale without a vector size')}")
    _multiply(asm, [*ops[:4], ops[6]], groups, scales=(count, ops[4], ops[5]))


@form(f"tcgen05.mma.ws.{GROUP}.{PLAIN}[.collector::b{{buffer:0|1|2|3}}::{{collector:fill|use|lastuse|discard}}]",
      section="9.7.16.10.9.3")  # fmt: skip
def mma_weight_stationary(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    if len(ops) == 6:
        raise asm.error("a zero-column mask (of convolutions) is not simulated")
    asm.expect(ops, 5)
    if groups["group"] != "1":
        raise asm.error(".ws exists for .cta_group::1 only")
    _multiply(asm, list(ops), groups, weight_stationary=True)


@form(
    f"tcgen05.mma.sp.{GROUP}.{PLAIN}[.{{ashift:ashift}}]{COLLECTOR}",
    f"tcgen05.mma.sp.{GROUP}.{SCALED}[.{{vector:scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32}}]{COLLECTOR}",
    f"tcgen05.mma.ws.sp.{GROUP}.{PLAIN}[.collector::b{{buffer:0|1|2|3}}::{{collector:fill|use|lastuse|discard}}]",
    section="9.7.16.10.9.2",
)
def mma_sparse(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("sparse matrices are not simulated; the dense tcgen05.mma is")


@form(f"tcgen05.mma.{GROUP}.{PLAIN}.ashift{COLLECTOR}", section="9.7.16.10.9.1")
def mma_shifted(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error(".ashift (of convolutions) is not simulated; tcgen05.shift is")
