"""`tools/sim_speed.py` runs, and no product has become ten times slower than docs/simulator.md says."""

from __future__ import annotations

import pytest

from machete.sim import _core
from sim_speed import Mma, products


@pytest.mark.skipif(_core.INSTRUCTION_SET == "base", reason="speed is promised with AVX2")
@pytest.mark.parametrize("mma", list(products()), ids=lambda mma: mma.name)
def test_products(mma: Mma) -> None:
    assert mma.gflops() > 2
