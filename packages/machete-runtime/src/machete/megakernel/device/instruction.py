"""Instructions in shared memory, and an op as its phases see it.

The controller copies each instruction row, and the record of the op it names, into a slot of shared memory. A role
reads the row, and `bind` builds what the op's method asks for by name: tensors from addresses and strides in the
record, extents, tile indices, scalars, descriptors. Extents, strides and addresses are data; only what is in the
op's kind is a Python constant in the traced code.
"""

from dataclasses import dataclass, field
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from machete.megakernel.abi.fusion import Fusion, tensor_name
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.program import FENCES, LOADER_WAITS, MAX_WAITS, TOTAL_SHIFT
from machete.megakernel.plan.shared import RECORD_OFFSET

from . import ptx
from .dtypes import element_type
from .ring import TmaHandle
from .waiting import Waits


@dataclass(frozen=True, eq=False)
class Instruction:
    """One row: a range of `count` tiles of op `op`, from `first`, `step` apart. All fields Int32."""

    kind: Any
    op: Any
    first: Any
    count: Any
    step: Any
    wait_begin: Any
    flags: Any  # number of waits in the low 16 bits, then the flags of `plan.program`
    signal: Any  # counter that finished ranges add to, or -1

    @property
    def waits(self):
        """How many counters the instruction waits for."""
        return self.flags & MAX_WAITS

    @property
    def loader_waits(self):
        """Whether the load phase waits for them, too."""
        return (self.flags & LOADER_WAITS) != 0

    @property
    def fences(self):
        """Whether copies of later instructions read or overwrite what this one writes."""
        return (self.flags & FENCES) != 0

    @property
    def total_before(self):
        """How far before `signal` the counter of the whole op is, which finished ranges add to as well; or 0."""
        return self.flags >> TOTAL_SHIFT

    @staticmethod
    def read(slot) -> "Instruction":
        """Read a row from its slot (Int32 shared address)."""
        words = []
        for half in range(2):
            source = cute.make_tensor(ptx.shared_pointer(Int32, slot + half * 16, 16), cute.make_layout(4))
            fragment = cute.make_rmem_tensor((4,), Int32)
            cute.autovec_copy(source, fragment)
            words += [fragment[i] for i in range(4)]
        return Instruction(*words)


@dataclass(frozen=True, eq=False)
class TileRange:
    """The tiles of an instruction: `count` (Int32) of them, numbered from 0 here."""

    bound: Any
    first: Any
    count: Any
    step: Any

    def tile(self, number):
        """Number in the op of the tile with this number in the range."""
        return self.first + number * self.step

    def index(self, number, dim: str):
        """Index along `dim` of the tile with this number in the range."""
        return self.bound.tile_indices(self.tile(number))[f"tile_{dim}"]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """What an instruction depends on, for an op that decides itself when it needs it."""

    clear: Any  # Int32 shared address of the slot's barrier
    parity: Any
    waits: Waits
    blocks: list[Any] = field(default_factory=list)  # of the traced code, in which somebody waits

    def wait(self) -> None:
        """Wait until everything that this instruction depends on has been written."""
        self.waits.until("dependency", self.clear, self.parity)
        self.blocks.append(ptx.traced_block())

    def wait_at_last(self) -> None:
        """Wait, unless whoever comes here has waited: surely so if the op did in the block that is traced now."""
        if ptx.traced_block() not in self.blocks:
            self.wait()

    def await_words(self, address) -> None:
        """One lane: wait until none of the four 32-bit words at `address` (Int64, 16-byte aligned) is zero.

        For what SMs of one op hand over to one another by relaxed accesses: whoever stores must not wait for this one.
        A kernel that is stopped gives up such waits, so a loop around one ends when `gave_up()`. Then `meet()`.
        """
        self.waits.words(address)

    def gave_up(self):
        """Not 0 if a wait of this lane was given up: what it waited for is not there, and results do not matter."""
        return self.waits.given_up[0]

    def meet(self) -> None:
        """The lanes of a warp go on together after `await_words`."""
        self.waits.meet()

    def take_tagged(self, address):
        """Each lane of a warp: wait for the two float32 values that `store_tagged` stores to its `address`, Int64.

        Zeros are there afterwards. For what SMs of one op hand over to one another: whoever stores must not wait for
        this one.
        """
        values = self.waits.take_tagged(address)
        self.waits.meet()
        return values


