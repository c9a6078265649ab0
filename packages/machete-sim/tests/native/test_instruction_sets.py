"""The interpreter on processors without AVX2: slower, and the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from machete.sim import _core


@pytest.mark.skipif(_core.INSTRUCTION_SET == "base", reason="this processor has no AVX2: every other test is this one")
def test_results_recorded_on_an_h200_come_out_without_avx2_too() -> None:
    environment = os.environ | {"MACHETE_SIM_NO_AVX2": "1"}
    program = "from machete.sim import _core; print(_core.INSTRUCTION_SET)"
    used = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert used.stdout.strip() == "base"
    recorded = Path(__file__).with_name("test_against_h200.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(recorded)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
