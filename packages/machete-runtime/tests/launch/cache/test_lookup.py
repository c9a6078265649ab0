"""When a kernel is found in the cache, when it is compiled again, and what happens to damaged files."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from machete.megakernel import Megakernel
from machete.megakernel.abi.errors import SettingError
from machete.megakernel.launch import compilation
from machete.megakernel.launch.cache.store import Store
from machete.megakernel.launch.cache.traced import Recorder


def test_a_second_process_finds_what_the_first_compiled(package: Any) -> None:
    first, second = package.compile(), package.compile()
    assert (first.cached, second.cached) == (False, True)
    assert (first.ptx, first.cubin, first.entry) == (second.ptx, second.cubin, second.entry)


@pytest.mark.parametrize(
    ("module", "old", "new", "result"),
    [
        ("cached_op", "+ OFFSET", "+ 1.0", [1.0, 3.0, 5.0]),
        ("cached_op", "bias = 0.0", "bias = 4.0", [4.0, 6.0, 8.0]),
        ("cached_helper", "value * FACTOR", "value * FACTOR + 1.0", [1.0, 3.0, 5.0]),
        ("cached_constants", "2.0", "3.0", [0.0, 3.0, 6.0]),
    ],
    ids=["op", "attribute", "helper", "constant"],
)
def test_an_edit_compiles_again(package: Any, module: str, old: str, new: str, result: list[float]) -> None:
    assert package.run() == [0.0, 2.0, 4.0]
    package.edit(module, old, new)
    assert package.run() == result
    package.edit(module, new, old)
    assert package.compile().cached  # what it was before is still there


def test_a_file_that_was_not_traced_may_change(package: Any) -> None:
    package.compile()
    package.edit("cached_bystander", "1", "2")
    assert package.compile().cached


def test_a_value_that_a_program_sets_counts(package: Any) -> None:
    package.compile()
    module = package.load()
    module.OFFSET = 5.0
    assert package.run(module) == [5.0, 7.0, 9.0]
    assert package.compile().cached


@pytest.mark.parametrize(
    ("imported", "used"),
    [
        ("import cached_constants", "cached_constants.FACTOR"),
        ("import cached_bystander", "cached_bystander.constants.FACTOR"),
    ],
    ids=["module", "module of a module"],
)
def test_a_value_that_a_program_sets_in_another_module_counts(package: Any, imported: str, used: str) -> None:
    package.edit("cached_bystander", "UNUSED", "import cached_constants as constants\nUNUSED")
    package.edit("cached_helper", "from cached_constants import FACTOR", imported)
    package.edit("cached_helper", "value * FACTOR", f"value * {used}")
    assert package.run() == [0.0, 2.0, 4.0]
    module = package.load()
    sys.modules["cached_constants"].FACTOR = 3.0
    assert package.run(module) == [0.0, 3.0, 6.0]
    assert package.compile(module).cached
    assert package.run() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("value", ["decimal.Decimal(0)", "Raising()"])
def test_a_kernel_that_uses_what_has_no_description_is_not_kept(package: Any, store: Store, value: str) -> None:
    raising = (
        "class Raising:\n    def __getattr__(self, name): raise RuntimeError(name)\n    def __call__(self): pass\n"
    )
    package.edit("cached_op", "OFFSET = 0.0", f"import decimal\n{raising}OFFSET = 0.0\nODD = {value}")
    package.edit("cached_op", "+ OFFSET", "+ (OFFSET if type(ODD) is not int else 1.0)")
    assert [package.compile().cached for _ in range(2)] == [False, False]
    assert list(store.objects()) == []


def test_an_op_that_holds_what_has_no_description_is_not_kept(package: Any, store: Store) -> None:
    package.edit("cached_op", "bias = 0.0", "bias = 0.0\n    odd = __import__('decimal').Decimal(0)")
    assert [package.compile().cached for _ in range(2)] == [False, False]
    assert list(store.objects()) == []


def test_a_malformed_setting_is_said_before_compiling(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machete.megakernel.launch.compiler.compile_kernel", None)
    monkeypatch.setenv("MACHETE_CACHE_BYTES", "a lot")
    with pytest.raises(SettingError, match="MACHETE_CACHE_BYTES"):
        package.compile()


def test_switched_off_nothing_is_described_or_recorded(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "off")
    monkeypatch.setattr("machete.megakernel.launch.cache.identity.Identity.of", lambda *_: pytest.fail("described"))
    monkeypatch.setattr(Recorder, "recording", lambda _: pytest.fail("recorded"))
    assert not package.compile().cached


def test_a_known_kernel_is_found_while_another_is_compiled(package: Any) -> None:
    module = package.load()
    x = torch.zeros(512)
    ops = module.Affine.schedule(x=x, y=torch.empty_like(x))
    Megakernel(ops, arch="sm_90a").compile()
    with ThreadPoolExecutor() as pool, compilation._lock:
        assert pool.submit(Megakernel(ops, arch="sm_90a").compile).result(timeout=20)


def test_values_in_a_closure_count(package: Any) -> None:
    """Two classes of one name, made by one function, are different code."""
    package.edit("cached_op", "class Affine(Op):", "def make(factor):\n  class Made(Op):")
    source = (package.folder / "cached_op.py").read_text()
    head, body = source.split("  class Made(Op):")
    body = body.replace("\n", "\n  ").replace("twice(x[n])", "x[n] * factor").replace("self.bias", "0.0")
    (package.folder / "cached_op.py").write_text(f"{head}  class Made(Op):{body}\n  return Made\n")
    module = package.load()
    results = []
    for factor in (2.0, 3.0, 2.0):
        module.Affine = module.make(factor)
        results.append((package.run(module), package.compile(module).cached))
    assert results == [([0.0, 2.0, 4.0], True), ([0.0, 3.0, 6.0], True), ([0.0, 2.0, 4.0], True)]


@pytest.mark.parametrize("variable", ["CUTE_DSL_LINEINFO", "CUTE_DSL_SOMETHING_NEW"])
def test_settings_of_the_dsl_count(package: Any, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    package.compile()
    monkeypatch.setenv(variable, "1")
    assert not package.compile().cached


def test_config_counts_by_value(package: Any) -> None:
    def one() -> int:
        return 1

    def other() -> int:
        return 2

    assert [package.compile(function=one).cached for _ in range(2)] == [False, True]
    other.__name__, other.__qualname__ = one.__name__, one.__qualname__
    assert not package.compile(function=other).cached


def test_switched_off(package: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "off")
    assert not package.compile().cached
    assert not package.compile().cached
    assert not store.folder.exists()


# ---------------------------------------------------------------------- damaged files


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_text('{"some": "other program\'s file"}')


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [truncate, empty, flip_a_bit, foreign, folder_in_its_place]


@pytest.mark.parametrize("which", ["object", "entry"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_again(
    package: Any,
    store: Store,
    only_object: Callable[[], Path],
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    which: str,
) -> None:
    good = package.compile()
    [entry] = store.entries()
    path = only_object() if which == "object" else entry
    damage(path)
    again = package.compile()
    assert not again.cached
    assert again.ptx == good.ptx
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [str(path) in message for message in said if "cannot be used" in message] == [True]
    if damage is not folder_in_its_place:  # which cannot be replaced by a file: others come to no harm
        assert package.compile().cached


def test_the_code_of_another_kernel_is_refused(package: Any, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """An object whose content is right for its name, but which an entry names wrongly."""
    package.compile()
    mine = next(store.objects())
    package.compile(other=1)
    [other] = [path for path in store.objects() if path != mine]
    shutil.copy(other, mine)
    assert not package.compile().cached
    assert "cannot be used" in caplog.text


def test_an_entry_that_names_the_object_of_another_is_refused(package: Any, store: Store) -> None:
    from machete.megakernel.launch.cache.store import _digest

    package.compile()
    [path] = store.entries()
    mine = next(store.objects())
    package.compile(other=1)
    [other] = [found for found in store.objects() if found != mine]
    body = json.loads(path.read_text())["body"]
    body["variants"][0]["object"] = other.stem
    path.write_text(json.dumps({"body": body, "sha256": _digest(body)}))
    assert not package.compile().cached


# ---------------------------------------------------------------------- folders that cannot be written


def test_a_full_disk_compiles_and_says_so(
    package: Any,
    store: Store,
    full_disk: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = Store.write

    def limited(*arguments: Any) -> None:
        with full_disk():  # the compiler has files of its own, on another disk
            write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", limited)
        assert not package.compile().cached
    assert "nothing is kept" in caplog.text
    assert [path for path in store.folder.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert not package.compile().cached
    assert package.compile().cached  # once there is room


def test_a_folder_that_cannot_be_made(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert not package.compile().cached
    assert "nothing is kept" in caplog.text


# ---------------------------------------------------------------------- processes

PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
import torch
from cached_op import Affine
from machete.megakernel import Megakernel
x = torch.arange(3.0)
y = torch.empty_like(x)
kernel = Megakernel(Affine.schedule(x=x, y=y), arch="sm_90a")
print("ready", flush=True)
sys.stdin.readline()
kernel.run()
assert y.tolist() == [0.0, 2.0, 4.0], y
compiler = "machete.megakernel.launch.compiler" in sys.modules
print(f"result: cached={kernel.compile().cached} compiler={compiler}")
"""


def start(package: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.folder)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_two_processes_compile_once(package: Any) -> None:
    processes = [start(package) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            pass
    for process in processes:  # both now
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = sorted(process.communicate(timeout=120)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    results = sorted(line for output in outputs for line in output.splitlines() if line.startswith("result"))
    # The one that waited has not even loaded the compiler.
    assert results == ["result: cached=False compiler=True", "result: cached=True compiler=False"]
