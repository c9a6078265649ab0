"""Build an sdist and a wheel of every package of the repository.

    python tools/distributions.py dist

A package whose files have not changed since it was last built is not built again: what was built lies in
`.nox/dist`, in a folder named by a digest of the package's files.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from rich.console import Console
from rich.table import Table

from dev_environment import REPOSITORY, digest, locked

CACHE = REPOSITORY / ".nox" / "dist"
LEFT_BY_TOOLS = {"__pycache__", "build", "dist", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}


@dataclass(frozen=True)
class Built:
    """What one package was built to."""

    package: Path
    sdist: Path
    wheel: Path

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def versions(self) -> dict[Path, str]:
        """The version that each file's name carries."""
        return {
            self.sdist: str(parse_sdist_filename(self.sdist.name)[1]),
            self.wheel: str(parse_wheel_filename(self.wheel.name)[1]),
        }

    def metadata(self) -> importlib.metadata.Distribution:
        """The wheel's metadata, as if it were installed."""
        with zipfile.ZipFile(self.wheel) as archive:
            [folder] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        return importlib.metadata.PathDistribution(zipfile.Path(self.wheel, f"{folder}/"))


def package_folders() -> list[Path]:
    """The folder of every distribution, the meta package's too."""
    return sorted(path.parent for path in (REPOSITORY / "packages").glob("*/pyproject.toml"))


def contents(package: Path) -> list[Path]:
    found = (path for path in sorted(package.rglob("*")) if path.is_file())
    return [path for path in found if not LEFT_BY_TOOLS & set(path.relative_to(package).parts)]


def build(package: Path, through_sdist: bool) -> Built:
    """Build one package, or find what was built from the same files in the same way.

    Through the sdist is how a release is built: it proves that the sdist holds what the wheel needs. From the
    source tree, a native core is not compiled again: the build shares its folder with the editable installation.
    """
    files = contents(package)
    names = [str(path.relative_to(package)) for path in files]
    kind = f"{package.name}-{'sdist' if through_sdist else 'tree'}"
    folder = CACHE / f"{kind}-{digest(sys.version, *names, *files)[:16]}"
    with locked(CACHE / f"{package.name}.lock"):
        if not folder.exists():
            for stale in CACHE.glob(f"{kind}-*"):
                shutil.rmtree(stale)
            unfinished = CACHE / f"{package.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            options = ["--no-isolation", "--outdir", str(unfinished)]
            options += [] if through_sdist else ["--sdist", "--wheel"]
            command = [sys.executable, "-m", "build", *options, str(package)]
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if result.returncode != 0:
                raise RuntimeError(f"{package.name} does not build:\n{result.stdout}")
            unfinished.rename(folder)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(package, sdist, wheel)


def build_all(folder: Path, through_sdist: bool = True) -> dict[str, Built]:
    """Build every package and put its files, and no others of ours, into `folder`; by distribution name."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("machete*"):
        stale.unlink()
    found: dict[str, Built] = {}
    for package in package_folders():
        built = build(package, through_sdist)
        sdist, wheel = (Path(shutil.copy2(path, folder)) for path in (built.sdist, built.wheel))
        found[package.name] = Built(package, sdist, wheel)
    return found


def main(folder: Annotated[Path, typer.Argument(help="Where sdists and wheels go.")]) -> None:
    """Build an sdist and a wheel of every package."""
    table = Table("distribution", "file", "KiB")
    for name, built in build_all(folder).items():
        for path in (built.sdist, built.wheel):
            table.add_row(name, path.name, f"{path.stat().st_size / 1024:.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
