"""A kernel, parsed and assembled, ready to run any number of times."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from .assembler import Assembler, Code
from .errors import Place, PtxSyntaxError, UnsupportedLaunch
from .ptx import Kernel, Module, parse

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_120a")


@dataclass
class Image:
    """One kernel of a PTX module.

    module, kernel: as parsed; code: as assembled; variables: memory of the module's global and constant variables,
    as (array, name, writable).
    """

    module: Module
    kernel: Kernel
    code: Code
    arch: str
    variables: list[tuple[np.ndarray, str, bool]] = field(default_factory=list)

    @classmethod
    def from_ptx(cls, text: str, entry: str | None = None, arch: str = "sm_90a") -> "Image":
        """Parse and assemble `entry` of a module (its only kernel if None).

        Raises PtxSyntaxError or UnknownInstruction, with the line.
        """
        if arch not in ARCHITECTURES:
            raise UnsupportedLaunch(f"architecture {arch} is not simulated; {', '.join(ARCHITECTURES)} are")
        module = parse(text)
        if not module.kernels:
            raise PtxSyntaxError("the module has no kernel", 1, text.partition("\n")[0])
        if entry is None:
            if len(module.kernels) > 1:
                raise UnsupportedLaunch(
                    f"the module has {len(module.kernels)} kernels: {', '.join(module.kernels)}; name one"
                )
            entry = next(iter(module.kernels))
        if entry not in module.kernels:
            raise UnsupportedLaunch(f"the module has no kernel {entry}; it has {', '.join(module.kernels)}")
        kernel = module.kernels[entry]
        variables: list[tuple[np.ndarray, str, bool]] = []
        addresses: dict[str, int] = {}
        for variable in (*module.variables, *kernel.variables):
            if variable.space not in ("global", "const"):
                continue
            storage = np.zeros(variable.nbytes + variable.align, np.uint8)
            shift = -storage.ctypes.data % variable.align
            array = storage[shift : shift + variable.nbytes]
            addresses[variable.name] = array.ctypes.data
            variables.append((array, variable.name, variable.space == "global"))
        code = Assembler(module, kernel, addresses).run()
        image = cls(module, kernel, code, arch, variables)
        image.reset()
        return image

    def reset(self) -> None:
        """Give the module's variables their first values again, as when a module is loaded."""
        data = {v.name: v.data for v in (*self.module.variables, *self.kernel.variables)}
        for array, name, _ in self.variables:
            initial = data[name]
            array[:] = 0 if initial is None else np.frombuffer(initial, np.uint8)

    def place(self, record: int, mark: str | None = None) -> Place:
        """Where in the program a record of the code comes from."""
        ins = self.kernel.instructions[self.code.places[record]]
        line = self.module.line(ins.offset)
        guard = f"@{'!' if ins.negated else ''}{ins.guard} " if ins.guard else ""
        text = f"{guard}{ins.opcode} {' '.join(ins.operands.split())}".rstrip() + ";"
        return Place(record, text, line, self.module.source(self.kernel, ins.offset), mark)

    def mark_text(self, record: int | None, values: list[int]) -> str | None:
        """A mark with the values of its registers filled in."""
        if record is None:
            return None
        text = self.code.marks[record].format
        for index, value in enumerate(values):
            text = text.replace(f"{{{index}}}", str(value))
        return text


_cache: "OrderedDict[tuple[str, str | None, str], Image]" = OrderedDict()
_CACHE_SIZE = 64


def cached_image(text: str, entry: str | None, arch: str) -> Image:
    """Image.from_ptx, remembered by a hash of the text."""
    key = (hashlib.sha256(text.encode()).hexdigest(), entry, arch)
    image = _cache.get(key)
    if image is None:
        image = Image.from_ptx(text, entry, arch)
        _cache[key] = image
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    else:
        _cache.move_to_end(key)
    return image
