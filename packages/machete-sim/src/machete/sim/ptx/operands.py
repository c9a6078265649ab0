"""Operand text to operands. Results are cached: a kernel names the same few thousand operands over and over."""

import re
import struct
from functools import lru_cache

from .syntax import Address, Displaced, Immediate, Name, Negated, Operand, Pair, Vector

_PART = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\[{(])+")
_NAME = re.compile(r"[A-Za-z_$%][\w$%.]*")
_INTEGER = re.compile(r"([+-]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)U?")
_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ADDRESS = re.compile(r"([A-Za-z_$%][\w$%.]*|\d\w*)\s*(?:\+\s*(-?\s*\w+)|(-\s*\w+))?")


class OperandError(ValueError):
    """Text that is no operand."""


@lru_cache(maxsize=1 << 16)
def parse_operands(text: str) -> tuple[Operand, ...]:
    """All operands of an instruction."""
    text = text.strip()
    if not text:
        return ()
    if "[" not in text and "{" not in text and "(" not in text:
        return tuple(parse_operand(part.strip()) for part in text.split(","))
    return tuple(parse_operand(part.strip()) for part in _PART.findall(text))


@lru_cache(maxsize=1 << 16)
def parse_operand(text: str) -> Operand:
    if not text:
        raise OperandError("an operand is missing")
    first = text[0]
    if first == "{":
        return Vector(tuple(parse_operand(part.strip()) for part in text[1:-1].split(",")))
    if first == "(":  # arguments of a call
        inner = text[1:-1].strip()
        return Vector(tuple(parse_operand(part.strip()) for part in inner.split(",")) if inner else ())
    if first == "[":
        return _address(text[1:-1].strip())
    if first == "!":
        return Negated(_name(text[1:].strip()))
    if "|" in text:
        p, q = text.split("|")
        return Pair(_name(p.strip()), _name(q.strip()))
    if first.isdigit() or first in "+-.":
        return parse_number(text)
    base, plus, offset = text.partition("+")
    if plus:
        return Displaced(_name(base.strip()), parse_number(offset.strip()).value)
    return _name(text)


def parse_number(text: str) -> Immediate:
    match = _FLOAT.fullmatch(text)
    if match:
        bits = 32 if match[1] in "fF" else 64
        if len(match[2]) != bits // 4:
            raise OperandError(f"{text} does not have {bits // 4} digits")
        return Immediate(int(match[2], 16), bits)
    match = _INTEGER.fullmatch(text)
    if match:
        digits = match[2]
        base = 8 if len(digits) > 1 and digits.isdigit() and digits[0] == "0" else 0
        value = int(digits, base)
        return Immediate(-value if match[1] == "-" else value)
    if _DECIMAL.fullmatch(text):
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    raise OperandError(f"{text!r} is not a number")


def _name(text: str) -> Name:
    if not _NAME.fullmatch(text):
        raise OperandError(f"{text!r} is not an operand")
    return Name(text)


def _address(text: str) -> Address:
    coordinates: tuple[Operand, ...] | None = None
    if "," in text:
        text, _, rest = text.partition(",")
        vector = parse_operand(rest.strip())
        if not isinstance(vector, Vector):
            raise OperandError(f"[{text},{rest}] is not a tensor operand")
        coordinates = vector.items
        text = text.strip()
    match = _ADDRESS.fullmatch(text)
    if not match:
        raise OperandError(f"[{text}] is not an address")
    base = parse_operand(match[1])
    if not isinstance(base, Name | Immediate):
        raise OperandError(f"[{text}] is not an address")
    sign = match[2] or match[3]
    offset = parse_number(sign.replace(" ", "")).value if sign else 0
    return Address(base, offset, coordinates)
