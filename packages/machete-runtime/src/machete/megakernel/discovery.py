"""What installed distributions announce in an entry-point group, read from their metadata and not imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Announcement:
    """One entry point of an installed distribution.

    Attributes:
        entry: its name, and how it is loaded.
        distribution: who announces it, by its normalized name.
        version: of the distribution.
        summary: what the distribution says of itself.
        requires: its requirements (`Requires-Dist`), those of its extras too.
        extras: the names of its extras.
    """

    entry: EntryPoint
    distribution: str
    version: str
    summary: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]


@dataclass(frozen=True)
class Unreadable:
    """A distribution that seems to announce something, but whose metadata is broken."""

    distribution: str
    reason: str


def announced(group: str) -> tuple[list[Announcement], list[Unreadable]]:
    """The entry points of a group, by name and distribution, and what could not be read.

    Of a distribution that is on `sys.path` twice, the first is meant: it is the one that is imported.
    """
    found: list[Announcement] = []
    unreadable: list[Unreadable] = []
    seen: set[str] = set()
    for distribution in distributions():
        try:
            # Nearly all distributions end here: parsing every entry point of an environment is slow.
            if group not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name = canonicalize_name(distribution.metadata["Name"])
            if name not in seen:
                seen.add(name)
                found += _announcements(distribution, name, group)
        except Exception as error:  # whatever is wrong with one distribution, the others are listed
            folder = getattr(distribution, "_path", "a distribution on sys.path")
            unreadable.append(Unreadable(getattr(folder, "name", str(folder)), first_line(error)))
    found.sort(key=lambda one: (one.entry.name, one.distribution))
    return found, unreadable


def _announcements(distribution: Distribution, name: str, group: str) -> Iterator[Announcement]:
    summary = (distribution.metadata.get_all("Summary") or [""])[0]
    extras = tuple(distribution.metadata.get_all("Provides-Extra") or ())
    requires = tuple(distribution.requires or ())
    for entry in distribution.entry_points.select(group=group):
        yield Announcement(entry, name, distribution.version, summary, requires, extras)


def installed_versions() -> dict[str, str]:
    """Every installed distribution, by its normalized name, and its version."""
    found: dict[str, str] = {}
    for distribution in distributions():
        with contextlib.suppress(Exception):  # a folder that an interrupted installation left has no name
            found.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution.version)
    return found


def first_line(error: BaseException) -> str:
    """The error as one line: its type, and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
