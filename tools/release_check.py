"""What has to hold before a package is released.

    python tools/release_check.py dist --tag machete-runtime-v0.1.0

Checks every distribution in a folder that tools/distributions.py filled: versions and tags agree, wheels
hold nothing outside `machete/` and their metadata, namespaces stay namespaces, packages are typed, our own
distributions require each other by range, changes are in the changelog, and each wheel works where only what
it declares is installed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console

from clean_environment import CleanEnvironment, UndeclaredError, closure
from dev_environment import REPOSITORY
from distributions import Built, package_folders
from namespaces import problems

TAG = re.compile(r"(?P<name>machete(?:-[a-z][a-z0-9-]*?)?)-v(?P<version>\d+\.\d+\.\d+\S*)")

# Imports every module of the named packages, but for those of a pytest plugin, which only pytest imports, and for those
# that need what only an extra of ours brings.
IMPORT_ALL = """
import importlib, importlib.metadata, pkgutil, re, sys
plugins = tuple(point.value + "." for point in importlib.metadata.entry_points(group="pytest11"))
modules = {"cuda-bindings": "cuda", "nvidia-cutlass-dsl": "cutlass"}
ours = [found for found in importlib.metadata.distributions() if found.name.startswith("machete")]
extras = [one for found in ours for one in found.requires or () if "extra ==" in one]
optional = {modules.get(name, name) for name in (re.match(r"[\\w.-]+", one)[0] for one in extras)}
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(".__main__") and not f"{module.name}.".startswith(plugins):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:
                if missing.name.partition(".")[0] not in optional:
                    raise
"""


def declared_version(package: Path) -> str:
    return str(tomllib.loads((package / "pyproject.toml").read_text())["project"]["version"])


def check_versions(built: Built) -> list[str]:
    declared = declared_version(built.package)
    return [
        f"{path.name}: pyproject.toml says {declared}"
        for path, version in built.versions.items()
        if version != declared
    ]


def check_tag(tag: str, packages: Iterable[Path]) -> list[str]:
    """A tag names a distribution and the version that its pyproject.toml declares."""
    match = TAG.fullmatch(tag)
    if match is None:
        return [f"tag {tag}: is not of the form machete-<name>-vX.Y.Z"]
    folders = {package.name: package for package in packages}
    if match["name"] not in folders:
        return [f"tag {tag}: there is no distribution {match['name']}"]
    package = folders[match["name"]]
    found = []
    if declared_version(package) != match["version"]:
        found.append(f"tag {tag}: pyproject.toml says {declared_version(package)}")
    if f" {match['version']} " not in (package / "CHANGELOG.md").read_text():
        found.append(f"tag {tag}: CHANGELOG.md has no section for {match['version']}; run towncrier")
    return found


def check_contents(wheel: Path) -> list[str]:
    """A wheel holds `machete/` and its metadata, and no file in a namespace."""
    with zipfile.ZipFile(wheel) as archive:
        files = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
    found = [
        f"{path}: lies outside machete/ and the metadata"
        for path in files
        if path.parts[0] != "machete" and not path.parts[0].endswith(".dist-info")
    ]
    return [f"{wheel.name}: {problem}" for problem in found + problems(files)]


def check_ranges(built: Built) -> list[str]:
    """Our own distributions are required by range, with a ceiling, never by one version."""
    found = []
    for text in built.metadata().requires or ():
        requirement = Requirement(text)
        if canonicalize_name(requirement.name).startswith("machete"):
            operators = {specifier.operator for specifier in requirement.specifier}
            if "==" in operators or "===" in operators or not operators & {"<", "<="}:
                found.append(f"{built.name}: requires {text!r}; give a floor and a ceiling")
    return found


def check_licence(built: Built) -> list[str]:
    same = (built.package / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    return [] if same else [f"{built.name}: LICENSE differs from the repository's"]


def check_changelog(package: Path) -> list[str]:
    """What is about to be released is described: in fragments, or already in the changelog."""
    changelog = package / "CHANGELOG.md"
    if not changelog.exists():
        return [f"{package.name}: has no CHANGELOG.md"]
    written = f" {declared_version(package)} " in changelog.read_text()
    fragments = list((package / "changelog.d").glob("*.*.md"))
    if not written and not fragments:
        return [f"{package.name}: neither CHANGELOG.md nor changelog.d/ describes {declared_version(package)}"]
    return []


def leaves(wheel: Path) -> list[str]:
    """The packages that a wheel brings, by import name."""
    with zipfile.ZipFile(wheel) as archive:
        typed = [PurePosixPath(name) for name in archive.namelist() if name.endswith("/py.typed")]
    return sorted(".".join(path.parent.parts) for path in typed)


def check_alone(built: Built, local: Mapping[str, Built]) -> list[str]:
    """The wheel installs, and all its modules import, where only its declared dependencies are."""
    with tempfile.TemporaryDirectory(prefix="machete-clean-") as folder:
        try:
            environment = CleanEnvironment(Path(folder) / "env", closure([built.name], local))
            environment.install(str(built.wheel), find_links=built.wheel.parent)
            environment.run("-c", IMPORT_ALL, *leaves(built.wheel))
        except UndeclaredError as error:
            return [f"{built.wheel.name}: {error}"]
    return []


def tags_here() -> list[str]:
    """The release tags of the commit that is checked out."""
    command = ["git", "-C", str(REPOSITORY), "tag", "--points-at", "HEAD"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return [tag for tag in result.stdout.split() if tag.startswith("machete")]


def found_in(folder: Path) -> dict[str, Built]:
    """The distributions in a folder of sdists and wheels, by name."""
    found = {}
    for package in package_folders():
        stem = f"{package.name.replace('-', '_')}-[0-9]*"
        sdists, wheels = list(folder.glob(f"{stem}.tar.gz")), list(folder.glob(f"{stem}.whl"))
        if len(sdists) != 1 or len(wheels) != 1:
            raise typer.BadParameter(f"{folder} holds {len(sdists)} sdists, {len(wheels)} wheels of {package.name}")
        found[package.name] = Built(package, sdists[0], wheels[0])
    return found


def main(
    folder: Annotated[Path, typer.Argument(help="Holds an sdist and a wheel of every package.", exists=True)],
    tag: Annotated[list[str] | None, typer.Option(help="A tag about to be pushed; default: those at HEAD.")] = None,
) -> None:
    """Check every distribution in FOLDER; exit with 1 where something does not hold."""
    local = found_in(folder.resolve())
    console = Console()
    failed = False
    for name in tag or tags_here():
        failed |= report(console, f"tag {name}", check_tag(name, package_folders()))
    for built in local.values():
        found = [*check_versions(built), *check_contents(built.wheel), *check_ranges(built)]
        found += [*check_licence(built), *check_changelog(built.package), *check_alone(built, local)]
        failed |= report(console, built.name, found)
    raise typer.Exit(1 if failed else 0)


def report(console: Console, subject: str, found: list[str]) -> bool:
    """Print what was found about one subject; True if anything was."""
    console.print(f"{'[red]fails[/]' if found else '[green]holds[/]'}  {subject}", highlight=False)
    for problem in found:
        console.print(f"       {problem}", highlight=False, markup=False, soft_wrap=True)
    return bool(found)


if __name__ == "__main__":
    typer.run(main)
