"""mbarrier objects (PTX ISA 9.7.13.15)."""

from typing import TYPE_CHECKING

from ..ptx import Address
from .form import Groups, form
from .types import CLUSTER, NO_OPERAND

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

SPACE = "[.{space:shared::cta|shared::cluster|shared}]"
SCOPE = "{scope:cta|cluster|gpu|sys}"


def barrier_address(asm: "Assembler", operand: "Operand", groups: Groups) -> tuple[int, int, int]:
    a, offset, flags = asm.address(operand, "shared" if "space" in groups else "generic")
    return a, offset, flags | (CLUSTER if groups.get("space") == "shared::cluster" else 0)


@form("mbarrier.init[.{space:shared::cta|shared}].b64", section="9.7.13.15.9")
def init(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    a, imm, flags = barrier_address(asm, ops[0], groups)
    asm.emit("mbarrier.init", a=a, b=asm.source(ops[1], "u32"), imm=imm, flags=flags)


@form("mbarrier.inval[.{space:shared::cta|shared}].b64", section="9.7.13.15.10")
def inval(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 1)
    a, imm, flags = barrier_address(asm, ops[0], groups)
    asm.emit("mbarrier.inval", a=a, imm=imm, flags=flags)


@form(f"mbarrier.{{op:expect_tx|complete_tx}}[.relaxed][.{{scope:cta|cluster}}]{SPACE}.b64", section="9.7.13.15.11")
def tx_count(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    a, imm, flags = barrier_address(asm, ops[0], groups)
    asm.emit(f"mbarrier.{groups['op']}", a=a, b=asm.source(ops[1], "u32"), imm=imm, flags=flags)


SEM = "[.{sem:release|relaxed}][.{scope:cta|cluster}]"


@form(
    f"mbarrier.{{op:arrive|arrive_drop}}{SEM}{SPACE}.b64",
    f"mbarrier.{{op:arrive|arrive_drop}}.{{tx:expect_tx}}{SEM}{SPACE}.b64",
    f"mbarrier.{{op:arrive|arrive_drop}}.{{no:noComplete}}[.release][.cta]{SPACE}.b64",
    section="9.7.13.15.13",
)
def arrive(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    operands = list(ops)
    # The destination is absent in the form that arrives at another CTA's barrier.
    state = None if operands and isinstance(operands[0], Address) else operands.pop(0)
    if not operands or len(operands) > 2 or (("tx" in groups or "no" in groups) and len(operands) != 2):
        raise asm.error("[state,] [address] and a count are expected")
    a, imm, flags = barrier_address(asm, operands[0], groups)
    b = asm.source(operands[1], "u32") if len(operands) == 2 else NO_OPERAND
    d = NO_OPERAND if state is None else asm.dest(state, "b64")
    if groups.get("space") == "shared::cluster" and d != NO_OPERAND:
        raise asm.error("an arrival in .shared::cluster returns no state")
    mod = ("tx" in groups) | (groups["op"] == "arrive_drop") << 1 | ("no" in groups) << 2
    relaxed = groups.get("sem") == "relaxed"
    mod |= relaxed << 3 | (groups.get("scope") == "cluster" and not relaxed) << 4
    asm.emit("mbarrier.arrive", d=d, a=a, b=b, imm=imm, flags=flags, mod=mod)


@form(
    "mbarrier.{op:test_wait|try_wait}[.{parity:parity}][.{sem:acquire|relaxed}][.{scope:cta|cluster}]"
    "[.{space:shared::cta|shared}].b64",
    section="9.7.13.15.16",
)
def wait(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    blocking = groups["op"] == "try_wait"
    asm.expect(ops, 3, *((4,) if blocking else ()))
    parity = "parity" in groups
    a, imm, flags = barrier_address(asm, ops[1], groups)
    if len(ops) == 4:
        asm.source(ops[3], "u32")
    asm.emit(
        "mbarrier.wait",
        d=asm.predicate_dest(ops[0]),
        a=a,
        b=asm.source(ops[2], "u32" if parity else "b64"),
        imm=imm,
        flags=flags,
        mod=parity | blocking << 1 | (groups.get("sem") == "relaxed") << 2,
    )


@form("mbarrier.pending_count.b64", section="9.7.13.15.17")
def pending_count(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.expect(ops, 2)
    asm.emit("mbarrier.pending_count", d=asm.dest(ops[0], "u32"), a=asm.source(ops[1], "b64"))
