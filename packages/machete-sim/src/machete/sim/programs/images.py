"""Which PTX an image was made from.

A program loads machine code; the simulator executes PTX. Names of kernels are not unique, so the two are bound by the
contents of the machine code: whoever compiles inside the context registers both, and whoever loads an image is given
the PTX of exactly that image. Packages keep compiled functions on disk, so what was registered is kept there as well.
"""

import ctypes
import hashlib
import struct
import tempfile
from pathlib import Path

import platformdirs

from ..errors import SimulationError

# The container of NVIDIA's compiler: a header (magic, version, bytes of header, bytes that follow), then entries
# (kind, version, bytes of header, bytes of contents).
_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_MACHINE_CODE = 2
_ELF = b"\x7fELF"


class UnknownImage(SimulationError):
    """Machine code was loaded whose PTX nobody registered."""


class Images:
    """PTX by machine code. folder: where it is kept between processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or platformdirs.user_cache_path("machete-sim") / "images"
        self._ptx: dict[str, str] = {}

    def register(self, machine_code: bytes, ptx: str) -> None:
        digest = hashlib.sha256(machine_code).hexdigest()
        if self._ptx.get(digest) == ptx:
            return
        self._ptx[digest] = ptx
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".tmp", delete=False) as file:
            file.write(ptx)
        Path(file.name).replace(self._file(digest))  # another process sees all of it or nothing

    def ptx(self, address: int) -> str:
        """Of the image that was loaded from this address. Raises UnknownImage."""
        machine_code = _machine_code(address)
        digest = hashlib.sha256(machine_code).hexdigest()
        if digest not in self._ptx:
            try:
                self._ptx[digest] = self._file(digest).read_text()
            except FileNotFoundError:
                raise UnknownImage(
                    f"{len(machine_code)} bytes of machine code were loaded whose PTX is not known. "
                    "They were compiled outside of the simulator's context: by an earlier run of which a package kept "
                    "the compiled function on disk, or before the context was entered. Delete the package's cache of "
                    "compiled functions, or compile inside the context"
                ) from None
        return self._ptx[digest]

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}.ptx"


def _machine_code(address: int) -> bytes:
    """The ELF file in the fat binary at an address."""
    magic, _, header, size = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    if magic != _MAGIC:
        raise UnknownImage("what was loaded as an image is no fat binary, which is what CuTe DSL 4.8 makes")
    contents = ctypes.string_at(address + header, size)
    offset = 0
    while offset + _ENTRY.size <= len(contents):
        kind, _, entry_header, entry_size = _ENTRY.unpack_from(contents, offset)
        code = contents[offset + entry_header : offset + entry_header + entry_size]
        if kind == _MACHINE_CODE:
            if not code.startswith(_ELF):
                raise UnknownImage("the machine code of an image is compressed, which is not understood")
            return code
        offset += entry_header + entry_size
    raise UnknownImage("an image holds no machine code")
