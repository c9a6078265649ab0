"""Rows for instructions that only compute: pattern, native handler, operand types."""

from typing import TYPE_CHECKING

from .form import Build, Groups, register
from .types import NO_OPERAND, WIDTHS, modifiers

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand


def compute(pattern: str, native: str, operands: str, section: str, mod: int | None = None, optional: int = 0) -> None:
    """Registers a form that reads and writes registers only.

    native: name of the handler; `{t}` is the group t, `{w}` its width in bits.
    operands: types of the destination and the sources; a name that is a group stands for its value.
    mod: Inst::mod, by default from the floating-point modifiers. optional: how many trailing sources may be absent.
    """
    kinds = operands.split()
    register(pattern, _builder(native, kinds, mod, optional), section, tuple(kinds))


def _builder(native: str, kinds: list[str], mod: int | None, optional: int) -> Build:
    def build(asm: "Assembler", ops: "tuple[Operand, ...]", groups: Groups) -> None:
        asm.expect(ops, *range(len(kinds) - optional, len(kinds) + 1))
        sources = [asm.source(op, groups.get(kind, kind)) for op, kind in zip(ops[1:], kinds[1:], strict=False)]
        a, b, c, e = sources + [NO_OPERAND] * (4 - len(sources))
        dest = asm.dest(ops[0], groups.get(kinds[0], kinds[0]))
        if dest == NO_OPERAND:
            raise asm.error("the result of this instruction cannot be discarded")
        width = max(WIDTHS[groups["t"]], 16) if "t" in groups else 0
        name = native.format(**groups, w=width)
        asm.emit(name, d=dest, mod=modifiers(groups) if mod is None else mod, a=a, b=b, c=c, e=e)

    return build
