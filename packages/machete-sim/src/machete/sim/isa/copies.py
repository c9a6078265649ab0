"""Asynchronous copies: cp.async, bulk and tensor copies by TMA (PTX ISA 9.7.9.24 to 9.7.9.27)."""

from typing import TYPE_CHECKING

from ..ptx import Address
from .form import Groups, form
from .memory import ATOMIC_TYPES, OPERATIONS, generic_address
from .types import NO_OPERAND, REG64, WIDTHS

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

TO_SHARED = "shared::{dst:cta|cluster}.global"
MBARRIER = "mbarrier::complete_tx::bytes"
MULTICAST = "[.{multicast:multicast::cluster}]"
HINT = "[.{hint:L2::cache_hint}]"
GROUP = "[.{group:cta_group::1|cta_group::2}]"
RANK = "{rank:1|2|3|4|5}d"


class Entries:
    """The operand list of a copy: registers, and a bit per entry that is 64 bits wide."""

    def __init__(self, asm: "Assembler") -> None:
        self.asm = asm
        self.registers: list[int] = []
        self.wide = 0

    def add(self, register: int, wide: bool) -> None:
        self.wide |= wide << len(self.registers)
        self.registers.append(register)

    def shared(self, operand: "Operand") -> None:
        a, offset, flag = self.asm.address(operand, "shared")
        if offset:
            width = 64 if flag else 32
            target = self.asm.temporary(width)
            self.asm.emit(f"add.b{width}", d=target, a=a, b=self.asm.constant(offset, width))
            a = target
        self.add(a, bool(flag))

    def global_(self, operand: "Operand") -> None:
        a, offset, flag = self.asm.address(operand, "global")
        if not flag:
            raise self.asm.error("a 64-bit address is expected")
        if offset:
            target = self.asm.temporary(64)
            self.asm.emit("add.b64", d=target, a=a, b=self.asm.constant(offset, 64))
            a = target
        self.add(a, True)

    def word(self, operand: "Operand", kind: str = "u32") -> None:
        self.add(self.asm.source(operand, kind), False)

    def tensor(self, operand: "Operand", rank: int) -> "tuple[Operand, ...]":
        """Adds the tensor map, returns the coordinates."""
        if not isinstance(operand, Address) or operand.coordinates is None or len(operand.coordinates) != rank:
            raise self.asm.error(f"[tensor map, {{{rank} coordinates}}] is expected")
        self.add(generic_address(self.asm, Address(operand.base, operand.offset)), True)
        return operand.coordinates

    def emit(self, name: str, mod: int = 0) -> None:
        self.asm.emit(name, ext=self.registers, imm=self.wide, mod=mod)


def _trailing(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups, count: int) -> "Operand | None":
    """Checks the operand count; returns the multicast mask. A cache hint is last."""
    multicast, hint = "multicast" in groups, "hint" in groups
    asm.expect(ops, count + multicast + hint)
    if hint:
        asm.source(ops[-1], "b64")
    return ops[count] if multicast else None


# ---- bulk


