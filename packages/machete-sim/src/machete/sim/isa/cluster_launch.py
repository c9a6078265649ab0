"""clusterlaunchcontrol: work stealing between clusters (PTX ISA 9.7.13.17)."""

from typing import TYPE_CHECKING

from .copies import Entries
from .form import Groups, form
from .types import NO_OPERAND

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

TARGETS = ("sm_100a", "sm_100f", "sm_100", "sm_120a", "sm_120f", "sm_120")


@form(
    "clusterlaunchcontrol.try_cancel.async[.shared::cta].mbarrier::complete_tx::bytes"
    "[.{multicast:multicast::cluster::all}].b128",
    section="9.7.13.17.1",
)
def try_cancel(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    entries = Entries(asm)
    entries.shared(ops[0])
    entries.shared(ops[1])
    entries.emit("clusterlaunch.try_cancel", mod="multicast" in groups)


@form("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", section="9.7.13.17.2")
def is_canceled(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    asm.emit("clusterlaunch.is_cancelled", d=asm.predicate_dest(ops[0]), a=asm.source(ops[1], "b128"))


@form(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis:x|y|z}.b32.b128",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.{vec:v4}.b32.b128",
    section="9.7.13.17.2",
)
def get_first_ctaid(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
    asm.require_target(*TARGETS)
    asm.expect(ops, 2)
    targets = asm.vector(ops[0], 4) if "vec" in groups else (ops[0],)
    response = asm.source(ops[1], "b128")
    for index, target in enumerate(targets):
        dest = asm.dest(target, "b32")
        if dest != NO_OPERAND:
            axis = index if "vec" in groups else "xyz".index(groups["axis"])
            asm.emit("clusterlaunch.first_ctaid", d=dest, a=response, mod=axis)
