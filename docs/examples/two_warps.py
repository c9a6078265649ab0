"""One warp squares numbers, another adds them up: `machete-sim trace docs/examples/two_warps.py` shows who waits."""

import torch
from cutlass import Float32, cute
from cutlass.cute.runtime import from_dlpack
from cutlass.memory import SmemAllocator


@cute.kernel
def squares_kernel(x: cute.Tensor, y: cute.Tensor):
    warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
    squares = SmemAllocator().allocate_tensor(Float32, cute.make_layout(x.shape))
    if warp == 0:
        for i in range(0, cute.size(x), 32):
            squares[i + lane] = x[i + lane] * x[i + lane]
    cute.arch.sync_threads()
    if warp == 1:
        total = Float32(0.0)
        for i in range(0, cute.size(x), 32):
            total += squares[i + lane]
        y[lane] = total


@cute.jit
def squares(x: cute.Tensor, y: cute.Tensor):
    squares_kernel(x, y).launch(grid=(1, 1, 1), block=(64, 1, 1))


x, y = torch.randn(1024, device="cuda"), torch.empty(32, device="cuda")
squares(from_dlpack(x), from_dlpack(y))
assert torch.allclose(y, (x * x).view(-1, 32).sum(0))
