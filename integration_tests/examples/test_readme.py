"""The README's examples, run as printed but for `device=`: on the card, or on the simulator for every target."""

from __future__ import annotations

import logging
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from machete.megakernel.errors import PipelineError

REPOSITORY = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)


def example(about: str) -> str:
    """The one code block of the README that contains `about`."""
    found = [block for block in BLOCKS if about in block]
    assert len(found) == 1, f"{len(found)} blocks of the README contain {about!r}"
    return found[0]


def run(code: str, folder: Path, arch: str, device: str) -> dict[str, Any]:
    """Run an example from a file (the DSL reads sources), on `device` and, on the CPU, for `arch`."""
    torch.manual_seed(0)
    if device == "cpu":
        code = code.replace('device="cuda"', 'device="cpu"')
        if arch != "sm_90a":  # the default target
            code = re.sub(r"(Megakernel\(.*)\)(\s*#.*)?$", rf'\1, arch="{arch}")', code, flags=re.MULTILINE)
    file = folder / "example.py"
    file.write_text(code)
    return runpy.run_path(str(file))


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


def test_quick_start(arch: str, device: str, tmp_path: Path) -> None:
    names = run(example("GemmOp.schedule"), tmp_path, arch, device)
    assert names["kernel"].target.name == arch
    assert error(names["y"], names["x"].float() @ names["w"].float().T) < 4e-3


def test_scale(arch: str, device: str, tmp_path: Path) -> None:
    names = run(example("class ScaleOp"), tmp_path, arch, device)
    assert names["kernel"].target.name == arch
    assert torch.equal(names["y"], names["x"] * 2)
    assert torch.equal(names["z"], names["x"] * 4)


@pytest.mark.archs("sm_90a", "sm_100a")
def test_streaming(arch: str, device: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="machete.megakernel")
    names = run(example("class StreamingOp"), tmp_path, arch, device)
    x, z, y = names["x"].float(), names["z"].float(), names["y"]
    assert torch.equal(y, (2 * x + z).to(torch.bfloat16))
    assert names["kernel"].plan.shared.ring_pages == 12
    if device == "cpu":
        stages = re.search(r"at most (\d+) stages in flight", caplog.text)
        assert stages is not None
        assert int(stages[1]) >= 2
        assert "simulated on the CPU" in caplog.text


@pytest.mark.archs("sm_120a")
def test_streaming_ring_does_not_fit_sm120(arch: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="what fits") as caught:
        run(example("class StreamingOp"), tmp_path, arch, "cpu")
    assert "13 pages of 16384 bytes" in str(caught.value)
    assert "input_stages=1" in str(caught.value)


@pytest.mark.archs("sm_120a")
def test_streaming_with_the_ring_that_the_error_proposes(arch: str, device: str, tmp_path: Path) -> None:
    code = (
        example("class StreamingOp")
        .replace("page_bytes=16*1024", "page_bytes=4*1024")
        .replace("2 * 16*1024", "2 * 4*1024")
    )
    names = run(code, tmp_path, arch, device)
    x, z, y = names["x"].float(), names["z"].float(), names["y"]
    assert torch.equal(y, (2 * x + z).to(torch.bfloat16))
    if device == "cpu":
        assert names["kernel"].report.max_stages_in_flight >= 2
