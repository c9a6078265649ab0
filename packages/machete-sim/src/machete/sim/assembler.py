"""Kernels to flat records for the native interpreter.

Operands become byte offsets into a warp's register file or into the constant pool (native/inst.hpp). The assembler
also holds what forms need to check: the width of every register operand against the type of the instruction.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import _core
from .errors import UnknownInstruction
from .isa import lookup
from .isa.form import known_base
from .isa.special import SPECIAL
from .isa.types import ADDR64, NO_OPERAND, REG16, REG64, WIDTHS
from .ptx import (
    Address,
    Displaced,
    Immediate,
    Instruction,
    Kernel,
    Mark,
    Module,
    Name,
    Negated,
    Operand,
    OperandError,
    Pair,
    Scope,
    Vector,
    parse_operands,
)
from .ptx.parser import SIZES, offsets
from .registers import SLOT, Access, Flow, Register, place

CONSTANT = 1 << 31  # operand bit: the offset is into the constant pool

_OPCODES = {name: index for index, name in enumerate(_core.opcode_names())}


@dataclass(frozen=True)
class Code:
    """An assembled kernel. `places` maps a record to its instruction."""

    program: _core.Program
    places: list[int]
    marks: dict[int, Mark]
    static_shared: int
    records: int


class Assembler:
    def __init__(self, module: Module, kernel: Kernel, globals_: dict[str, int]) -> None:
        self.module = module
        self.kernel = kernel
        self.records: list[tuple[int, ...]] = []
        self.ext: list[int] = []
        self.places: list[int] = []
        self.marks: dict[int, Mark] = {}
        self._registers: dict[tuple[int, str], tuple[Register, int]] = {}  # scope, name -> register, width
        self._resolved: dict[tuple[int, str], tuple[Register, int]] = {}
        self._predicates: dict[tuple[int, str], int] = {}
        self._widths: list[int] = []  # of registers
        self.held: set[int] = set()  # registers that share their place with none
        self._accesses: list[Access] = []
        self._flows: dict[int, Flow] = {}
        self._constants: dict[tuple[int, int], int] = {}
        self._constant_words: list[np.ndarray] = []
        self._constant_bytes = 0
        self._next_predicate = 2
        self._predicates_read: set[int] = set()  # by the current instruction
        self._predicates_written: set[int] = set()
        self._predicate_uses: list[tuple[int, ...]] = []  # of each record, as in native Program::predicate_uses
        self._branches: list[tuple[int, Scope, str, Instruction]] = []
        self._guard = -1
        self._current: Instruction | None = None
        self.symbols, self.static_shared, self.local_bytes = self._layout(globals_)

    # ---- variables

    def _layout(self, globals_: dict[str, int]) -> tuple[dict[str, tuple[str, int]], int, int]:
        """Addresses of parameters and variables: (space, address)."""
        symbols = {p.name: ("param", p.offset) for p in self.kernel.parameters}
        symbols |= {name: ("global", address) for name, address in globals_.items()}
        shared = [v for v in (*self.module.variables, *self.kernel.variables) if v.space == "shared"]
        fixed = [v for v in shared if not v.external]
        places = offsets([(v.nbytes, v.align) for v in fixed], _core.SHARED_BASE)
        symbols |= {v.name: ("shared", at) for v, at in zip(fixed, places, strict=False)}
        align = max([v.align for v in shared if v.external], default=16)
        static = -(-places[-1] // max(align, 16)) * max(align, 16) - _core.SHARED_BASE
        symbols |= {v.name: ("shared", _core.SHARED_BASE + static) for v in shared if v.external}
        local = [v for v in self.kernel.variables if v.space == "local"]
        local_places = offsets([(v.nbytes, v.align) for v in local])
        symbols |= {v.name: ("local", at) for v, at in zip(local, local_places, strict=False)}
        return symbols, static, local_places[-1]

    # ---- errors

    def error(self, message: str) -> UnknownInstruction:
        ins = self._current
        assert ins is not None
        line = self.module.line(ins.offset)
        guard = f"@{'!' if ins.negated else ''}{ins.guard} " if ins.guard else ""
        text = f"{guard}{ins.opcode} {' '.join(ins.operands.split())};"
        return UnknownInstruction(message, text, line, self.module.source(self.kernel, ins.offset))

    # ---- operands

    def _register(self, name: str) -> tuple[Register, int] | None:
        """A register and its width, or None if the name is none."""
        scope = self._current.scope if self._current else None
        assert scope is not None
        key = (id(scope), name)
        known = self._resolved.get(key)
        if known is not None:
            return known
        found = scope.register(name)
        if found is None:
            return None
        owner, kind = found
        if kind == "pred":
            raise self.error(f"{name} is a predicate, a register is expected")
        owner_key = (id(owner), name)
        known = self._registers.get(owner_key)
        if known is None:
            width = max(8 * SIZES[kind], 16)
            known = self.temporary(width), width
            self._registers[owner_key] = known
        self._resolved[key] = known
        return known

    def temporary(self, width: int) -> Register:
        """A fresh register."""
        self._widths.append(width)
        return Register(len(self._widths) - 1)

    def predicate_index(self, name: str) -> int:
        assert self._current is not None
        found = self._current.scope.register(name)
        if found is None or found[1] != "pred":
            raise self.error(f"{name} is not a predicate")
        key = (id(found[0]), name)
        if key not in self._predicates:
            self._predicates[key] = self._next_predicate
            self._next_predicate += 1
        return self._predicates[key]

    def predicate(self, operand: Operand) -> tuple[int, bool]:
        """A source predicate: index, negated."""
        if isinstance(operand, Negated):
            return self._read_predicate(operand.name.text), True
        if isinstance(operand, Immediate) and operand.bits is None:
            return (1 if operand.value else 0), False
        if not isinstance(operand, Name):
            raise self.error("a predicate is expected")
        return self._read_predicate(operand.text), False

    def _read_predicate(self, name: str) -> int:
        index = self.predicate_index(name)
        self._predicates_read.add(index)
        return index

    def is_predicate(self, operand: Operand) -> bool:
        assert self._current is not None
        found = self._current.scope.register(operand.text) if isinstance(operand, Name) else None
        return found is not None and found[1] == "pred"

    def plain_predicate(self, operand: Operand) -> int:
        index, negated = self.predicate(operand)
        if negated:
            raise self.error("a predicate cannot be negated here")
        return index

    def predicate_dest(self, operand: Operand) -> int:
        if not isinstance(operand, Name):
            raise self.error("a predicate is expected as destination")
        if operand.text == "_":
            return NO_OPERAND
        index = self.predicate_index(operand.text)
        self._predicates_written.add(index)
        return index

    def constant(self, value: int, width: int) -> int:
        """A pool operand that holds `value` in every lane."""
        width = 64 if width == 64 else 32
        value &= (1 << width) - 1
        key = (value, width)
        offset = self._constants.get(key)
        if offset is None:
            offset = self._constant_bytes
            if width == 32:
                self._constant_words.append(np.full(32, value, np.uint32).view(np.uint64))
                self._constant_bytes += SLOT
            else:
                self._constant_words.append(np.full(32, value, np.uint64))
                self._constant_bytes += 2 * SLOT
            self._constants[key] = offset
        return offset | CONSTANT

    def immediate(self, operand: Immediate, kind: str) -> int:
        """The bit pattern of a literal used as `kind`."""
        width = WIDTHS[kind]
        if operand.bits is not None:
            if operand.bits == 64 and width == 32 and kind == "f32":
                value = struct.unpack("<d", operand.value.to_bytes(8, "little"))[0]
                return int.from_bytes(struct.pack("<f", value), "little")
            if operand.bits != width:
                raise self.error(f"a {operand.bits}-bit float literal is no .{kind}")
            return operand.value
        if kind in ("f32", "f64"):
            raise self.error(f"an integer literal is no .{kind}")
        if not -(1 << (width - 1)) <= operand.value < 1 << width:
            # PTX integer literals are 64 bits wide and truncated to the type that they are used as.
            if not -(1 << 63) <= operand.value < 1 << 64:
                raise self.error(f"literal {operand.value} does not fit")
        return operand.value & (1 << width) - 1

    def source(self, operand: Operand, kind: str, *, wider: bool = False) -> int:
        """A source of type `kind`: register, literal, special register or address of a variable."""
        if isinstance(operand, Name):
            found = self._register(operand.text)
            width = max(WIDTHS[kind], 16)
            if found is not None:
                if found[1] != width and not (wider and found[1] > width):
                    raise self.error(f"{operand.text} has {found[1]} bits, .{kind} needs {width}")
                return found[0]
            if operand.text in SPECIAL:
                offset = self.temporary(64 if width == 64 else 32)
                self.emit("mov.special", d=offset, mod=SPECIAL[operand.text], flags=REG64 if width == 64 else 0)
                return offset
            return self._symbol(operand.text, 0, width)
        if isinstance(operand, Displaced):
            return self._symbol(operand.base.text, operand.offset, WIDTHS[kind])
        if isinstance(operand, Immediate):
            return self.constant(self.immediate(operand, kind), 64 if WIDTHS[kind] == 64 else 32)
        raise self.error(f"an operand of type .{kind} is expected")

    def _symbol(self, name: str, offset: int, width: int) -> int:
        """The address of a variable or parameter as a value."""
        if name not in self.symbols:
            raise self.error(f"{name} is not declared")
        space, address = self.symbols[name]
        if width == 32 and space == "global":
            raise self.error(f"the address of {name} needs 64 bits")
        if space == "shared":
            return self._shared_symbol(address + offset, width)
        return self.constant(address + offset, width)

    def _shared_symbol(self, address: int, width: int = 32) -> Register:
        """The address of a shared variable depends on the rank of the CTA in its cluster."""
        target = self.temporary(64 if width == 64 else 32)
        self.emit("mov.shared", d=target, imm=address, flags=REG64 if width == 64 else 0)
        return target

    def width(self, operand: Operand) -> int:
        """Bits of the register that `operand` names."""
        found = self._register(operand.text) if isinstance(operand, Name) else None
        if found is None:
            raise self.error("a register is expected")
        return found[1]

    def literal(self, operand: Operand, low: int, high: int) -> int:
        """An integer that must be a literal."""
        if not isinstance(operand, Immediate) or operand.bits is not None or not low <= operand.value <= high:
            raise self.error(f"a literal from {low} to {high} is expected")
        return operand.value

    @property
    def opcode_base(self) -> str:
        """The opcode up to its first modifier."""
        assert self._current is not None
        return self._current.opcode.partition(".")[0]

    def is_argument(self, operand: Operand) -> bool:
        """Whether this is [name] of an argument of a call."""
        assert self._current is not None
        if not isinstance(operand, Address) or not isinstance(operand.base, Name) or operand.offset:
            return False
        return self._current.scope.argument(operand.base.text)

    def is_register(self, operand: Operand) -> bool:
        return isinstance(operand, Name) and self._register(operand.text) is not None

    def dest(self, operand: Operand, kind: str, *, wider: bool = False) -> int:
        """A destination register, or NO_OPERAND for the sink."""
        if isinstance(operand, Name):
            if operand.text == "_":
                return NO_OPERAND
            found = self._register(operand.text)
            if found is not None:
                width = max(WIDTHS[kind], 16)
                if found[1] != width and not (wider and found[1] > width):
                    raise self.error(f"{operand.text} has {found[1]} bits, .{kind} needs {width}")
                return found[0]
        raise self.error(f"a register is expected as destination of type .{kind}")

    def address(self, operand: Operand, space: str) -> tuple[int, int, int]:
        """An address: operand, offset, ADDR64 or 0."""
        if not isinstance(operand, Address) or operand.coordinates is not None:
            raise self.error("an address is expected")
        base = operand.base
        if isinstance(base, Immediate):
            return self.constant(base.value, 64), operand.offset, ADDR64
        found = self._register(base.text)
        if found is not None:
            if found[1] not in (32, 64):
                raise self.error(f"{base.text} has {found[1]} bits, an address has 32 or 64")
            return found[0], operand.offset, ADDR64 if found[1] == 64 else 0
        symbol = self.symbols.get(base.text)
        if symbol is None:
            raise self.error(f"{base.text} is not declared")
        if symbol[0] != ("global" if space == "const" else space):
            raise self.error(f"{base.text} is in .{symbol[0]}, not in .{space or 'generic'}")
        if symbol[0] == "shared":
            return self._shared_symbol(symbol[1]), operand.offset, 0
        return self.constant(symbol[1], 64), operand.offset, ADDR64

    # ---- records

    def emit(
        self,
        name: str,
        d: int = NO_OPERAND,
        a: int = NO_OPERAND,
        b: int = NO_OPERAND,
        c: int = NO_OPERAND,
        e: int = NO_OPERAND,
        mod: int = 0,
        ext: "list[int] | tuple[int, ...]" = (),
        imm: int = 0,
        flags: int = 0,
        count: int | None = None,
        defines: int = 0,
        reads_d: bool = False,
    ) -> None:
        """Adds a record. `defines`: how many entries of ext, from the first, are results; reads_d: d is an operand."""
        opcode = _OPCODES.get(name)
        if opcode is None:
            raise self.error(f"{name} is not implemented")
        imm &= (1 << 64) - 1
        self.records.append(
            (
                opcode, self._guard & 0xFFFFFFFF, d, a, b, c, e, mod, len(self.ext) if ext else 0,
                len(ext) if count is None else count, imm & 0xFFFFFFFF, imm >> 32, flags, 0, 0, 0,
            )
        )  # fmt: skip
        self.ext.extend(ext)
        results = [op for op in ((*ext[:defines],) if reads_d else (d, *ext[:defines])) if type(op) is Register]
        operands = [op for op in (a, b, c, e, *ext[defines:], *((d,) if reads_d else ())) if type(op) is Register]
        self._accesses.append(Access(tuple(operands), tuple(results), self._guard < 0))
        if name in ("exit", "trap"):
            self._flows[len(self.records) - 1] = Flow(falls_through=self._guard >= 0)

    def branch(self, label: str) -> None:
        assert self._current is not None
        self._branches.append((len(self.records), self._current.scope, label, self._current))
        self.emit("bra")

    # ---- the whole kernel

    def run(self) -> Code:
        starts: list[int] = []
        for index, ins in enumerate(self.kernel.instructions):
            starts.append(len(self.records))
            self._current = ins
            self._predicates_read, self._predicates_written = set(), set()
            if ins.guard is None:
                self._guard = -1
            else:
                self._guard = self._read_predicate(ins.guard) * 2 + ins.negated
            if ins.opcode == "mark":
                self._mark(ins)
            else:
                found = lookup(ins.opcode)
                if found is None:
                    known = known_base(ins.opcode)
                    hint = f"; known forms of {ins.opcode.partition('.')[0]}: {len(known)}" if known else ""
                    raise self.error(f"unknown instruction {ins.opcode}{hint}")
                try:
                    operands = parse_operands(ins.operands)
                except OperandError as error:
                    raise self.error(str(error)) from None
                if self.kernel.vectors:
                    operands = tuple(self._elements(operand, ins.scope) for operand in operands)
                found[0].build(self, operands, found[1])
            self.places.extend([index] * (len(self.records) - len(self.places)))
            self._note_predicates()
        starts.append(len(self.records))
        self._current = self.kernel.instructions[-1] if self.kernel.instructions else None
        self._guard = -1
        self._predicates_read, self._predicates_written = set(), set()
        self.emit("exit")
        self._note_predicates()
        self.places.append(len(self.kernel.instructions) - 1)
        for record, scope, label, ins in self._branches:
            target = scope.label(label)
            if target is None:
                self._current = ins
                raise self.error(f"label {label} is not defined")
            self.records[record] = (*self.records[record][:10], starts[target], *self.records[record][11:])
            self._flows[record] = Flow(starts[target], ins.guard is not None)
        return self._finish()

    def _finish(self) -> Code:
        places, register_bytes = place(self._accesses, self._flows, self._widths, self.held)

        def located(operands: "Sequence[int]") -> list[int]:
            return [places[op] if type(op) is Register else op for op in operands]

        code = np.array([located(record) for record in self.records], np.uint32).reshape(-1, 16)
        words = np.concatenate(self._constant_words) if self._constant_words else np.zeros(16, np.uint64)
        starts, uses = self._uses(places)
        predicate_starts = np.cumsum([0, *map(len, self._predicate_uses)], dtype=np.uint32)
        predicate_uses = [use for uses_of_one in self._predicate_uses for use in uses_of_one]
        program = _core.make_program(
            code,
            np.array(located(self.ext) or [0], np.uint32),
            words,
            starts,
            uses,
            predicate_starts,
            np.array(predicate_uses or [0], np.uint32),
            register_bytes=register_bytes,
            predicates=self._next_predicate,
            static_shared=self.static_shared,
            local_bytes=self.local_bytes,
        )
        return Code(program, self.places, self.marks, self.static_shared, len(self.records))

    def _uses(self, places: "Sequence[int]") -> tuple[np.ndarray, np.ndarray]:
        """The 32-bit registers that each record reads and, with the top bit, writes (native Program::uses)."""
        starts, uses = [0], []
        for access in self._accesses:
            for registers, flag in ((access.reads, 0), (access.writes, 1 << 31)):
                for register in registers:
                    uses += [places[register] + at | flag for at in range(0, SLOT * self._widths[register] // 32, SLOT)]
            starts.append(len(uses))
        return np.array(starts, np.uint32), np.array(uses or [0], np.uint32)

    def _note_predicates(self) -> None:
        """The records of an instruction share its predicates."""
        uses = (*self._predicates_read, *(index | 1 << 31 for index in self._predicates_written))
        self._predicate_uses += [uses] * (len(self.records) - len(self._predicate_uses))

    @staticmethod
    def _elements(operand: Operand, scope: Scope) -> Operand:
        """A vector register by its name is a vector of its elements."""
        names = scope.vector(operand.text) if isinstance(operand, Name) else None
        return operand if names is None else Vector(tuple(map(Name, names)))

    def _mark(self, ins: Instruction) -> None:
        mark = self.kernel.marks[int(ins.operands)]
        ext: list[int] = []
        for text in mark.operands:
            (operand,) = parse_operands(text)
            if isinstance(operand, Immediate):
                ext += [self.constant(operand.value, 64), 1]
                continue
            found = self._register(operand.text) if isinstance(operand, Name) else None
            if found is None:
                raise self.error(f"{text.strip()} is not a register")
            ext += [found[0], int(found[1] == 64)]
        self.marks[len(self.records)] = mark
        self.emit("mark", ext=ext)

    # ---- checks that many forms share

    def require_target(self, *targets: str) -> None:
        """The instruction exists on these targets only."""
        if self.module.target not in targets:
            raise self.error(
                f"{self.opcode_base} exists on {' and '.join(targets)}, the module is for {self.module.target}"
            )

    def expect(self, operands: tuple[Operand, ...], *counts: int) -> None:
        if len(operands) not in counts:
            raise self.error(f"{' or '.join(map(str, counts))} operands are expected, there are {len(operands)}")

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """p|q or p alone."""
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, None

    def vector(self, operand: Operand, count: int | None = None) -> tuple[Operand, ...]:
        if not isinstance(operand, Vector):
            raise self.error("a vector in braces is expected")
        if count is not None and len(operand.items) != count:
            raise self.error(f"{count} elements in braces are expected")
        return operand.items

    def data_flags(self, operands: tuple[Operand, ...], kind: str) -> int:
        """REG16 or REG64 of the registers of a load; they must agree."""
        widths = {
            self._register(op.text)[1]  # type: ignore[index]
            for op in operands
            if isinstance(op, Name) and op.text != "_" and self._register(op.text) is not None
        }
        if len(widths) > 1:
            raise self.error("registers of one vector must have one width")
        width = widths.pop() if widths else max(WIDTHS[kind], 16)
        if width == 128 and WIDTHS[kind] != 128:
            raise self.error(f"a .{kind} is not extended to 128 bits")
        return {16: REG16, 32: 0, 64: REG64, 128: 0}[width]
