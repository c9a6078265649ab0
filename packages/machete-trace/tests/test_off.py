"""Off, the tracer is nothing: the machine code is that of an installation without it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from machete.megakernel import Megakernel
from machete.megakernel.launch import compilation
from machete.trace import Trace
from small_ops import StreamAdd

TOOLS = Path(__file__).resolve().parents[3] / "tools"
WITHOUT = """
import hashlib, sys, torch
sys.modules["machete.trace"] = None  # importing it, or a module of it, fails
from machete.megakernel import Megakernel
from small_ops import StreamAdd
x, y, z = (torch.zeros(4096) for _ in range(3))
ops = StreamAdd.schedule(x=x, y=y, z=z)
print(hashlib.sha256(Megakernel(ops).compile().cubin).hexdigest())
try:
    Megakernel(ops, trace=True)
except ImportError:
    print("no tracer")
"""


def test_the_machine_code_is_that_without_machete_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "off")  # both compile
    compilation.forget()
    x, y, z = (torch.zeros(4096) for _ in range(3))
    ops = StreamAdd.schedule(x=x, y=y, z=z)
    traced = Megakernel(ops, trace=True)
    Trace.of(traced, traced.run())
    plain = Megakernel(ops).compile().cubin
    assert plain != traced.compile().cubin
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", WITHOUT]
    without = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert without.stdout.split("\n") == [hashlib.sha256(plain).hexdigest(), "no tracer", ""]
