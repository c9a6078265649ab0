"""How long a launch takes on a GPU, by CUDA events: the wall time beside which a trace's sums are put."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machete.megakernel import Megakernel

REPLAYS = 5


def wall_us(kernel: Megakernel, replays: int = REPLAYS) -> float:
    """µs of one launch among several back to back, as a CUDA graph: without what the host takes to launch it.

    The last of them is what the kernel's trace buffer holds afterwards.
    """
    import torch

    with torch.cuda.device(kernel.device):
        kernel.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.run(sync=False)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
    return 1000.0 * begin.elapsed_time(end) / replays
