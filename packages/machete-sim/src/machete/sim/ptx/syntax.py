"""What the parser makes of PTX text: operands, instructions, kernels, modules."""

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Name:
    """A register, variable, parameter, label or special register."""

    text: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number. `bits` is None for integers, else the width of the floating-point pattern in `value`."""

    value: int
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset], or [base, {coordinates}] of a tensor."""

    base: "Name | Immediate"
    offset: int
    coordinates: tuple["Operand", ...] | None = None


@dataclass(frozen=True, slots=True)
class Displaced:
    """variable + offset, as a value"""

    base: Name
    offset: int


@dataclass(frozen=True, slots=True)
class Pair:
    """p|q"""

    first: Name
    second: Name


@dataclass(frozen=True, slots=True)
class Negated:
    """!p"""

    name: Name


Operand = Name | Immediate | Vector | Address | Displaced | Pair | Negated


class Scope:
    """Registers and labels between one pair of braces."""

    __slots__ = ("arguments", "families", "labels", "parent", "registers", "vectors")

    def __init__(self, parent: "Scope | None") -> None:
        self.parent = parent
        self.registers: dict[str, str] = {}  # name -> type
        self.families: dict[str, tuple[str, int]] = {}  # %r of %r<8> -> type, count
        self.labels: dict[str, int] = {}
        self.vectors: dict[str, tuple[str, ...]] = {}  # name -> its elements, registers of this scope
        self.arguments: set[str] = set()  # registers that are arguments of a call

    def register(self, name: str) -> "tuple[Scope, str] | None":
        """The scope that declares `name`, and its type."""
        stem = name.rstrip("0123456789")
        scope: Scope | None = self
        while scope is not None:
            kind = scope.registers.get(name)
            if kind is not None:
                return scope, kind
            family = scope.families.get(stem)
            if family is not None and stem != name:
                digits = name[len(stem) :]
                if int(digits) < family[1] and (digits == "0" or digits[0] != "0"):
                    return scope, family[0]
            scope = scope.parent
        return None

    def vector(self, name: str) -> tuple[str, ...] | None:
        """The elements of a vector register (PTX ISA, "Vectors")."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.vectors:
                return scope.vectors[name]
            scope = scope.parent
        return None

    def argument(self, name: str) -> bool:
        scope: Scope | None = self
        while scope is not None and name not in scope.registers:
            scope = scope.parent
        return scope is not None and name in scope.arguments

    def label(self, name: str) -> int | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None


@dataclass(slots=True)
class Instruction:
    opcode: str
    operands: str  # text; operands() parses it
    guard: str | None
    negated: bool
    scope: Scope
    offset: int  # in the module's text


@dataclass(frozen=True, slots=True)
class Mark:
    """`// @machete.mark "format" register …`: where a warp is, in its author's words."""

    format: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """A module or kernel variable."""

    name: str
    space: str
    align: int
    nbytes: int
    data: bytes | None
    external: bool = False


@dataclass(frozen=True)
class Parameter:
    name: str
    offset: int
    nbytes: int


@dataclass
class Kernel:
    name: str
    parameters: list[Parameter]
    instructions: list[Instruction] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    locations: list[tuple[int, int, int]] = field(default_factory=list)  # text offset, file, line
    marks: list[Mark] = field(default_factory=list)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)  # .reqntid, .maxntid, …
    vectors: bool = False  # some register is declared as a vector

    @property
    def parameter_bytes(self) -> int:
        return max((p.offset + p.nbytes for p in self.parameters), default=0)


@dataclass
class Module:
    text: str
    version: tuple[int, int]
    target: str
    kernels: dict[str, Kernel]
    variables: list[Variable]
    files: dict[int, str]
    newlines: list[int]

    def line(self, offset: int) -> int:
        """1-based line of a text offset."""
        return bisect_right(self.newlines, offset - 1) + 1

    def line_text(self, line: int) -> str:
        return self.text.splitlines()[line - 1]

    def source(self, kernel: Kernel, offset: int) -> str | None:
        """file:line that the last .loc before `offset` names."""
        index = bisect_right(kernel.locations, (offset, 1 << 60, 0)) - 1
        if index < 0:
            return None
        _, file, line = kernel.locations[index]
        return f"{self.files[file]}:{line}" if file in self.files else None
