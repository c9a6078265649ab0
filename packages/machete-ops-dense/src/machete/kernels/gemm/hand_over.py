"""Sums on their way from one SM to another through global memory, where each word says itself whether it is there.

A word that nobody has written yet is zero; a sum that is zero is written as minus zero. So whoever sees a word has the
sum, without a fence, a flag or an atomic. The taker puts zeros back, for the next launch.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, Uint32

VECTOR = 4  # float32 values that one access moves
REGISTERS = 160  # of a thread, for its own sums and those that are on their way to it


@cute.jit
def hand_over(address, stride: cutlass.Constexpr, values: cutlass.Constexpr):
    """Store float32 values, `VECTOR` at a time, to `address` (Int64, 16-byte aligned) and every `stride` bytes on."""
    for first in cutlass.range_constexpr(0, cute.size(values), VECTOR):
        _store(address + Int64(first // VECTOR * stride), [values[first + i] for i in range(VECTOR)])


@cute.jit
def take_over(dependencies, addresses: cutlass.Constexpr, stride: cutlass.Constexpr, values: cutlass.Constexpr):
    """Add to `values` what others hand over at each of the addresses, in this order, and leave zeros there."""
    # Bound methods, not `dependencies.await_words()`, which the DSL takes for a mutation where control flow is dynamic.
    await_words, gave_up = dependencies.await_words, dependencies.gave_up
    count = cute.size(values) // VECTOR
    # Until what is probably stored last is there, a look costs no more than that.
    await_words(addresses[-1] + Int64((count - 1) * stride))
    places = [(address + Int64(i * stride), i * VECTOR) for address in addresses for i in range(count)]
    at_once = max(1, (REGISTERS - cute.size(values)) // VECTOR)
    for begin in cutlass.range_constexpr(0, len(places), at_once):
        some = places[begin : begin + at_once]
        ends = [place for place, first in some[:-1] if first == (count - 1) * VECTOR] + [some[-1][0]]
        words = cute.make_rmem_tensor((len(some) * VECTOR,), Uint32)
        _fetch(some, words)
        while _least(words) == 0 and gave_up() == 0:
            for place in ends:  # the last ones that each of the others stores
                await_words(place)
            _fetch(some, words)
        for number in cutlass.range_constexpr(len(some)):
            place, first = some[number]
            _clear(place)
            for i in cutlass.range_constexpr(VECTOR):
                values[first + i] = values[first + i] + _as_float(words[number * VECTOR + i])
    dependencies.meet()


@cute.jit
def _fetch(places: cutlass.Constexpr, words):
    for number in cutlass.range_constexpr(len(places)):
        vector = _load(places[number][0])
        for i in cutlass.range_constexpr(VECTOR):
            words[number * VECTOR + i] = vector[i]


def _least(words):
    """The least of the words, in pairs: 0 if one of them is."""
    values = [words[i] for i in range(cute.size(words))]
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [_smaller(first, second) for first, second in pairs] + values[len(values) // 2 * 2 :]
    return values[0]


def _smaller(first, second):
    return cute.arch.inline_ptx(
        "min.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint32], read_only_args=[first, second]
    )


def _as_float(word):
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[word])


def _store(address, values) -> None:
    """Four sums, as words that are not zero."""
    words = "".join(
        f"mov.b32 w{i}, {{$r{1 + i}}}; setp.eq.b32 none, w{i}, 0; selp.b32 w{i}, 0x80000000, w{i}, none; "
        for i in range(VECTOR)
    )
    cute.arch.inline_ptx(
        "{ .reg .pred none; .reg .b32 w0, w1, w2, w3; "
        + words
        + "st.relaxed.gpu.global.v4.b32 [{$r0}], {w0, w1, w2, w3}; }",
        read_only_args=[address, *values],
    )


def _load(address):
    """Four words, which may be there."""
    return cute.arch.inline_ptx(
        "ld.relaxed.gpu.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * VECTOR,
        read_only_args=[address],
    )


def _clear(address) -> None:
    cute.arch.inline_ptx(
        "{ .reg .b32 none; mov.b32 none, 0; st.relaxed.gpu.global.v4.b32 [{$r0}], {none, none, none, none}; }",
        read_only_args=[address],
    )
