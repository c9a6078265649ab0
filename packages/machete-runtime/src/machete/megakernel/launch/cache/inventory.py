"""What is in the cache, and whether it is sound: for `machete cache`. Imports neither torch nor the DSL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..container import DamagedError, unpack
from .store import Entry, Store, Variant


@dataclass(frozen=True)
class Kernel:
    """One compilation in the cache.

    Attributes:
        identity: hash of what was asked for.
        kinds: the ops in it, by class.
        target: the architecture.
        nbytes: size of its object.
        created, used: when it was compiled, and found last; seconds since 1970.
        compile_seconds: how long tracing and compiling took.
        files: how many files it was traced from.
    """

    identity: str
    kinds: tuple[str, ...]
    target: str
    nbytes: int
    created: float
    used: float
    compile_seconds: float
    files: int


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written, and why."""

    path: Path
    reason: str


def kernels(store: Store) -> Iterator[Kernel]:
    """Every compilation that is there: its entry can be read, and its object was not removed."""
    for path in store.entries():
        with contextlib.suppress(OSError, DamagedError):
            entry = store.read_entry(path)
            for variant in entry.variants:
                with contextlib.suppress(FileNotFoundError):
                    yield _kernel(store, path.stem, entry, variant)


def _kernel(store: Store, identity: str, entry: Entry, variant: Variant) -> Kernel:
    status = store.object_path(variant.object).stat()
    names = tuple(dict.fromkeys(name.rpartition(".")[2] for name, _ in entry.facts["kinds"]))
    return Kernel(
        identity,
        names,
        entry.facts["target"]["name"],
        status.st_size,
        variant.created,
        status.st_mtime,
        variant.compile_seconds,
        len(variant.files),
    )


def verify(store: Store) -> tuple[int, list[Damage]]:
    """Read every file. Returns the number of sound ones, and the others."""
    sound, damaged = 0, []
    for path in store.entries():
        try:
            store.read_entry(path)
            sound += 1
        except (OSError, DamagedError) as error:
            damaged.append(Damage(path, str(error)))
    for path in store.objects():
        try:
            unpack(store.read_object(path.stem))
            sound += 1
        except (OSError, DamagedError) as error:
            damaged.append(Damage(path, str(error)))
    return sound, damaged
