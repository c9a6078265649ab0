"""The files of the cache: killed writers, locks of dead processes, and room."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from machete.megakernel.launch.cache.store import ABANDONED_SECONDS, Store, Variant, _digest
from machete.megakernel.launch.container import DamagedError, pack, unpack

FACTS = {"kinds": [["op", "digest"]], "target": {"name": "sm_90a"}}
IDENTITY = _digest(FACTS)

#: Writes a kernel of 8 MB under one identity, again and again, until it is killed.
WRITER = textwrap.dedent(
    """
    import hashlib, os, sys
    from pathlib import Path
    from machete.megakernel.launch.cache.store import Store, Variant, _digest
    from machete.megakernel.launch.container import pack
    facts = {"kinds": [["op", "digest"]], "target": {"name": "sm_90a"}}
    store = Store(Path(sys.argv[1]))
    print("started", flush=True)
    while True:
        data = pack({}, {"ptx": os.urandom(8 << 20)})
        digest = hashlib.sha256(data).hexdigest()
        store.write(_digest(facts), facts, Variant({digest: digest}, {}, digest, 0.0, 0.0), data)
    """
)

HOLDER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from machete.megakernel.launch.cache.store import Store
    with Store(Path(sys.argv[1])).compiling(sys.argv[2]):
        print("held", flush=True)
        time.sleep(600)
    """
)


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL


def write(store: Store, content: bytes, used: float | None = None) -> str:
    data = pack({}, {"ptx": content})
    digest = hashlib.sha256(data).hexdigest()
    store.write(IDENTITY, FACTS, Variant({digest: digest}, {}, digest, 0.0, 0.0), data)
    if used is not None:
        os.utime(store.object_path(digest), (used, used))
    return digest


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.11, 0.23])
def test_a_writer_that_is_killed_leaves_nothing_half(tmp_path: Path, delay: float) -> None:
    """Whenever it dies, what is there under its right name is whole."""
    store = Store(tmp_path)
    process = child(WRITER, str(tmp_path))
    time.sleep(delay)
    kill(process)
    for path in store.objects():
        unpack(store.read_object(path.stem))
    path = store.entry_path(IDENTITY)
    if path.exists():
        for variant in store.read_entry(path).variants:
            unpack(store.read_object(variant.object))
    digest = write(store, b"next")  # and whoever comes next can write
    assert store.read_entry(path).variants[0].object == digest


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    process = child(HOLDER, str(tmp_path), IDENTITY)
    kill(process)
    started = time.monotonic()
    with Store(tmp_path).compiling(IDENTITY):
        pass
    assert time.monotonic() - started < 60  # the time that it waits for a living one is 300 s


def test_longest_unused_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digests = [write(store, bytes([number]) * 1000, used=1000.0 + number) for number in range(5)]
    store.read_object(digests[0])  # used again
    sizes = [path.stat().st_size for path in store.objects()]
    assert store.shrink(2 * max(sizes)) == 3
    assert {path.stem for path in store.objects()} == {digests[0], digests[4]}


def test_files_of_killed_writers_are_removed_in_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = write(store, b"content")
    folder = store.object_path(digest).parent
    old, new = folder / ".old.tmp", folder / ".new.tmp"
    old.touch()
    new.touch()
    then = time.time() - 2 * ABANDONED_SECONDS
    os.utime(old, (then, then))
    store.shrink(1 << 30)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("length", [0, 10, 60, 200])
def test_a_container_that_is_cut_off(length: int) -> None:
    data = pack({"name": "kernel"}, {"ptx": b"a" * 100, "cubin": b"b" * 100})
    assert unpack(data) == ({"name": "kernel"}, {"ptx": b"a" * 100, "cubin": b"b" * 100})
    with pytest.raises(DamagedError):
        unpack(data[:length])


def test_every_byte_of_a_container_counts() -> None:
    data = pack({"name": "kernel"}, {"ptx": b"code", "cubin": b""})
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(DamagedError):
            unpack(bytes(damaged))
    with pytest.raises(DamagedError, match="follow its end"):
        unpack(data + b"\0")
