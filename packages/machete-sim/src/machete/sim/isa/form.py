"""Instruction forms: a pattern over the whole opcode, and a function that assembles it.

A pattern lists an opcode's modifiers as the PTX ISA does: `{name:a|b}` is one of several, `[...]` is optional, all
else is literal. An opcode must match one pattern from end to end, or it is unknown: nothing is ignored or guessed.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..assembler import Assembler
    from ..ptx import Operand

Groups = dict[str, str]
Build = Callable[["Assembler", tuple["Operand", ...], Groups], None]

_TOKEN = re.compile(r"\{(\w+):([^}]*)\}|(\[)|(\])|([^{\[\]]+)")


_START = re.compile(r"\{\w+:(?P<choices>[\w|]+)\}|(?P<literal>\w+)")


@dataclass(frozen=True)
class Form:
    pattern: str
    build: Build
    section: str  # of the PTX ISA
    regex: re.Pattern[str]
    operands: tuple[str, ...] = ()  # types, destination first, of forms that only compute; a group's name stands for it


_forms: dict[str, list[Form]] = {}


def compile_pattern(pattern: str) -> re.Pattern[str]:
    out = []
    for match in _TOKEN.finditer(pattern):
        name, choices, opening, closing, literal = match.groups()
        if name:
            out.append(f"(?P<{name}>{'|'.join(re.escape(choice) for choice in choices.split('|'))})")
        elif opening:
            out.append("(?:")
        elif closing:
            out.append(")?")
        else:
            out.append(re.escape(literal))
    return re.compile("".join(out))


def register(pattern: str, build: Build, section: str, operands: tuple[str, ...] = ()) -> None:
    """Adds a form under every opcode it can begin with."""
    form = Form(pattern, build, section, compile_pattern(pattern), operands)
    start = _START.match(pattern)
    assert start is not None, pattern
    for base in (start["choices"] or start["literal"]).split("|"):
        _forms.setdefault(base, []).append(form)


def form(*patterns: str, section: str) -> Callable[[Build], Build]:
    """Registers a function as the assembler of some patterns."""

    def decorate(build: Build) -> Build:
        for pattern in patterns:
            register(pattern, build, section)
        return build

    return decorate


@lru_cache(maxsize=4096)
def lookup(opcode: str) -> tuple[Form, Groups] | None:
    """The form of an opcode and the modifiers it has, or None."""
    for candidate in _forms.get(opcode.partition(".")[0], ()):
        match = candidate.regex.fullmatch(opcode)
        if match:
            return candidate, {k: v for k, v in match.groupdict().items() if v is not None}
    return None


def all_forms() -> Iterable[Form]:
    """Every registered form, for documentation and tests."""
    for forms in _forms.values():
        yield from forms


def known_base(opcode: str) -> list[str]:
    """Patterns that begin like `opcode`: for the message of an unknown instruction."""
    return [form.pattern for form in _forms.get(opcode.partition(".")[0], ())]
