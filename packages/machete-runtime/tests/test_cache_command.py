"""`machete cache`, on a cache with files that the tests write."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from machete.megakernel.cli import application
from machete.megakernel.launch.cache.store import Store, Variant, _digest
from machete.megakernel.launch.container import pack


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A cache with two kernels."""
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path))
    store = Store(tmp_path)
    for name in ("Scale", "Add"):
        facts = {"kinds": [[f"ops.{name}", "digest"]], "target": {"name": "sm_90a"}}
        data = pack({"identity": _digest(facts)}, {"ptx": name.encode(), "cubin": b""})
        digest = hashlib.sha256(data).hexdigest()
        store.write(_digest(facts), facts, Variant({"file": "digest"}, {}, digest, 0.0, 1.5), data)
    return store


def machete(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(application(), ["cache", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_list(store: Store) -> None:
    text = machete("list")
    assert "2 kernels" in text
    assert "Scale" in text
    kernels = json.loads(machete("list", "--json"))["kernels"]
    assert sorted(kernel["kinds"] for kernel in kernels) == [["Add"], ["Scale"]]
    assert {kernel["target"] for kernel in kernels} == {"sm_90a"}
    assert {kernel["compile_seconds"] for kernel in kernels} == {1.5}


def test_what_was_removed_to_make_room_is_not_listed(store: Store) -> None:
    next(store.objects()).unlink()
    assert "1 kernels" in machete("list")
    store.shrink(0)
    assert "0 kernels" in machete("list")
    assert list(store.entries()) == []


def test_verify_and_clear_what_is_damaged(store: Store) -> None:
    assert "4 files are sound, 0 damaged" in machete("verify")
    broken = next(store.objects())
    broken.write_bytes(b"other")
    text = machete("verify", status=1)
    assert f"damaged: {broken}" in text
    assert "3 files are sound, 1 damaged" in text
    machete("clear", "--damaged")
    assert "3 files are sound, 0 damaged" in machete("verify")


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", ""])
def test_an_entry_of_any_content_is_damaged(store: Store, content: str) -> None:
    broken = next(store.entries())
    broken.write_text(content)
    assert f"damaged: {broken}" in machete("verify", status=1)
    assert "1 kernels" in machete("list")
    machete("clear", "--damaged")
    assert not broken.exists()


def test_a_folder_in_the_place_of_a_file(store: Store) -> None:
    for path in (next(store.entries()), next(store.objects())):
        path.unlink()
        path.mkdir()
        (path / "file").touch()
    assert "2 damaged" in machete("verify", status=1)
    machete("clear", "--damaged")
    assert "0 damaged" in machete("verify")


def test_a_setting_that_is_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "maybe")
    assert "MACHETE_CACHE='maybe'" in machete("list", status=1)


def test_clear(store: Store) -> None:
    assert "removed 2 kernels" in machete("clear")
    assert "removed 0 kernels" in machete("clear")  # nothing there is nothing wrong
    assert "0 kernels" in machete("list")


def test_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machete("folder").strip() == str(store.folder)
    monkeypatch.setenv("MACHETE_CACHE_DIR", "relative")
    result = CliRunner().invoke(application(), ["cache", "folder"])
    assert result.exit_code == 1
    assert "absolute path" in result.output


def test_it_needs_neither_torch_nor_the_dsl(store: Store) -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from machete.megakernel.cli import application; "
        "result = CliRunner().invoke(application(), ['cache', 'list']); print(result.output); "
        "print('imported', sorted({'torch', 'cutlass'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert "2 kernels" in result.stdout
    assert "imported []" in result.stdout
