"""Choices outlive the process, and no file breaks anything."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from machete.megakernel import settings
from machete.megakernel.tuning import Choices

PROBLEM, CHOICE = "bf16 16x8192x4096", {"tile_n": 64, "slices": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(settings.CACHE.variable, "on")
    monkeypatch.setenv(settings.CACHE_DIR.variable, str(tmp_path))
    return tmp_path


def test_another_process_finds_it(folder: Path) -> None:
    Choices("GemmOp", "NVIDIA H200").keep(PROBLEM, CHOICE)
    assert Choices("GemmOp", "NVIDIA H200").find(PROBLEM) == CHOICE
    assert [path.name for path in (folder / "tuned").glob("*.json")] == ["gemmop-nvidia-h200.json"]
    assert Choices("GemmOp", "NVIDIA B200").find(PROBLEM) is None
    assert Choices("GemmOp", "NVIDIA H200").find("bf16 17x8192x4096") is None


def test_what_another_one_keeps_meanwhile_is_seen(folder: Path) -> None:
    first, second = Choices("GemmOp", "card"), Choices("GemmOp", "card")
    assert first.find(PROBLEM) is None
    second.keep(PROBLEM, CHOICE)
    assert first.find(PROBLEM) == CHOICE
    first.keep("other", {"tile_n": 256})
    assert second.find("other") == {"tile_n": 256}
    assert Choices("GemmOp", "card").find(PROBLEM) == CHOICE


def test_a_found_choice_is_a_copy() -> None:
    choices = Choices("GemmOp", "card")
    choices.keep(PROBLEM, CHOICE)
    found = choices.find(PROBLEM)
    assert found is not None
    found["tile_n"] = 1
    assert choices.find(PROBLEM) == CHOICE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2, "op": "GemmOp", "device": "card", "choices": {}}',
        b'{"format": 1, "op": "GemmOp", "device": "another", "choices": {}}',
        b'{"format": 1, "op": "GemmOp", "device": "card", "choices": {"p": {"tile_n": "64"}}}',
        b'{"format": 1, "op": "GemmOp", "device": "card", "choices": {"p": 64}}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_passed_over_and_replaced(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    choices = Choices("GemmOp", "card")
    choices.path.parent.mkdir(parents=True)
    choices.path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "machete.megakernel"):
        assert choices.find("p") is None
        assert choices.find("p") is None
    assert caplog.text.count("cannot be used") == 1, "said once, not for every product"
    choices.keep(PROBLEM, CHOICE)
    assert Choices("GemmOp", "card").find(PROBLEM) == CHOICE
    json.loads(choices.path.read_text())


def test_where_nothing_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / "file"
    file.write_text("in the way")
    monkeypatch.setenv(settings.CACHE_DIR.variable, str(file))
    choices = Choices("GemmOp", "card")
    choices.keep(PROBLEM, CHOICE)
    assert choices.find(PROBLEM) == CHOICE
    assert "cannot be written" in caplog.text
    assert Choices("GemmOp", "card").find(PROBLEM) is None


def test_without_a_cache_it_is_for_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CACHE.variable, "off")
    choices = Choices("GemmOp", "card")
    choices.keep(PROBLEM, CHOICE)
    assert choices.find(PROBLEM) == CHOICE
    assert not list(folder.iterdir())


WRITER = """
import sys
from machete.megakernel.tuning import Choices
choices = Choices("GemmOp", "card")
for number in range(int(sys.argv[1]), int(sys.argv[1]) + 20):
    choices.keep(f"problem {number}", {"tile_n": number})
"""


def test_writers_at_the_same_time_lose_nothing() -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(first)]) for first in (0, 20, 40)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    choices = Choices("GemmOp", "card")
    assert [choices.find(f"problem {i}") for i in range(60)] == [{"tile_n": i} for i in range(60)]
