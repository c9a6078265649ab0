"""Object code that calls the stand-in library whatever else is loaded.

The DSL's loader looks for a function first among those that libraries of the process export to all. The DSL's own
runtime is one of them as soon as anything was compiled outside of the context, or flash-attn-4 was imported. So what
host code calls is given another name, of the same length, which only the stand-in library exports.
"""

import struct
from collections.abc import Iterable

_SECTIONS = struct.Struct("<Q"), 0x28  # e_shoff
_SECTION_COUNT = struct.Struct("<H"), 0x3C  # e_shnum
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_UNDEFINED = 0


def redirected(name: str) -> str:
    """The stand-in library's name for a function of the DSL's runtime."""
    return "M" + name[1:]


def redirect(code: bytes, names: Iterable[str]) -> bytes:
    """An ELF64 object file in which undefined symbols of these names have the stand-in library's."""
    wanted = {name.encode() for name in names}
    out = bytearray(code)
    (table,) = _SECTIONS[0].unpack_from(code, _SECTIONS[1])
    (count,) = _SECTION_COUNT[0].unpack_from(code, _SECTION_COUNT[1])
    sections = [_SECTION.unpack_from(code, table + index * _SECTION.size) for index in range(count)]
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        offset, size, strings = section[4], section[5], sections[section[6]][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            name, _, _, home, _, _ = _SYMBOL.unpack_from(code, at)
            start = strings + name
            text = code[start : code.index(b"\0", start)]
            if home == _UNDEFINED and text in wanted:
                out[start : start + len(text)] = redirected(text.decode()).encode()
    return bytes(out)
