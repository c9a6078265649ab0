"""Keep `machete` and `machete.kernels` PEP 420 namespaces, and every package below them typed.

    python tools/namespaces.py

One `__init__.py` in a namespace makes the packages that other distributions put there unimportable. The
rules are written over relative paths, so that they hold for a source tree and for a wheel alike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dev_environment import REPOSITORY, packages

NAMESPACES = (PurePosixPath("machete"), PurePosixPath("machete/kernels"))


def leaf(path: PurePosixPath) -> PurePosixPath | None:
    """The package that a file under `machete/` belongs to, or None if it lies in a namespace itself.

    >>> leaf(PurePosixPath("machete/kernels/gemm/op.py"))
    PurePosixPath('machete/kernels/gemm')
    """
    if path.parent in NAMESPACES:
        return None
    depth = 3 if PurePosixPath(*path.parts[:2]) in NAMESPACES else 2
    return PurePosixPath(*path.parts[:depth])


def problems(paths: Iterable[PurePosixPath]) -> list[str]:
    """What is wrong with the files of one distribution, given relative to the folder with `machete/`."""
    files = {path for path in paths if path.parts[0] == "machete"}
    found = [
        f"{path}: a namespace holds no file of its own; this one hides what other distributions put there"
        for path in sorted(files)
        if leaf(path) is None
    ]
    leaves = {package for path in files if path.suffix == ".py" and (package := leaf(path)) is not None}
    for package in sorted(leaves):
        if package / "py.typed" not in files:
            found.append(f"{package}: has no py.typed")
    # A folder without __init__.py would be one more namespace, and import-linter does not enter it.
    folders = {path.parent for path in files if path.suffix == ".py" and leaf(path) is not None}
    found += [f"{path}: has no __init__.py" for path in sorted(folders) if path / "__init__.py" not in files]
    return found


def source_files(source: Path) -> list[PurePosixPath]:
    """The files of a source root, without what Python and builds leave there."""
    found = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    return [PurePosixPath(path) for path in found if "__pycache__" not in path.parts]


def main() -> int:
    found = []
    for package in packages():
        source = package / "src"
        prefix = source.relative_to(REPOSITORY)
        found += [f"{prefix}/{problem}" for problem in problems(source_files(source))]
    print("\n".join(found) or "namespaces: no file in a namespace, every package typed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
