"""The op packages that are installed: which fit this runtime, and why the others do not.

A distribution announces its ops in the entry-point group `machete.ops.v1`, and declares the Op ABI that it needs
by its requirement on the runtime, whose version is that of the ABI::

    dependencies = ["machete-runtime>=0.1,<0.2"]        # needs Op ABI 0.1

    [project.entry-points."machete.ops.v1"]
    scale = "my_ops.scale:ScaleOp"

So whether a package fits is decided from its metadata; nothing of it is imported until `load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from machete.megakernel.abi.errors import (
    AbiMismatchError,
    MacheteError,
    OpLoadError,
    OpNotFoundError,
    closest,
    listing,
)
from machete.megakernel.abi.version import ABI, check
from machete.megakernel.discovery import Announcement, announced, first_line

if TYPE_CHECKING:
    from machete.megakernel.abi.op import Op

GROUP = "machete.ops.v1"
RUNTIME = "machete-runtime"


@dataclass(frozen=True)
class InstalledOp:
    """One op that an installed distribution announces.

    Attributes:
        name: what it is announced as.
        source: "module:class".
        distribution, version: who announces it.
        abi: the Op ABI that it needs; None if the distribution does not say.
        refusal: why it cannot be used; None if it can, as far as is known before it is loaded.
        op: the class, once loaded.
    """

    name: str
    source: str
    distribution: str
    version: str
    abi: tuple[int, int] | None = None
    refusal: MacheteError | None = None
    op: type[Op] | None = None

    @property
    def status(self) -> str:
        """ "available" or "rejected"."""
        return "rejected" if self.refusal else "available"

    @property
    def reason(self) -> str:
        """Why it is rejected, in one line; empty if it is not."""
        return self.refusal.what if self.refusal else ""


def installed_ops(*, load: bool = False) -> list[InstalledOp]:
    """Every announced op, by name. Raises nothing: what is wrong with a package is its row's `refusal`.

    Arguments:
        load: import each op that its metadata does not rule out, and check the class too.
    """
    announcements, unreadable = announced(GROUP)
    rows = _without_duplicates([_judged(announcement) for announcement in announcements])
    if load:
        rows = list(map(_loaded, rows, announcements))
    for broken in unreadable:
        refusal = OpLoadError(
            what=f"the metadata of {broken.distribution} cannot be read: {broken.reason}",
            where=broken.distribution,
            why=f"ops are found by the entry points of group {GROUP!r}",
            fix="install the distribution again",
        )
        rows.append(InstalledOp("?", "?", broken.distribution, "?", refusal=refusal))
    return rows


def load(name: str) -> type[Op]:
    """The op that is announced as `name`; imports its package and no other.

    Raises:
        OpNotFoundError: nothing, or more than one distribution, announces it.
        AbiMismatchError: its package needs another ABI, or does not say which.
        OpLoadError: it cannot be imported, or is no op.
    """
    announcements, _ = announced(GROUP)
    same_name = [one for one in announcements if one.entry.name == name]
    if not same_name:
        known = sorted({one.entry.name for one in announcements})
        raise OpNotFoundError(
            what=f"no installed package announces an op {name!r}{closest(name, known)}",
            where=f"entry-point group {GROUP!r}",
            why=f"announced are: {listing(known)}",
            fix="install the package that has it; `machete ops` lists what is there",
        )
    rows = _without_duplicates([_judged(one) for one in same_name])
    refusals: list[MacheteError] = []
    for row in map(_loaded, rows, same_name):
        if row.op is not None:
            return row.op
        assert row.refusal is not None  # `_loaded` gives the one or the other
        refusals.append(row.refusal)
    # What is wrong with a package that fits tells more than that others do not fit.
    raise min(refusals, key=lambda refusal: isinstance(refusal, AbiMismatchError))


def needed_abi(requires: Sequence[str], extras: Sequence[str] = ()) -> tuple[tuple[int, int] | None, SpecifierSet]:
    """The lowest Op ABI that requirements on the runtime ask for (None: they do not say), and their range.

    ">=0.1,<0.2" needs ABI 0.1, and so does ">=0.1.3": a patch release of the runtime does not change the ABI.
    """
    allowed = SpecifierSet()
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # some other requirement than ours, which the installer accepted
        if canonicalize_name(requirement.name) == RUNTIME and _applies(requirement, extras):
            allowed &= requirement.specifier
    floors = [Version(one.version.removesuffix(".*")) for one in allowed if one.operator in (">=", ">", "~=", "==")]
    lowest = max(floors, default=None)
    return (lowest.major, lowest.minor) if lowest else None, allowed


def _applies(requirement: Requirement, extras: Sequence[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _judged(announcement: Announcement) -> InstalledOp:
    """What the metadata alone tells."""
    need, allowed = needed_abi(announcement.requires, announcement.extras)
    entry, package = announcement.entry, announcement.distribution
    row = InstalledOp(entry.name, entry.value, package, announcement.version, need)
    if need is None:
        refusal = AbiMismatchError(
            what=f"{package} does not declare the Op ABI that it needs",
            where=package,
            why=f"its requirements set no lower bound for {RUNTIME}",
            fix=f'dependencies = ["{RUNTIME}>={ABI[0]}.{ABI[1]},<…"]',
        )
        return replace(row, refusal=refusal)
    try:
        check(need, package)
        _check_range(allowed, package)
    except AbiMismatchError as error:
        return replace(row, refusal=error)
    return row


def _check_range(allowed: SpecifierSet, package: str) -> None:
    """The package's own upper bound, which may be narrower than what the ABI promises."""
    try:
        here = version(RUNTIME)
    except PackageNotFoundError:
        return  # imported from a source tree that is not installed
    if not allowed.contains(here, prereleases=True):
        raise AbiMismatchError(
            what=f"{package} asks for {RUNTIME}{allowed}; {here} is installed",
            where=package,
            why="the range that the package declares excludes this runtime",
            fix=f"pip install --upgrade {package}",
        )


