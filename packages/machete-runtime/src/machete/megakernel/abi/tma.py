"""The box that a TMA descriptor copies in one instruction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from machete.megakernel.abi.errors import OpDefinitionError
from machete.megakernel.abi.tensor import TensorInfo, dtype_name

SWIZZLES = (0, 32, 64, 128)
MAX_BOX = 256
MAX_RANK = 5
INNER_BYTES = 16


@dataclass(frozen=True)
class TmaBox:
    """What one TMA copy of a tensor moves (CUDA driver API, "cuTensorMapEncodeTiled").

    Attributes:
        box: elements along each dim of the tensor, outermost first; each from 1 to 256, at most 5 dims.
        swizzle: bytes of the swizzle span in shared memory: 0 (none), 32, 64 or 128.
        inner: the dim whose neighbours are adjacent in memory, where it is not the last: then it is also the innermost
            one in shared memory, behind the others in their order.
    """

    box: tuple[int, ...]
    swizzle: int = 0
    inner: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", tuple(self.box))
        if not 1 <= len(self.box) <= MAX_RANK:
            raise self._error(f"{len(self.box)} dims", f"a TMA descriptor has 1 to {MAX_RANK} dims")
        for extent in self.box:
            if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAX_BOX:
                raise self._error(f"extent {extent!r}", f"each extent of the box is an int from 1 to {MAX_BOX}")
        if self.swizzle not in SWIZZLES:
            raise self._error(f"swizzle {self.swizzle!r}", f"the swizzle is one of {SWIZZLES}, in bytes")
        if self.inner is not None and (type(self.inner) is not int or not 0 <= self.inner < len(self.box)):
            raise self._error(f"inner={self.inner!r}", f"it is a dim, 0 to {len(self.box) - 1}")

    @property
    def order(self) -> tuple[int, ...]:
        """The dims as they lie in memory, outermost first."""
        inner = len(self.box) - 1 if self.inner is None else self.inner
        return (*(dim for dim in range(len(self.box)) if dim != inner), inner)

    def num_bytes(self, itemsize: int) -> int:
        """Bytes that one copy writes to shared memory (and expects on its mbarrier)."""
        return math.prod(self.box) * itemsize

    def check(self, info: TensorInfo, op: str) -> None:
        """Raise `OpDefinitionError` unless the box fits the rank and the dtype of the tensor."""
        where = f"{op}.descriptors()[{info.name!r}]"
        if len(self.box) != len(info.shape):
            raise self._error(
                f"{len(self.box)} dims, but `{info.name}` has {len(info.shape)}",
                "a box has one extent for each dim of its tensor",
                where,
            )
        extent = self.box[self.order[-1]]
        inner = extent * info.itemsize
        if inner % INNER_BYTES:
            raise self._error(
                f"innermost extent {extent} of {dtype_name(info.dtype)} is {inner} bytes",
                f"the innermost extent is a multiple of {INNER_BYTES} bytes",
                where,
            )
        if self.swizzle and inner > self.swizzle:
            raise self._error(
                f"innermost extent {extent} of {dtype_name(info.dtype)} is {inner} bytes, "
                f"more than the swizzle of {self.swizzle}",
                "a row of the box lies within one swizzle span",
                where,
                f"box=(…, {self.swizzle // info.itemsize}), and several copies",
            )

    def _error(self, what: str, why: str, where: str = "TmaBox", fix: str = "") -> OpDefinitionError:
        inner = "" if self.inner is None else f", inner={self.inner!r}"
        return OpDefinitionError(
            what=f"TmaBox(box={self.box}, swizzle={self.swizzle}{inner}): {what}",
            where=where,
            why=why,
            fix=fix or "choose a box within these limits; several copies fill one stage",
        )
