"""Control flow, fences, exchange inside a warp, named barriers (PTX ISA 9.7.12, 9.7.13, 9.7.19)."""

from typing import TYPE_CHECKING

from ..ptx import Immediate, Name
from .form import Groups, form
from .memory import ATOMIC_TYPES, OPERATIONS, SCOPES, generic_address
from .types import NO_OPERAND

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

NEGATE = 256


@form("bra[.uni]", section="9.7.12.3")
def bra(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    if not isinstance(ops[0], Name):
        raise asm.error("a label is expected")
    asm.branch(ops[0].text)


@form("{op:ret|exit}[.uni]", section="9.7.12.6")
def leave(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("exit")


@form("call[.uni]", section="9.7.12.5")
def call(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    """printf is the only function that is not inlined."""
    if len(ops) != 3 or not isinstance(ops[1], Name) or ops[1].text != "vprintf":
        raise asm.error("only calls of vprintf, (result), vprintf, (format, arguments), are understood")
    (result,), (pattern, arguments) = asm.vector(ops[0], 1), asm.vector(ops[2], 2)
    a, b = asm.source(pattern, "b64"), asm.source(arguments, "b64")
    asm.emit("vprintf", d=asm.dest(result, "b32"), a=a, b=b)


@form("{op:trap|brkpt}", section="9.7.19")
def trap(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("trap", mod=groups["op"] == "brkpt")


@form("nanosleep.u32", section="9.7.19.2")
def nanosleep(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.source(ops[0], "u32")
    asm.emit("nanosleep")


@form("setmaxnreg.{op:inc|dec}.sync.aligned.u32", section="9.7.19.5")
def setmaxnreg(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    if asm.literal(ops[0], 24, 256) % 8:
        raise asm.error("a register count is a multiple of 8")
    asm.emit("nop")


@form(
    "griddepcontrol.{op:launch_dependents|wait}",
    "fence.proxy.alias",
    "fence.proxy.tensormap::generic.release.{scope:cta|cluster|gpu|sys}",
    section="9.7.13.4",
)
def no_effect(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("nop")


# As in native/control.cpp: what becomes visible to the asynchronous proxy; a memory fence and its scope.
SHARED, GLOBAL, BARRIERS, MEMORY, SCOPE_SHIFT = 1, 2, 4, 8, 4


@form(
    "membar.{scope:cta|gl|sys}",
    "fence[.{sem:sc|acq_rel|acquire|release}].{scope:cta|cluster|gpu|sys}",
    "fence.{sem:acquire|release}.sync_restrict::shared::{space:cta|cluster}.{scope:cluster}",
    section="9.7.13.4",
)
def fence(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("fence", mod=MEMORY | SCOPES[groups["scope"]] << SCOPE_SHIFT)


@form("fence.mbarrier_init.release.{scope:cluster}", section="9.7.13.4")
def fence_mbarrier_init(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("fence", mod=BARRIERS | MEMORY | SCOPES[groups["scope"]] << SCOPE_SHIFT)


@form(
    "fence.proxy.async[.{space:global|shared::cta|shared::cluster}]",
    "fence.proxy.async::generic.{sem:acquire|release}.sync_restrict::{space:shared::cta|shared::cluster}.cluster",
    section="9.7.13.4",
)
def fence_proxy(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    space = groups.get("space")
    asm.emit(
        "fence", mod=(0 if space == "global" else SHARED | BARRIERS) | (GLOBAL if space in (None, "global") else 0)
    )


@form("wgmma.fence.sync.aligned", section="9.7.15.7.1")
def fence_wgmma(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit("wgmma.fence")


@form("fence.proxy.tensormap::generic.acquire.{scope:cta|cluster|gpu|sys}", section="9.7.13.4")
def fence_tensormap(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.literal(ops[1], 128, 128)
    asm.emit("fence.tensormap", a=generic_address(asm, ops[0]))


# ---- exchange inside a warp

SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


@form("shfl.sync.{mode:up|down|bfly|idx}.b32", section="9.7.9.6")
def shfl(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 5)
    first, second = asm.pair(ops[0])
    a = asm.source(ops[1], "b32")
    b, c, members = (asm.source(op, "u32") for op in ops[2:])
    asm.emit(
        "shfl",
        d=asm.dest(first, "b32"),
        e=asm.predicate_dest(second) if second is not None else NO_OPERAND,
        a=a,
        b=b,
        c=c,
        mod=SHUFFLES[groups["mode"]],
        ext=[members],
    )


@form("vote.sync.{mode:all|any|uni}.pred", "vote.sync.{mode:ballot}.b32", section="9.7.13.9")
def vote(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    mode = ("all", "any", "uni", "ballot").index(groups["mode"])
    source, negated = asm.predicate(ops[1])
    dest = asm.dest(ops[0], "b32") if mode == 3 else asm.predicate_dest(ops[0])
    asm.emit("vote", d=dest, a=source, b=asm.source(ops[2], "b32"), mod=mode | (NEGATE if negated else 0))


@form("match.{mode:any|all}.sync.{t:b32|b64}", section="9.7.13.10")
def match(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    first, second = asm.pair(ops[0])
    every = groups["mode"] == "all"
    if second is not None and not every:
        raise asm.error("match.any has one destination")
    asm.emit(
        f"match.{groups['t']}",
        d=asm.dest(first, "b32"),
        e=asm.predicate_dest(second) if second is not None else NO_OPERAND,
        a=asm.source(ops[1], groups["t"]),
        b=asm.source(ops[2], "b32"),
        mod=every,
    )


@form(
    "redux.sync.{op:add|min|max}.{t:u32|s32}",
    "redux.sync.{op:and|or|xor}.{t:b32}",
    "redux.sync.{op:min|max}[.{abs:abs}][.{nan:NaN}].{t:f32}",
    section="9.7.13.12",
)
def redux(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 3)
    kind = groups["t"]
    mod = OPERATIONS[groups["op"]] | ATOMIC_TYPES[kind] << 8 | ("abs" in groups) << 16 | ("nan" in groups) << 17
    asm.emit("redux", d=asm.dest(ops[0], kind), a=asm.source(ops[1], kind), b=asm.source(ops[2], "b32"), mod=mod)


@form("elect.sync", section="9.7.13.14")
def elect(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    first, second = asm.pair(ops[0])
    if second is None:
        raise asm.error("d|p is expected")
    asm.emit("elect", d=asm.dest(first, "b32"), e=asm.predicate_dest(second), a=asm.source(ops[1], "b32"))


@form("activemask.b32", section="9.7.13.11")
def activemask(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("activemask", d=asm.dest(ops[0], "b32"))


@form("bar.warp.sync", section="9.7.13.2")
def bar_warp(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    asm.emit("bar.warp.sync", a=asm.source(ops[0], "b32"))


# ---- named barriers

BARRIER = "{name:bar|bar.cta|barrier|barrier.cta}"


def _barrier_operands(asm: "Assembler", ops: "tuple[Operand, ...]") -> tuple[int, int]:
    if isinstance(ops[0], Immediate) and not 0 <= ops[0].value <= 15:
        raise asm.error("barriers 0 to 15 exist")
    return asm.source(ops[0], "u32"), asm.source(ops[1], "u32") if len(ops) > 1 else NO_OPERAND


for _name, _suffix in (("bar", ""), ("bar.cta", ""), ("barrier", "[.aligned]"), ("barrier.cta", "[.aligned]")):

    @form(f"{_name}.sync{_suffix}", section="9.7.13.1")
    def bar_sync(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
        asm.expect(ops, 1, 2)
        a, b = _barrier_operands(asm, ops)
        asm.emit("barrier", a=a, b=b, mod=0)

    @form(f"{_name}.arrive{_suffix}", section="9.7.13.1")
    def bar_arrive(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
        asm.expect(ops, 2)
        a, b = _barrier_operands(asm, ops)
        asm.emit("barrier", a=a, b=b, mod=1)

    @form(f"{_name}.red.{{op:popc}}{_suffix}.u32", f"{_name}.red.{{op:and|or}}{_suffix}.pred", section="9.7.13.1")
    def bar_red(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
        asm.expect(ops, 3, 4)
        a, b = _barrier_operands(asm, ops[1:-1])
        c, negated = asm.predicate(ops[-1])
        popc = groups["op"] == "popc"
        dest = asm.dest(ops[0], "u32") if popc else asm.predicate_dest(ops[0])
        if popc and dest == NO_OPERAND:
            raise asm.error("the result of this instruction cannot be discarded")
        mod = {"popc": 2, "and": 3, "or": 4}[groups["op"]] | (NEGATE if negated else 0)
        asm.emit("barrier", d=dest, a=a, b=b, c=c, mod=mod)


@form(
    "barrier.cluster.{op:arrive}[.{sem:release|relaxed}][.aligned]",
    "barrier.cluster.{op:wait}[.{sem:acquire}][.aligned]",
    section="9.7.13.3",
)
def bar_cluster(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 0)
    asm.emit(f"barrier.cluster.{groups['op']}", mod=groups.get("sem") == "relaxed")