def _without_duplicates(rows: Sequence[InstalledOp]) -> list[InstalledOp]:
    """Of several that fit and have one name none is preferred: `sys.path` must not decide what a program gets."""
    checked = []
    for row in rows:
        same_name = [one for one in rows if one.name == row.name and one.refusal is None]
        if row.refusal is None and len(same_name) > 1:
            owners = listing(f"{one.distribution} ({one.source})" for one in same_name)
            refusal = OpNotFoundError(
                what=f"the name {row.name!r} is announced more than once: {owners}",
                where=f"entry-point group {GROUP!r}",
                why="a name stands for one op",
                fix="uninstall one of the packages, or import the class from its module",
            )
            row = replace(row, refusal=refusal)
        checked.append(row)
    return checked


def _loaded(row: InstalledOp, announcement: Announcement) -> InstalledOp:
    """The row, unless refused already, after importing the op: with the class, or with what is wrong."""
    if row.refusal is not None:
        return row
    from machete.megakernel.abi.op import Op

    try:
        found = announcement.entry.load()
    except AbiMismatchError as error:  # the class itself declares a newer `abi` than its package does
        return replace(row, refusal=error)
    except (Exception, SystemExit) as error:
        refusal = OpLoadError(
            what=f"importing {row.source} failed: {first_line(error)}",
            where=row.distribution,
            why="the package is broken, or something that it needs is missing",
            fix=f"python -c 'import {announcement.entry.module}' shows the whole error",
        )
        refusal.__cause__ = error
        return replace(row, refusal=refusal)
    if not (isinstance(found, type) and issubclass(found, Op)):
        what = f"{row.source} is no Op subclass, but {found!r}"
    elif "declaration" not in vars(found):
        what = f"{row.source} is abstract"
    else:
        return replace(row, op=found)
    refusal = OpLoadError(
        what=what,
        where=row.distribution,
        why=f"the entry points of group {GROUP!r} are ops",
        fix="announce the class that `schedule` is called on",
    )
    return replace(row, refusal=refusal)