class BoundOp:
    """Reads an op's record; one per kind and role in the traced code."""

    def __init__(self, kind: Kind, slot, compute_threads: int) -> None:
        self._kind = kind
        self._record = slot + RECORD_OFFSET
        self._compute_threads = compute_threads

    def field(self, dtype, name: str):
        """The value of a record field."""
        return ptx.shared_word(dtype, self._record + self._kind.record.offset(name))

    def tensor(self, name: str):
        """The global tensor `name` with runtime extents and strides."""
        kind = self._kind
        info = kind.tensors[name]
        dtype = element_type(info.dtype)
        pointer = ptx.global_pointer(dtype, self.field(Int64, f"ptr_{name}"), max(info.alignment, dtype.width // 8))
        shape = tuple(self.field(Int32, f"extent_{dim}") for dim in info.dims)
        last = len(info.dims) - 1
        strides = tuple(
            1 if i == last and info.unit_inner else self.field(Int64, f"stride_{name}_{i}")
            for i in range(len(info.dims))
        )
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=strides))

    def handle(self, name: str) -> TmaHandle:
        """The TMA descriptor of tensor `name`."""
        kind = self._kind
        return TmaHandle(self.field(Int64, f"tma_{name}"), kind.descriptors[name], kind.tensors[name].dtype.itemsize)

    def instance(self):
        """The `self` of the op's methods: configuration as constants, extents as runtime values."""
        kind = self._kind
        values: dict[str, Any] = {"threads_per_row": self._compute_threads, **kind.config}
        values |= {dim: self.field(Int32, f"extent_{dim}") for dim in kind.extent_dims}
        values |= {f"tile_size_{dim}": size for dim, size in kind.tile_sizes.items()}
        values |= {f"{name}_dtype": element_type(info.dtype) for name, info in kind.tensors.items()}
        op = object.__new__(kind.op)
        vars(op).update(values)
        return op

    def _fusion(self, slot: str, position: int, fusion_type: type[Fusion]) -> Fusion:
        """A fusion as its device functions see it: its tensors, their TMA descriptors, and its configuration."""
        names = {name: tensor_name(slot, position, name) for name in fusion_type.reads}
        values: dict[str, Any] = {name: self.tensor(full) for name, full in names.items()}
        described = self._kind.descriptors
        values |= {f"tma_{name}": self.handle(full) for name, full in names.items() if full in described}
        prefix = f"{slot}{position}."
        values |= {
            name.removeprefix(prefix): value for name, value in self._kind.config.items() if name.startswith(prefix)
        }
        fusion = object.__new__(fusion_type)
        vars(fusion).update(values)
        return fusion

    def tile_indices(self, tile) -> dict[str, Any]:
        """Linear tile number to one index per tiled dim; the last dim in `tile` varies fastest."""
        dims = self._kind.declaration.tile
        indices: dict[str, Any] = {}
        rest = tile
        for dim in reversed(dims[1:]):
            tiles = self.field(Int32, f"tiles_{dim}")
            indices[f"tile_{dim}"] = rest % tiles
            rest = rest // tiles
        if dims:
            indices[f"tile_{dims[0]}"] = rest
        return indices

    def has_work(self, tile):
        """Whether the tile begins inside of the extents, which may be smaller than those that were planned."""
        inside = Boolean(True)
        indices = self.tile_indices(tile)
        for dim in self._kind.tile:
            if dim in self._kind.op.resizable:
                first = indices[f"tile_{dim}"] * self._kind.tile_sizes[dim]
                inside = inside & (first < self.field(Int32, f"extent_{dim}"))
        return inside

    def arguments(self, phase: str, tile, available: dict[str, Any]) -> dict[str, Any]:
        """What the method of `phase` asks for by name; `tile` is None for a phase that takes the whole range."""
        kind = self._kind
        if tile is not None:
            available = {**available, **self.tile_indices(tile)}
        arguments: dict[str, Any] = {}
        for name in kind.declaration.phases[phase]:
            if name in available:
                arguments[name] = available[name]
            elif name in kind.op.fusions:
                arguments[name] = tuple(self._fusion(*entry) for entry in kind.op.fusion_types if entry[0] == name)
            elif name in kind.tensors:
                arguments[name] = self.tensor(name)
            elif name in kind.scalars:
                arguments[name] = self.field(element_type(kind.scalars[name]), f"scalar_{name}")
            else:
                arguments[name] = self.handle(name.removeprefix("tma_"))
        return arguments
