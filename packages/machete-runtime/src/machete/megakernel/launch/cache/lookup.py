"""A kernel from the cache, or compiled and kept there."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable

from machete.megakernel import settings

from ..artefact import Artefact
from ..container import DamagedError, pack, unpack
from .description import UndescribableError
from .identity import Identity
from .store import Store, Variant, default_folder
from .traced import Dependencies, Recorder

logger = logging.getLogger("machete.megakernel")

#: Traces and compiles. A recorder sees what from; that takes as long as tracing itself, so not where nothing is kept.
Compile = Callable[[Recorder | None], Artefact]


def cached(identify: Callable[[], Identity], compile_now: Compile) -> Artefact:
    """The artefact of an identity: from disk if nothing that it was traced from has changed, else compiled.

    `identify` may raise `UndescribableError`: then it is compiled, and not kept. Raises `SettingError` before anything
    else if one of the cache's settings is malformed.
    """
    switched_on, nbytes = settings.CACHE.get(), settings.CACHE_BYTES.get()
    if not switched_on:
        return compile_now(None)
    store = Store(default_folder())
    try:
        identity = identify()
    except UndescribableError as error:
        logger.info("kernel cache: not kept: the ops hold what has no description (%s)", error)
        return compile_now(None)
    found = find(store, identity)
    if found is not None:
        return found
    with store.compiling(identity.digest):
        found = find(store, identity, logging.DEBUG)  # another process may have compiled it while this one waited
        if found is not None:
            return found
        recorder = Recorder()
        artefact = compile_now(recorder)
        dependencies = recorder.dependencies()
        if dependencies is None:
            logger.info(
                "kernel cache: not kept: it is not known which files and values all of its code was traced from"
            )
        else:
            keep(store, identity, artefact, dependencies, nbytes)
        return artefact


def find(store: Store, identity: Identity, level: int = logging.WARNING) -> Artefact | None:
    """What the store has for an identity, or None. Whatever is damaged is logged, at this level, and passed over."""
    path = store.entry_path(identity.digest)
    try:
        entry = store.read_entry(path)
    except FileNotFoundError:
        return None
    except (OSError, DamagedError) as error:
        logger.log(level, "kernel cache: %s cannot be used: %s; compiling again", path, _reason(error))
        return None
    for variant in entry.variants:
        changed = Dependencies(variant.files, variant.values).changed()
        if changed:
            logger.debug("kernel cache: %s: %s", path.name, changed)
            continue
        try:
            header, sections = unpack(store.read_object(variant.object))
            if header.pop("identity") != identity.digest:
                raise DamagedError("it is the code of another kernel")
            artefact = Artefact.read(header, sections, variant.compile_seconds)
        except FileNotFoundError:  # removed to make room
            continue
        except (OSError, DamagedError, KeyError, TypeError, ValueError) as error:
            damaged = store.object_path(variant.object)
            logger.log(level, "kernel cache: %s cannot be used: %s; compiling again", damaged, _reason(error))
            continue
        logger.info("found in the kernel cache: %s", store.object_path(variant.object))
        return artefact
    return None


def keep(store: Store, identity: Identity, artefact: Artefact, dependencies: Dependencies, nbytes: int) -> None:
    """Write a compilation to the store, which may have `nbytes`, if that is possible."""
    data = pack({**artefact.header(), "identity": identity.digest}, artefact.sections())
    digest = hashlib.sha256(data).hexdigest()
    variant = Variant(dependencies.files, dependencies.values, digest, time.time(), artefact.compile_seconds)
    try:
        store.write(identity.digest, identity.facts, variant, data)
        with contextlib.suppress(OSError):
            store.shrink(nbytes)
    except OSError as error:
        logger.warning("kernel cache: nothing is kept in %s: %s", store.folder, _reason(error))


def _reason(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
