"""The native interpreter (src/native/module.cpp)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

INSTRUCTION_SET: str  # of the register-only handlers: avx2 or base
SHARED_BASE: int
SHARED_WINDOW: int
LOCAL_WINDOW: int
engine: Any

class Program: ...

def opcode_names() -> list[str]: ...
def make_program(
    code: np.ndarray,
    ext: np.ndarray,
    constants: np.ndarray,
    use_starts: np.ndarray,
    uses: np.ndarray,
    predicate_starts: np.ndarray,
    predicate_uses: np.ndarray,
    register_bytes: int,
    predicates: int,
    static_shared: int,
    local_bytes: int,
) -> Program: ...
def launch(
    program: Program,
    params: np.ndarray,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int],
    dynamic_shared: int,
    resident: int,
    seed: int,
    max_instructions: int,
    races: bool,
    strict: bool,
    regions: Sequence[tuple[int, int, str, bool]],
    progress: Callable[[int, int], None] | None,
    lines: np.ndarray,
    max_slices: int,
) -> dict[str, Any]: ...
