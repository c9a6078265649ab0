"""The files of the cache, and whatever can go wrong with files.

    <folder>/1/entries/ab/abcd….json    for each identity: what it was traced from, and the object that came out
    <folder>/1/objects/12/1234….kernel  code, named by the SHA-256 of the file
    <folder>/1/locks/abcd….lock         held by the process that compiles it

Files are written beside their place and moved there, so that others see all of a file or nothing. Nothing that goes
wrong here stops a kernel: what cannot be read is compiled again, what cannot be written is not kept; both are logged.
This module imports neither torch nor the DSL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machete.megakernel import settings

from ..container import DamagedError

logger = logging.getLogger("machete.megakernel")

FORMAT = "1"
#: A process that was killed while it wrote leaves its temporary file; later ones that are this old are such.
ABANDONED_SECONDS = 3600.0
#: As long as another process may take to compile what we want, before we compile it ourselves.
LOCK_SECONDS = 300.0
#: Compilations of one identity that are kept: for sources that were edited back and forth.
MAX_VARIANTS = 8


@dataclass(frozen=True)
class Variant:
    """One compilation of an identity.

    Attributes:
        files, values: what it was traced from (`traced.Dependencies`).
        object: SHA-256 of the file that holds the code.
        created: when, in seconds since 1970.
        compile_seconds: how long it took.
    """

    files: dict[str, str]
    values: dict[str, dict[str, str]]
    object: str
    created: float
    compile_seconds: float


@dataclass(frozen=True)
class Entry:
    """What is known of one identity: its facts, and its compilations, newest first."""

    facts: dict[str, Any]
    variants: tuple[Variant, ...]


class Store:
    """The cache in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root = folder / FORMAT

    def entry_path(self, identity: str) -> Path:
        """Where the entry of an identity (its hash) is."""
        return self._root / "entries" / identity[:2] / f"{identity}.json"

    def object_path(self, digest: str) -> Path:
        """Where the object with this hash is."""
        return self._root / "objects" / digest[:2] / f"{digest}.kernel"

    def entries(self) -> Iterator[Path]:
        """All entry files."""
        return iter(sorted((self._root / "entries").glob("??/*.json")))

    def objects(self) -> Iterator[Path]:
        """All object files."""
        return iter(sorted((self._root / "objects").glob("??/*.kernel")))

    @contextmanager
    def compiling(self, identity: str) -> Iterator[None]:
        """Held while a kernel is compiled: another process that wants the same one waits, and finds it then.

        The operating system releases the lock of a process that dies.
        """
        from filelock import FileLock, Timeout

        path = self._root / "locks" / f"{identity}.lock"
        lock = FileLock(path, timeout=LOCK_SECONDS)
        held = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            held = True
        except Timeout:
            logger.warning(
                "kernel cache: another process has held %s for %.0f s; compiling as well", path, LOCK_SECONDS
            )
        except (OSError, NotImplementedError) as error:  # not writable, full, or a file system without locks
            logger.info("kernel cache: no lock in %s: %s", path.parent, error)
        try:
            yield
        finally:
            if held:
                lock.release()

    # ------------------------------------------------------------------ reading

    def read_entry(self, path: Path) -> Entry:
        """An entry file. Raises FileNotFoundError or other OSErrors, or `DamagedError`."""
        try:
            sealed = json.loads(path.read_bytes())
            body = sealed["body"]
            if sealed["sha256"] != _digest(body):
                raise DamagedError("its content and its hash do not agree")
            entry = Entry(body["facts"], tuple(Variant(**variant) for variant in body["variants"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is no entry ({type(error).__name__})") from error
        if _digest(entry.facts) != path.stem:
            raise DamagedError("it is the entry of another kernel")
        return entry

    def read_object(self, digest: str) -> bytes:
        """An object's bytes, whose hash is right. Raises OSErrors, or `DamagedError`."""
        path = self.object_path(digest)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedError(f"its content is not that of its name ({len(data)} bytes)")
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: what was not used for longest is removed first
        return data

    # ------------------------------------------------------------------ writing

    def write(self, identity: str, facts: dict[str, Any], variant: Variant, data: bytes) -> None:
        """Keep a compilation. Raises OSErrors, and leaves then what was there before."""
        replace_file(self.object_path(variant.object), data)
        path = self.entry_path(identity)
        before: tuple[Variant, ...] = ()
        with contextlib.suppress(OSError, DamagedError):
            before = self.read_entry(path).variants
        same = (variant.files, variant.values)
        kept = [variant, *(old for old in before if (old.files, old.values) != same)][:MAX_VARIANTS]
        body = {"facts": facts, "variants": [vars(one) for one in kept]}
        replace_file(path, json.dumps({"body": body, "sha256": _digest(body)}).encode())

    def shrink(self, nbytes: int) -> int:
        """Remove objects until at most `nbytes` are left, longest unused first; returns how many."""
        now = time.time()
        for path in self._root.glob("*/??/.*.tmp"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()
        sizes: list[tuple[float, int, Path]] = []
        for path in self.objects():
            with contextlib.suppress(OSError):  # another process removes as well
                status = path.stat()
                sizes.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in sizes)
        removed = 0
        for _, size, path in sorted(sizes):
            if total <= nbytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
        for path in self.entries() if removed else ():
            with contextlib.suppress(OSError, DamagedError):
                if not any(self.object_path(one.object).exists() for one in self.read_entry(path).variants):
                    path.unlink()
        return removed

    def clear(self) -> None:
        """Remove everything that this format keeps in the folder. Raises OSErrors."""
        if self._root.exists():
            shutil.rmtree(self._root)


def default_folder() -> Path:
    """Where the cache is: `MACHETE_CACHE_DIR`, or the user's cache folder."""
    chosen = settings.CACHE_DIR.get()
    if chosen is not None:
        return chosen
    from platformdirs import user_cache_path

    return user_cache_path("machete", appauthor=False) / "kernels"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file so that others see all of it, or what was there before; also after a crash of the machine.

    It has the permissions of the file that was there, else `mode` less the umask: for its owner alone, as the cache is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{secrets.token_hex(8)}.tmp"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
