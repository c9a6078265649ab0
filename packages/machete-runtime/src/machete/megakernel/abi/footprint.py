"""Which bytes of memory a strided view touches, and whether two views touch a common one.

The question is whether a bounded integer combination of strides hits a short interval. Sorted by stride, each
dim leaves only the few steps that the smaller dims can still correct, so slices of one tensor are decided
exactly in a handful of steps. Combinations that would take long are answered with "yes": a caller that orders
or refuses accesses on "yes" is then careful, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

#: Steps of the search after which the answer is "yes".
BUDGET = 4096


@dataclass(frozen=True)
class Footprint:
    """A strided view of memory, without dtype or device.

    Attributes:
        address: byte address of the first element.
        shape: extents.
        strides: in bytes, one for each dim, not negative.
        itemsize: bytes of one element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @cached_property
    def is_empty(self) -> bool:
        """Whether there is no element at all."""
        return 0 in self.shape

    @cached_property
    def span(self) -> tuple[int, int]:
        """First byte touched, and the one after the last; empty for no elements."""
        if self.is_empty:
            return self.address, self.address
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return self.address, self.address + reach + self.itemsize

    @cached_property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """(stride, largest index) of the dims that have more than one element, largest stride first."""
        pairs = zip(self.strides, self.shape, strict=True)
        return tuple(sorted(((stride, extent - 1) for stride, extent in pairs if extent > 1), reverse=True))

    def self_overlapping(self) -> bool:
        """Whether two elements share a byte. Exact unless the strides are contrived, else maybe yes."""
        if self.is_empty:
            return False
        # Two elements differ by d != 0; let the first dim in which they differ be the k-th, d_k > 0.
        for k, (stride, last) in enumerate(self.steps):
            terms = [(stride, 1, last)] + [(s, -n, n) for s, n in self.steps[k + 1 :]]
            if _reaches(1 - self.itemsize, self.itemsize - 1, terms):
                return True
        return False

    def overlaps(self, other: Footprint) -> bool:
        """Whether some byte belongs to both. Exact for slices of one tensor; else, no is certain."""
        (begin, end), (other_begin, other_end) = self.span, other.span
        if begin >= other_end or other_begin >= end or self.is_empty or other.is_empty:
            return False
        if self.address == other.address:
            return True
        # Element i of self and j of other share a byte if address differences lie in (-itemsize', itemsize).
        bounds: dict[int, list[int]] = {}
        for stride, last in self.steps:
            bounds.setdefault(stride, [0, 0])[0] -= last
        for stride, last in other.steps:
            bounds.setdefault(stride, [0, 0])[1] += last
        terms = [(stride, low, high) for stride, (low, high) in sorted(bounds.items(), reverse=True)]
        distance = other.address - self.address
        return _reaches(1 - other.itemsize - distance, self.itemsize - 1 - distance, terms)

    def same_memory(self, other: Footprint) -> bool:
        """Whether element i of one is element i of the other, for every i."""
        return (
            self.address == other.address
            and self.shape == other.shape
            and self.itemsize == other.itemsize
            and all(
                mine == theirs or extent <= 1
                for mine, theirs, extent in zip(self.strides, other.strides, self.shape, strict=True)
            )
        )


def _reaches(low: int, high: int, terms: Sequence[tuple[int, int, int]]) -> bool:
    """Whether low <= sum(d·stride) <= high for some integers d, each within its term's (stride, least, most).

    Terms come with the largest stride first. Exact within `BUDGET` steps, else True.
    """
    count = len(terms)
    least = [0] * (count + 1)  # of the sum over the terms from k on
    most = [0] * (count + 1)
    divisor = [0] * (count + 1)
    for k in range(count - 1, -1, -1):
        stride, first, last = terms[k]
        least[k] = least[k + 1] + stride * first
        most[k] = most[k + 1] + stride * last
        divisor[k] = math.gcd(divisor[k + 1], stride)

    pending = [(0, low, high)]
    for _ in range(BUDGET):
        if not pending:
            return False
        k, low, high = pending.pop()
        if low > most[k] or high < least[k]:
            continue
        if divisor[k] == 0:  # only strides of 0 are left, or nothing
            if low <= 0 <= high:
                return True
            continue
        if high // divisor[k] * divisor[k] < low:  # no multiple of the strides' divisor in between
            continue
        stride, first, last = terms[k]
        first = max(first, -((most[k + 1] - low) // stride))
        last = min(last, (high - least[k + 1]) // stride)
        if last - first >= BUDGET or (k == count - 1 and first <= last):
            return True
        pending += [(k + 1, low - d * stride, high - d * stride) for d in range(first, last + 1)]
    return True
