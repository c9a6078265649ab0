"""Published packages that are built on the DSL, from the index, unmodified, on a simulated GPU of every architecture.

Each script beside this file is an ordinary program for a GPU, and asserts against torch itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MACHETE_SIM = Path(sys.executable).with_name("machete-sim")


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty: every kernel is compiled."""
    return tmp_path_factory.mktemp("caches")


def run(arch: str, script: str, arguments: tuple[str, ...], caches: Path) -> subprocess.CompletedProcess[str]:
    command = [str(MACHETE_SIM), "run", "--arch", arch, str(HERE / script), *arguments]
    environment = os.environ | {"XDG_CACHE_HOME": str(caches), "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


REDUCTIONS, GEMM, ATTENTION = "quack_reductions.py", "quack_gemm.py", "flash_attention_4.py"
GQA = ()
CAUSAL = ("--causal", "--kv-heads", "2")
ARCHITECTURES = ("sm_90a", "sm_100a", "sm_120a")
PROGRAMS = [
    *((arch, REDUCTIONS, ()) for arch in ARCHITECTURES),
    *((arch, GEMM, ()) for arch in ARCHITECTURES),
    *((arch, ATTENTION, GQA) for arch in ARCHITECTURES),
    ("sm_90a", ATTENTION, (*CAUSAL, "--length", "192")),  # ends in the middle of a tile
    ("sm_100a", ATTENTION, (*CAUSAL, "--length", "192")),
    ("sm_120a", ATTENTION, (*CAUSAL, "--length", "256")),
]


@pytest.mark.parametrize(("arch", "script", "arguments"), PROGRAMS)
def test_a_program_agrees_with_torch(arch: str, script: str, arguments: tuple[str, ...], caches: Path) -> None:
    done = run(arch, script, arguments, caches)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "relative error" in done.stdout
    assert f"machete-sim: {arch}" in done.stderr
    assert "no kernel was launched" not in done.stderr


def test_the_finding_in_flash_attn_4_for_sm_120_is_reported(caches: Path) -> None:
    """Query rows beyond the sequence are read from shared memory that nothing was copied to (docs/simulator.md)."""
    done = run("sm_120a", ATTENTION, (*CAUSAL, "--length", "192"), caches)
    assert done.returncode == 1
    assert "uninitialised: ldmatrix of shared memory" in done.stderr
    assert "flash_attn/cute" in done.stderr
