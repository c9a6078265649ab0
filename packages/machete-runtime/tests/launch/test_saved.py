"""Kernels in files: saved here, run in processes that never import the DSL or the op's module."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import small_ops
from machete.megakernel import Megakernel, temporary
from machete.megakernel.errors import (
    AlignmentError,
    DeviceError,
    DtypeError,
    OverlapError,
    SavedKernelError,
    ShapeMismatchError,
    StrideError,
    TargetError,
    TensorTypeError,
    UnknownArgumentError,
)
from machete.megakernel.launch import saved


def chain(device: str = "cpu") -> tuple[Megakernel, dict[str, torch.Tensor]]:
    """y = 3 (2 x + z), with a temporary between the ops, through the page ring where there is one."""
    x, z = (torch.randint(-8, 8, (1000,), device=device).float() for _ in range(2))
    y = torch.empty_like(x)
    twice, total = (temporary((1000,), torch.float32, device) for _ in range(2))
    ops = small_ops.Scale.schedule(x=x, y=twice, factor=2.0)
    ops += small_ops.StreamAdd.schedule(x=twice, y=z, z=total)
    ops += small_ops.Scale.schedule(x=total, y=y, factor=3.0)
    return Megakernel(ops), {"x": x, "z": z, "y": y}


@pytest.fixture
def file(tmp_path: Path, anywhere: str) -> Path:
    kernel, tensors = chain(anywhere)
    kernel.save(tmp_path / "chain.kernel", tensors=tensors)
    return tmp_path / "chain.kernel"


def test_a_loaded_kernel_computes_the_same(file: Path, anywhere: str) -> None:
    kernel = Megakernel.load(file)
    assert sorted(kernel.tensors) == ["x", "y", "z"]
    x, z = (torch.randint(-8, 8, (1000,), device=anywhere).float() for _ in range(2))
    kernel.run(x=x, z=z)
    assert torch.equal(kernel.tensors["y"], 3 * (2 * x + z))
    other = torch.empty_like(x)
    kernel.run(x=z, y=other)
    assert torch.equal(other, 3 * (2 * z + z))


def test_tensors_are_passed_when_it_is_loaded(file: Path, anywhere: str) -> None:
    x, z = (torch.randint(-8, 8, (1000,), device=anywhere).float() for _ in range(2))
    y = torch.full_like(x, float("nan"))
    Megakernel.load(file, tensors={"x": x, "y": y, "z": z}).run()
    assert torch.equal(y, 3 * (2 * x + z))


def test_scalars_are_those_of_the_last_run(tmp_path: Path, anywhere: str) -> None:
    x = torch.arange(10.0, device=anywhere)
    y = torch.empty_like(x)
    kernel = Megakernel(small_ops.Scale.schedule(x=x, y=y, factor=2.0))
    kernel.run(factor=-1.5)
    kernel.save(tmp_path / "scale.kernel")
    loaded = Megakernel.load(tmp_path / "scale.kernel", tensors={"x": x})
    loaded.run()
    assert torch.equal(loaded.tensors["y"], -1.5 * x)
    loaded.run(factor=4.0)
    assert torch.equal(loaded.tensors["y"], 4.0 * x)


def test_extents_can_change(tmp_path: Path, op_classes: SimpleNamespace, anywhere: str) -> None:
    x = torch.arange(1000.0, device=anywhere)
    z = torch.empty_like(x)
    Megakernel(op_classes.Add.schedule(x=x, y=x.clone(), z=z)).save(tmp_path / "add.kernel")
    loaded = Megakernel.load(tmp_path / "add.kernel", tensors={"x": x, "y": x.clone()})
    loaded.run(extents={"N": 300})
    expected = torch.where(torch.arange(1000, device=anywhere) < 300, 2 * x, 0)
    assert torch.equal(loaded.tensors["z"], expected)


def test_parts_of_a_named_tensor_move_along(tmp_path: Path, anywhere: str) -> None:
    """Both halves of one tensor, as two ops see them."""
    both = torch.zeros(512, device=anywhere)
    x = torch.arange(256.0, device=anywhere)
    ops = small_ops.Scale.schedule(x=x, y=both[:256], factor=2.0)
    ops += small_ops.Scale.schedule(x=both[:256], y=both[256:], factor=10.0)
    kernel = Megakernel(ops)
    with pytest.raises(UnknownArgumentError, match=r"without a name of their own: .*`y` of op 0"):
        kernel.save(tmp_path / "halves.kernel")
    kernel.save(tmp_path / "halves.kernel", tensors={"both": both, "x": x})
    other = torch.zeros_like(both)
    Megakernel.load(tmp_path / "halves.kernel", tensors={"x": x, "both": other}).run()
    assert torch.equal(other, torch.cat([2 * x, 20 * x]))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x.double(), DtypeError, "float64"),
        (lambda x: x[:-1], ShapeMismatchError, "999"),
        (lambda x: torch.empty(2000, device=x.device)[::2], StrideError, "stride"),
        (lambda x: torch.empty(1001, device=x.device)[1:], AlignmentError, "aligned to 4"),
    ],
)
def test_tensors_of_another_layout_are_refused(
    file: Path, anywhere: str, change: Any, error: type, message: str
) -> None:
    x = torch.zeros(1000, device=anywhere)
    with pytest.raises(error, match=message):
        Megakernel.load(file, tensors={"x": x, "z": change(x)})


def test_tensors_that_share_memory_are_refused(file: Path, anywhere: str) -> None:
    both = torch.zeros(1000, device=anywhere)
    Megakernel.load(file, tensors={"x": both, "z": both}).run()  # both are only read
    with pytest.raises(OverlapError, match="shares memory"):
        Megakernel.load(file, tensors={"x": both, "y": both})


def test_names_that_the_kernel_does_not_have(file: Path) -> None:
    with pytest.raises(UnknownArgumentError, match="no tensor 'zz'"):
        Megakernel.load(file, tensors={"zz": torch.zeros(1000)})
    kernel, _ = chain()
    with pytest.raises(UnknownArgumentError, match="'x' is no tensor of this kernel"):
        kernel.save(file, tensors={"x": torch.zeros(1000)})


@pytest.mark.parametrize("name", [5, "a b", "sync", "replace", ""])
def test_a_name_is_a_keyword_of_run(op_classes: SimpleNamespace, tmp_path: Path, name: Any) -> None:
    x = torch.ones(100)
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=torch.zeros(100)))
    with pytest.raises(UnknownArgumentError, match="cannot be the name of a tensor"):
        kernel.save(tmp_path / "kernel", tensors={name: x})
    assert not (tmp_path / "kernel").exists()


@pytest.mark.parametrize("part", [slice(0, 100), slice(0, 50)])
def test_one_name_for_memory(op_classes: SimpleNamespace, tmp_path: Path, part: slice) -> None:
    x = torch.ones(100)
    kernel = Megakernel(op_classes.Scale.schedule(x=x, y=torch.zeros(100)))
    with pytest.raises(UnknownArgumentError, match="'p' and 'q' share memory"):
        kernel.save(tmp_path / "kernel", tensors={"p": x, "q": x[part]})


def test_a_loaded_kernel_is_not_saved(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SavedKernelError, match="copy the file"):
        Megakernel.load(file).save(tmp_path / "again")


def test_what_is_no_tensor_is_refused(file: Path) -> None:
    with pytest.raises(TensorTypeError, match="'x' is a ndarray"):
        Megakernel.load(file, tensors={"x": np.zeros(1000, np.float32)})  # type: ignore[dict-item]


@pytest.mark.parametrize("device", ["meta", "cuda:99", "cuda", "no such device"])
def test_devices_that_are_not_there_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "cuda":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=device):
        Megakernel.load(file, device=device)


def test_a_tensor_without_memory_is_refused(file: Path) -> None:
    with pytest.raises(DeviceError, match="cannot run on meta"):
        Megakernel.load(file, tensors={"x": torch.zeros(1000, device="meta")})


def test_the_first_card_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [(12, 0), (9, 0), (9, 0)]
    there = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=0: cards[device])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: there)
    plan: Any = SimpleNamespace(target=SimpleNamespace(compute_capability=(9, 0)), num_sms=4)
    assert saved.device_for(plan, {}, None) == torch.device("cuda", 1)


@pytest.mark.parametrize(
    "name", ["saved.py", "artefact.py", "temporaries.py", "tensormap.py", "serial.py", "queues.py"]
)
def test_a_file_is_refused_once_the_modules_that_read_it_differ(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = saved.protocol()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"# edited" if path.name == name else b""))
    assert saved.protocol.__wrapped__() != now


def test_a_file_has_the_permissions_of_others(file: Path) -> None:
    new = file.with_name("new")
    new.touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(new.stat().st_mode)
    kernel, tensors = chain()
    file.chmod(0o640)
    kernel.save(file, tensors=tensors)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("length", [0, 100, 5000, -1])
def test_a_damaged_file_is_refused(file: Path, length: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:length])
    with pytest.raises(SavedKernelError, match="cannot be loaded"):
        Megakernel.load(file)


def test_the_file_of_another_runtime_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "protocol", lambda: "of another runtime")
    with pytest.raises(SavedKernelError, match="save the kernel again with this version"):
        Megakernel.load(file)


def test_an_entry_of_the_cache_is_no_saved_kernel(file: Path) -> None:
    from machete.megakernel.launch.container import pack, unpack

    header, sections = unpack(file.read_bytes())
    del header["protocol"]
    file.write_bytes(pack(header, sections))
    with pytest.raises(SavedKernelError, match="it is no saved kernel"):
        Megakernel.load(file)


def test_a_card_of_another_architecture_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, anywhere: str) -> None:
    there = SimpleNamespace(major=12, minor=0, multi_processor_count=170)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: there)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(TargetError, match=r"for sm_90a; cuda:0 has compute capability 12\.0"):
        Megakernel.load(file, device="cuda")


def test_a_full_disk_leaves_the_old_file(file: Path, full_disk: Callable[[], AbstractContextManager[None]]) -> None:
    kernel, tensors = chain()
    kernel.compile()
    before = file.read_bytes()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        kernel.save(file, tensors=tensors)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


#: Runs the file, and says what that imported.
PROGRAM = """
import sys
import torch
from machete.megakernel import Megakernel
kernel = Megakernel.load(sys.argv[1])
x = torch.arange(1000.0, device=kernel.device)
z = torch.ones_like(x)
kernel.run(x=x, z=z)
assert torch.equal(kernel.tensors["y"], 3 * (2 * x + z))
print(sorted({"cutlass", "small_ops", "machete.megakernel.device.kernel"} & set(sys.modules)))
"""


def test_a_process_without_the_dsl_runs_it(file: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert result.stdout == "[]\n"
