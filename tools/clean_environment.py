"""A virtual environment that holds what chosen distributions declare, and nothing else.

Installing torch and the DSL anew for every check would take minutes and gigabytes. So other people's
distributions are not installed but linked from the prepared environment, and only those that the declared
requirements reach: what a package did not declare cannot be imported. Our own distributions are installed by
pip from local wheels, without an index, so pip itself judges whether the declared ranges are met.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from distributions import Built


class UndeclaredError(RuntimeError):
    """A requirement that the prepared environment cannot serve, or a command that failed in a clean one."""


@functools.cache
def installed() -> Mapping[str, importlib.metadata.Distribution]:
    """The distributions of the running interpreter; where two have one name, the first on the path counts."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        found.setdefault(canonicalize_name(distribution.name), distribution)
    return found


@functools.cache
def owners() -> Mapping[tuple[Path, str], frozenset[str]]:
    """For each entry of a site-packages folder, the distributions that have files in it."""
    found: dict[tuple[Path, str], set[str]] = defaultdict(set)
    for name, distribution in installed().items():
        for entry in entries(distribution):
            found[entry].add(name)
    return {entry: frozenset(names) for entry, names in found.items()}


def entries(distribution: importlib.metadata.Distribution) -> set[tuple[Path, str]]:
    """Where a distribution's files lie: (site-packages folder, first part of the path). Not scripts."""
    site = Path(str(distribution.locate_file("")))
    return {(site, file.parts[0]) for file in distribution.files or () if file.parts[0] != ".."}


def closure(requirements: Iterable[str], local: Mapping[str, Built]) -> set[str]:
    """Names of other people's distributions that requirements reach, through our own wheels (`local`) too.

    Markers are evaluated for the running interpreter. Raises UndeclaredError for one that is not installed.
    """
    reached: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name not in local and name not in installed():
            raise UndeclaredError(f"{requirement}: declared, but not in the prepared environment")
        distribution = local[name].metadata() if name in local else installed()[name]
        if name not in local:
            reached.add(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in distribution.requires or ():
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    pending.append(child)
    return reached


class CleanEnvironment:
    """A virtual environment in `folder` where, at first, exactly `third_party` (names) can be imported."""

    def __init__(self, folder: Path, third_party: Iterable[str]) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        [self.site] = folder.glob("lib/python*/site-packages")
        self._link(frozenset(third_party))

    def _link(self, names: frozenset[str]) -> None:
        for name in sorted(names):
            for site, entry in entries(installed()[name]):
                # pip writes into our own namespace, so that is never a link into the prepared environment.
                if owners()[site, entry] <= names and entry != "machete":
                    target = self.site / entry
                    if not target.is_symlink():
                        target.symlink_to(site / entry)
                else:
                    self._link_files(installed()[name], site, entry)

    def _link_files(self, distribution: importlib.metadata.Distribution, site: Path, entry: str) -> None:
        """One distribution's share of a folder that it has in common with one that was not declared."""
        for file in distribution.files or ():
            if file.parts[0] == entry:
                target = self.site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(site / file)

    def install(self, *arguments: str, find_links: Path) -> None:
        """Install with pip from `find_links` alone; a requirement neither there nor linked is an error."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "--disable-pip-version-check",
            "--python",
            str(self.python),
        ]
        self._run([*pip, "install", "--quiet", "--no-index", "--find-links", str(find_links), *arguments])

    def run(self, *arguments: str) -> str:
        """Run this environment's Python, isolated from the caller's variables; returns what it printed."""
        return self._run([str(self.python), "-I", *arguments])

    def script(self, name: str, *arguments: str) -> str:
        """Run a console script that a distribution installed; returns what it printed."""
        return self._run([str(self.folder / "bin" / name), *arguments])

    def _run(self, command: list[str]) -> str:
        variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if result.returncode != 0:
            raise UndeclaredError(f"{' '.join(command)} failed in {self.folder}:\n{result.stdout}")
        return result.stdout
