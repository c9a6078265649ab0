"""The files that compiled kernels are kept in: a JSON header and sections of bytes, every byte covered by a hash.

Layout: 8 bytes of magic, version (u32), length of the header (u32), SHA-256 of the header, the header (UTF-8 JSON), and
the sections. The header's "sections" has each section's length and SHA-256, in order. Nothing in a file is executed to
read it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

MAGIC = b"machete\n"
VERSION = 1
_PREFIX = struct.Struct("<8sII32s")


class DamagedError(Exception):
    """The bytes are no container, or not the one that was written. The message says what is wrong, for a sentence."""


def pack(header: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """The file's bytes."""
    table = [[name, len(content), hashlib.sha256(content).hexdigest()] for name, content in sections.items()]
    text = json.dumps({**header, "sections": table}, sort_keys=True).encode()
    prefix = _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    return b"".join([prefix, text, *sections.values()])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and sections of a file's bytes. Raises `DamagedError` if one of them is not what was written."""
    if len(data) < _PREFIX.size:
        raise DamagedError(f"it has {len(data)} bytes, less than any kernel")
    magic, version, length, digest = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError("it is no file of Machete")
    if version != VERSION:
        raise DamagedError(f"it is of version {version}, not {VERSION}")
    begin = _PREFIX.size + length
    text = data[_PREFIX.size : begin]
    if hashlib.sha256(text).digest() != digest:
        raise DamagedError("its header is damaged")
    header = json.loads(text)
    sections: dict[str, bytes] = {}
    for name, nbytes, expected in header.pop("sections"):
        content = data[begin : begin + nbytes]
        begin += nbytes
        if hashlib.sha256(content).hexdigest() != expected:
            what = "cut off" if len(content) < nbytes else "damaged"
            raise DamagedError(f"its section {name!r} is {what}")
        sections[name] = content
    if begin != len(data):
        raise DamagedError(f"{len(data) - begin} bytes follow its end")
    return header, sections
