"""Sums over the threads that share a row."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from machete.megakernel.authoring import COMPUTE_WARPS, sync_compute_threads

SUM_BYTES = COMPUTE_WARPS * 4  # the sums of all warps for one row of each


@cute.jit
def row_sums(totals: cutlass.Constexpr, partial, threads: cutlass.Constexpr):
    """Each total summed over the `threads` (a power of two) that share its row; the same value in all of them.

    Rows of more than a warp meet in `partial` (warps, len(totals)), shared memory that nobody may read any more, at one
    barrier of all compute threads.
    """
    sums = []
    for total in totals:
        for shift in cutlass.range_constexpr(5):
            if cutlass.const_expr(1 << shift < threads):
                total = total + cute.arch.shuffle_sync_bfly(total, 1 << shift)
        sums.append(total)
    if cutlass.const_expr(threads > 32):
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(thread // 32)
        if thread % 32 == 0:
            for i in cutlass.range_constexpr(len(sums)):
                partial[warp, i] = sums[i]
        sync_compute_threads()
        warps = threads // 32
        first = warp // warps * warps
        for i in cutlass.range_constexpr(len(sums)):
            total = Float32(0.0)
            for other in cutlass.range_constexpr(warps):
                total = total + partial[first + other, i]
            sums[i] = total
    return sums


@cute.jit
def square_sum(values):
    """The sum of the squares of a vector in registers, in float32."""
    even, odd = Float32(0.0), Float32(0.0)
    for i in cutlass.range_constexpr(0, cute.size(values) // 2 * 2, 2):
        one, other = values[i].to(Float32), values[i + 1].to(Float32)
        even = even + one * one
        odd = odd + other * other
    if cutlass.const_expr(cute.size(values) % 2 == 1):
        last = values[cute.size(values) - 1].to(Float32)
        even = even + last * last
    return even + odd


@cute.jit
def scale_by(values, factor, weights):
    """values *= factor * weights, in place, computed in float32."""
    for i in cutlass.range_constexpr(cute.size(values)):
        values[i] = (values[i].to(Float32) * factor * weights[i].to(Float32)).to(values.element_type)
