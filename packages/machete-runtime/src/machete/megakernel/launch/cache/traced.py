"""What code was traced from: the files of every function that ran meanwhile, and the module values that those use.

While the DSL traces an op, its Python runs: every function of it, of its helpers, and of helpers of theirs is called.
So a profile function sees them all. To the files that they are in come the files that these import (transitively): a
constant may come from a module none of whose functions are called. Values of module globals are recorded as well, since
a program may have set them to something that no file says.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import logging
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .description import VERSIONED, UndescribableError, describe

logger = logging.getLogger("machete.megakernel")

_STANDARD_LIBRARY = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) + "/" for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)


_INCIDENTAL = frozenset({"logging", "warnings", "importlib._bootstrap", "importlib._bootstrap_external"})
#: They evaluate text that is in the files of the classes: annotations, and methods to be.
_EVALUATORS = frozenset({"typing", "annotationlib", "dataclasses", "collections"})
_COMPILER = "machete.megakernel.launch.compiler"  # nothing above it was called by what is traced


@dataclass(frozen=True)
class Dependencies:
    """What a kernel was traced from.

    Attributes:
        files: path to SHA-256 of the content.
        values: module to name to hash of the value's description, for globals that traced functions use.
    """

    files: dict[str, str]
    values: dict[str, dict[str, str]]

    def changed(self) -> str:
        """The first of them that is not the same now, in words; "" if all are."""
        for path, digest in self.files.items():
            now = file_digest(path)
            if now != digest:
                return f"{path} {'is gone' if now is None else 'has changed'}"
        for module, values in self.values.items():
            loaded = sys.modules.get(module)
            # Not loaded: its values will be what its file says, and that is the same.
            for name, digest in values.items() if loaded is not None else ():
                try:
                    same = _value_digest(vars(loaded).get(name)) == digest
                except UndescribableError:
                    same = False
                if not same:
                    return f"{module}.{name} has another value"
        return ""


class Recorder:
    """Sees which functions run; `dependencies()` says afterwards what they depend on.

    Attributes:
        complete: False if somebody else was profiling, code ran that has no file, or a value has no description: then
            nobody knows it all.
    """

    def __init__(self) -> None:
        self._seen: dict[types.CodeType, dict[str, Any]] = {}
        self.complete = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what this thread calls meanwhile."""
        if sys.getprofile() is not None:
            self.complete = False
            yield
            return
        seen = self._seen

        def record(frame: types.FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code not in seen and not _is_incidental(frame):
                seen[frame.f_code] = frame.f_globals

        # Collecting garbage runs code of anybody: finalizers, and what listens to the collector.
        collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(record)
        try:
            yield
        finally:
            sys.setprofile(None)
            if collecting:
                gc.enable()

    def dependencies(self) -> Dependencies | None:
        """Files and values; None if they are not all known."""
        files: set[str] = set()
        values: dict[str, dict[str, str]] = {}
        for code, namespace in self._seen.items():
            module = namespace.get("__name__", "")
            if not isinstance(module, str) or _is_versioned(module, code.co_filename):
                continue
            if code.co_filename.startswith("<"):
                if not _is_written_by_python(code, module):
                    logger.debug("kernel cache: %s of %s has no file", code.co_name, module)
                    self.complete = False
                continue
            files.add(code.co_filename)
            loaded = sys.modules.get(module)
            if loaded is not None:
                self._add_values(values, loaded, code)
        digests = {path: file_digest(path) for path in sorted(_with_imports(files))}
        known = {path: digest for path, digest in digests.items() if digest is not None}
        if not self.complete or len(known) < len(digests):
            return None
        return Dependencies(known, values)

    def _add_values(self, values: dict[str, dict[str, str]], module: types.ModuleType, code: types.CodeType) -> None:
        """Add the module's values that code may use by its names, and those of modules that it reaches by them."""
        package = getattr(module, "__package__", None) or ""
        # Modules that functions import themselves: `from . import near` names `near` alone.
        imported = [sys.modules.get(path) for name in code.co_names if name for path in (name, f"{package}.{name}")]
        pending = [module, *(one for one in imported if one is not None)]
        visited: set[str] = set()
        while pending:
            one = pending.pop()
            path = one.__name__
            if path in visited or _is_versioned(path, getattr(one, "__file__", None) or ""):
                continue
            visited.add(path)
            if sys.modules.get(path) is not one:  # nobody finds it again by its name
                self.complete = False
                continue
            found = values.setdefault(path, {})
            for name in code.co_names:
                if name not in vars(one):
                    continue
                value = vars(one)[name]
                if isinstance(value, types.ModuleType):
                    pending.append(value)
                    if value.__name__ == f"{path}.{name}":  # it is there once somebody has imported it
                        continue
                if name not in found:
                    try:
                        found[name] = _value_digest(value)
                    except UndescribableError as error:
                        logger.debug("kernel cache: %s.%s has no description: %s", path, name, error)
                        self.complete = False


def _is_written_by_python(code: types.CodeType, module: str) -> bool:
    """Whether code without a file is that of a dataclass or named tuple, whose class is in a file."""
    special = code.co_name.startswith("__") and code.co_name.endswith("__")
    return code.co_filename == "<string>" and (special or module.startswith("namedtuple_"))


def _is_incidental(frame: types.FrameType) -> bool:
    """Whether code runs because something was logged or imported (log handlers and finders of others), or annotated.

    What an imported module is made of is known from the import statement.
    """
    caller = frame.f_back
    is_text = frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "<module>"
    if is_text and caller is not None and caller.f_globals.get("__name__") in _EVALUATORS:
        return True
    while caller is not None:
        name = caller.f_globals.get("__name__")
        if name in _INCIDENTAL:
            return True
        if name == _COMPILER:
            return False
        caller = caller.f_back
    return False


def _is_versioned(module: str, filename: str) -> bool:
    return module.partition(".")[0] in VERSIONED or (
        filename.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in filename
    )


def _value_digest(value: Any) -> str:
    """Raises `UndescribableError`."""
    return hashlib.sha256(describe(value).encode()).hexdigest()[:16]


def file_digest(path: str) -> str | None:
    """SHA-256 of a file's content; None if it cannot be read. It is not reread while size and times stay."""
    try:
        status = Path(path).stat()
        return _digest_of(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _digest_of(path: str, *_: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _with_imports(files: Iterable[str]) -> set[str]:
    """The files, and those of all loaded modules that they import, but for what has a version."""
    modules = {
        path: name
        for name, module in list(sys.modules.items())
        if isinstance(path := getattr(module, "__file__", None), str)
    }
    found: set[str] = set()
    pending = list(files)
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        package = _package(modules.get(path))
        for name in _imports(path, file_digest(path), package):
            module = sys.modules.get(name)
            imported = getattr(module, "__file__", None)
            if isinstance(imported, str) and imported.endswith(".py") and not _is_versioned(name, imported):
                pending.append(imported)
    return found


def _package(module: str | None) -> str:
    """What relative imports of a module count from."""
    loaded = sys.modules.get(module) if module else None
    return getattr(loaded, "__package__", None) or ""


@functools.lru_cache(maxsize=4096)
def _imports(path: str, digest: str | None, package: str) -> tuple[str, ...]:
    """Names of modules that a file may import: "a.b" for `import a.b`, "a" and "a.b" for `from a import b`."""
    if digest is None:
        return ()
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            base = ".".join(part for part in (above if node.level else "", node.module or "") if part)
            names |= dict.fromkeys([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return tuple(names)