@form(f"cp.async.bulk.{TO_SHARED}.{MBARRIER}{MULTICAST}{HINT}", section="9.7.9.25.4.1")
def bulk_load(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    mask = _trailing(asm, ops, groups, 4)
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.global_(ops[1])
    entries.word(ops[2])
    entries.shared(ops[3])
    if mask is not None:
        entries.word(mask, "u16")
    entries.emit("bulk.load", mod=mask is not None)


@form(f"cp.async.bulk.shared::cluster.shared::cta.{MBARRIER}", section="9.7.9.25.4.1")
def bulk_peer(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _bulk_peer(asm, ops, 0)


def _bulk_peer(asm: "Assembler", ops: "tuple[Operand, ...]", mod: int) -> None:
    asm.expect(ops, 4)
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.shared(ops[1])
    entries.word(ops[2])
    entries.shared(ops[3])
    entries.emit("bulk.peer", mod=mod)


@form(f"cp.async.bulk.global.shared::cta.bulk_group{HINT}", section="9.7.9.25.4.1")
def bulk_store(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _trailing(asm, ops, groups, 3)
    _bulk_store(asm, ops, 0)


@form(f"cp.async.bulk.global.shared::cta.bulk_group{HINT}.cp_mask", section="9.7.9.25.4.1")
def bulk_store_masked(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target("sm_100a", "sm_100f", "sm_120a", "sm_120f")
    hint = "hint" in groups
    asm.expect(ops, 4 + hint)
    if hint:
        asm.source(ops[3], "b64")
    entries = Entries(asm)
    entries.global_(ops[0])
    entries.shared(ops[1])
    entries.word(ops[2])
    entries.word(ops[-1], "u16")
    entries.emit("bulk.store", mod=2)


@form("st.bulk[.weak][.shared::cta]", section="9.7.9.13")
def bulk_zero(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target("sm_100a", "sm_100f", "sm_120a", "sm_120f")
    asm.expect(ops, 3)
    asm.literal(ops[2], 0, 0)
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.add(asm.source(ops[1], "u64"), True)
    entries.emit("bulk.zero")


REDUCTIONS = (
    "{op:add}.{t:u32|s32|u64|f32|f64}",
    "{op:add}.noftz.{t:f16|bf16}",
    "{op:min|max}.{t:u32|s32|u64|s64|f16|bf16}",
    "{op:and|or|xor}.{t:b32|b64}",
    "{op:inc|dec}.{t:u32}",
)


SHARED_REDUCTIONS = (
    "{op:add}.{t:u32|s32|u64}",
    "{op:min|max}.{t:u32|s32}",
    "{op:and|or|xor}.{t:b32}",
    "{op:inc|dec}.{t:u32}",
)


@form(
    *(f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}.{tail}" for tail in REDUCTIONS), section="9.7.9.25.4.2"
)
def bulk_reduce(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _trailing(asm, ops, groups, 3)
    _bulk_store(asm, ops, 1 | OPERATIONS[groups["op"]] << 8 | ATOMIC_TYPES[groups["t"]] << 16)


@form(
    *(f"cp.reduce.async.bulk.shared::cluster.shared::cta.{MBARRIER}.{tail}" for tail in SHARED_REDUCTIONS),
    section="9.7.9.25.4.2",
)
def peer_reduce(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _bulk_peer(asm, ops, 1 | OPERATIONS[groups["op"]] << 8 | ATOMIC_TYPES[groups["t"]] << 16)


def _bulk_store(asm: "Assembler", ops: "tuple[Operand, ...]", mod: int) -> None:
    entries = Entries(asm)
    entries.global_(ops[0])
    entries.shared(ops[1])
    entries.word(ops[2])
    entries.emit("bulk.store", mod=mod)


@form(f"cp.async.bulk.prefetch.L2.global{HINT}", section="9.7.9.25.4.3")
def bulk_prefetch(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _trailing(asm, ops, groups, 2)
    entries = Entries(asm)
    entries.global_(ops[0])
    entries.word(ops[1])
    entries.emit("bulk.prefetch")


# ---- tensor tiles


@form(f"cp.async.bulk.tensor.{RANK}.{TO_SHARED}[.tile].{MBARRIER}{MULTICAST}{GROUP}{HINT}",
      f"cp.async.bulk.tensor.{RANK}.{TO_SHARED}[.tile].{MBARRIER}{MULTICAST}.{{hint:L2::cache_hint}}{GROUP}",
      f"cp.async.bulk.tensor.{{rank:2}}d.{TO_SHARED}.{{four:tile::gather4}}.{MBARRIER}{MULTICAST}{GROUP}{HINT}",
      f"cp.async.bulk.tensor.{{rank:2}}d.{TO_SHARED}.{{four:tile::gather4}}.{MBARRIER}{MULTICAST}"
      f".{{hint:L2::cache_hint}}{GROUP}",
      section="9.7.9.27.1.2")  # fmt: skip
def tile_load(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    mask = _trailing(asm, ops, groups, 3)
    four_rows = "four" in groups
    if four_rows:
        asm.require_target("sm_100a", "sm_100f")
    rank = int(groups["rank"])
    entries = Entries(asm)
    entries.shared(ops[0])
    coordinates = entries.tensor(ops[1], 5 if four_rows else rank)
    entries.shared(ops[2])
    for coordinate in coordinates:
        entries.word(coordinate, "s32")
    if mask is not None:
        entries.word(mask, "u16")
    pairs = groups.get("group") == "cta_group::2"
    entries.emit("tile.load", mod=rank | (mask is not None) << 8 | pairs << 9 | four_rows << 10)


@form(f"cp.async.bulk.tensor.{RANK}.global.shared::cta[.tile].bulk_group{HINT}",
      f"cp.async.bulk.tensor.{{rank:2}}d.global.shared::cta.{{four:tile::scatter4}}.bulk_group{HINT}",
      section="9.7.9.27.1.2")  # fmt: skip
def tile_store(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _tile_store(asm, ops, groups, 0)


@form(f"cp.reduce.async.bulk.tensor.{RANK}.global.shared::cta.{{op:add|min|max|inc|dec|and|or|xor}}[.tile].bulk_group{HINT}",
      section="9.7.9.27.1.3")  # fmt: skip
def tile_reduce(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _tile_store(asm, ops, groups, 1 + OPERATIONS[groups["op"]])


def _tile_store(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups, reduction: int) -> None:
    _trailing(asm, ops, groups, 2)
    rank = int(groups["rank"])
    entries = Entries(asm)
    four_rows = "four" in groups
    if four_rows:
        asm.require_target("sm_100a", "sm_100f")
    coordinates = entries.tensor(ops[0], 5 if four_rows else rank)
    entries.shared(ops[1])
    for coordinate in coordinates:
        entries.word(coordinate, "s32")
    entries.emit("tile.store", mod=rank | reduction << 8 | four_rows << 16)


@form(f"cp.async.bulk.prefetch.tensor.{RANK}.L2.global[.tile]{HINT}",
      f"cp.async.bulk.prefetch.tensor.{{rank:2}}d.L2.global.{{four:tile::gather4}}{HINT}",
      section="9.7.9.27.1.4")  # fmt: skip
def tile_prefetch(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _trailing(asm, ops, groups, 1)
    rank = int(groups["rank"])
    entries = Entries(asm)
    for coordinate in entries.tensor(ops[0], 5 if "four" in groups else rank):
        entries.word(coordinate, "s32")
    entries.emit("tile.prefetch", mod=rank)


@form("cp.async.bulk.commit_group", section="9.7.9.25.3.1")
def bulk_commit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("bulk.commit")


@form("cp.async.bulk.wait_group[.{read:read}]", section="9.7.9.25.3.2")
def bulk_wait(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("bulk.wait", imm=asm.literal(ops[0], 0, 1 << 20), mod="read" in groups)


# ---- cp.async of single threads


@form("cp.async.{cache:ca|cg}.{dst:shared|shared::cta}.global[.{hint:L2::cache_hint}][.{prefetch:L2::64B|L2::128B|L2::256B}]",
      section="9.7.9.24.3")  # fmt: skip
def copy(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    hint = "hint" in groups
    asm.expect(ops, 3 + hint, 4 + hint)
    if hint:
        asm.source(ops[-1], "b64")
        ops = ops[:-1]
    nbytes = asm.literal(ops[2], 4, 16)
    if nbytes not in (4, 8, 16) or (groups["cache"] == "cg" and nbytes != 16):
        raise asm.error(f"cp.async.{groups['cache']} cannot copy {nbytes} bytes")
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.global_(ops[1])
    size = ignore = NO_OPERAND
    if len(ops) == 4:
        if asm.is_predicate(ops[3]):
            ignore = asm.plain_predicate(ops[3])
        else:
            size = asm.source(ops[3], "u32")
    asm.emit("cp.async", ext=[*entries.registers, size, ignore], imm=entries.wide, mod=nbytes)


@form("cp.async.commit_group", section="9.7.9.24.4")
def commit(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("cp.async.commit")


@form("cp.async.wait_group", section="9.7.9.24.5")
def wait_group(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("cp.async.wait", imm=asm.literal(ops[0], 0, 1 << 20))


@form("cp.async.wait_all", section="9.7.9.24.5")
def wait_all(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("cp.async.wait", mod=1)


@form("cp.async.mbarrier.arrive[.{noinc:noinc}][.{space:shared::cta|shared}].b64", section="9.7.13.15.14")
def arrive(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    a, imm, flags = asm.address(ops[0], "shared" if "space" in groups else "generic")
    asm.emit("cp.async.arrive", a=a, imm=imm, flags=flags, mod="noinc" in groups)


# ---- stores of registers that report to an mbarrier


def _store_async(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups, mod: int) -> None:
    asm.expect(ops, 3)
    kind = groups["t"]
    count = int(groups["vec"][1:]) if "vec" in groups else 1
    values = asm.vector(ops[1], count) if "vec" in groups else (ops[1],)
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.shared(ops[2])
    registers = [asm.source(value, kind) for value in values]
    flags = REG64 if WIDTHS[kind] == 64 else 0
    asm.emit("st.async", ext=[*entries.registers, *registers], imm=entries.wide, mod=mod, flags=flags)


@form(
    f"st.async[.weak].shared::cluster.{MBARRIER}[.{{vec:v2}}].{{t:b32|b64|u32|u64|s32|s64|f32|f64}}",
    f"st.async[.weak].shared::cluster.{MBARRIER}.{{vec:v4}}.{{t:b32|u32|s32|f32}}",
    section="9.7.9.12",
)
def store_async(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _store_async(asm, ops, groups, 0)


@form(
    *(f"red.async.relaxed.cluster[.shared::cluster].{MBARRIER}.{tail}" for tail in SHARED_REDUCTIONS),
    section="9.7.13.8",
)
def reduce_async(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _store_async(asm, ops, groups, 1 | OPERATIONS[groups["op"]] << 8 | ATOMIC_TYPES[groups["t"]] << 16)


# ---- tensor maps edited by the kernel

FIELDS = {
    "global_address": 0, "rank": 1, "box_dim": 2, "global_dim": 3, "global_stride": 4, "element_stride": 5,
    "elemtype": 6, "interleave_layout": 7, "swizzle_mode": 8, "fill_mode": 9, "swizzle_atomicity": 10,
}  # fmt: skip
VALUES = {"elemtype": 15, "interleave_layout": 2, "swizzle_mode": 3, "fill_mode": 1, "swizzle_atomicity": 3}
MAP_SPACE = "[.{space:global|shared::cta}].b1024"


def _replace(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    field = groups["field"]
    ordinal = field in ("box_dim", "global_dim", "global_stride", "element_stride")
    asm.expect(ops, 2 + ordinal)
    space = groups.get("space", "generic").partition(":")[0]
    a, imm, flags = asm.address(ops[0], space)
    mod = FIELDS[field] | (space == "shared") << 8
    if ordinal:
        mod |= asm.literal(ops[1], 0, 3 if field == "global_stride" else 4) << 4
    b = NO_OPERAND
    if field in VALUES:
        mod |= asm.literal(ops[1], 0, VALUES[field]) << 16
    else:
        b = asm.source(ops[-1], groups["t"])
        flags |= REG64 if groups["t"] == "b64" else 0
    asm.emit("tensormap.replace", a=a, b=b, imm=imm, flags=flags, mod=mod)


@form(
    f"tensormap.replace.tile.{{field:global_address|global_stride}}{MAP_SPACE}.{{t:b64}}",
    f"tensormap.replace.tile.{{field:rank|box_dim|global_dim|element_stride|{'|'.join(VALUES)}}}{MAP_SPACE}.{{t:b32}}",
    section="9.7.9.28.1",
)
def tensormap_replace(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    _replace(asm, ops, groups)


@form(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope:cta|cluster|gpu|sys}.sync.aligned",
    section="9.7.13.7",
)
def tensormap_copy(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    asm.literal(ops[2], 128, 128)
    entries = Entries(asm)
    entries.global_(ops[0])
    entries.shared(ops[1])
    entries.emit("tensormap.copy")


# ---- what TMA can do beyond tiles


@form(
    f"cp.async.bulk.tensor.{RANK}.{TO_SHARED}.{{mode:im2col|im2col::w|im2col::w::128}}.{MBARRIER}{MULTICAST}{GROUP}{HINT}",
    f"cp.async.bulk.tensor.{RANK}.global.shared::cta.im2col_no_offs.bulk_group{HINT}",
    f"cp.async.bulk.prefetch.tensor.{RANK}.L2.global.{{mode:im2col|im2col::w|im2col::w::128}}{HINT}",
    section="9.7.9.27.1.2",
)
def im2col(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    raise asm.error("im2col copies (of convolutions) are not simulated; tiled copies, gather4 and scatter4 are")
