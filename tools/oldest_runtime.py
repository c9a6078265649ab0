"""Run each op package's tests against the oldest runtime that it allows.

A package declares a range of runtimes. That it works with the newest is what every test run shows; here it is
installed beside the oldest release in that range, which is built from its tag in git. Where no release is in the
range, nothing older than the present tree exists, and that is said.

    python tools/oldest_runtime.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from clean_environment import CleanEnvironment, UndeclaredError, closure
from dev_environment import REPOSITORY
from distributions import Built, build_all

RUNTIME = "machete-runtime"
#: What tests import beside the package and what it declares.
TEST_REQUIREMENTS = ("pytest", "pytest-timeout", "hypothesis", "ml_dtypes", "packaging")


@dataclass(frozen=True)
class Dependent:
    """A package with tests that depends on the runtime."""

    folder: Path
    name: str
    allowed: SpecifierSet

    def oldest(self, versions: Sequence[Version]) -> Version | None:
        """The oldest of these versions that the package allows."""
        return min(self.allowed.filter(versions), default=None)


def dependents(repository: Path) -> list[Dependent]:
    """Every package of the repository that asks for a range of runtimes and has tests."""
    found = []
    for project in sorted(repository.glob("packages/*/pyproject.toml")):
        table = tomllib.loads(project.read_text())["project"]
        for line in table.get("dependencies", []):
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) == RUNTIME and (project.parent / "tests").is_dir():
                found.append(Dependent(project.parent, table["name"], requirement.specifier))
    return found


def released(repository: Path) -> dict[Version, str]:
    """Versions of the runtime that have a tag, and the tags."""
    prefix = f"{RUNTIME}-v"
    tags = _git(repository, "tag", "--list", f"{prefix}*").splitlines()
    found = {}
    for tag in tags:
        try:
            found[Version(tag.removeprefix(prefix))] = tag
        except InvalidVersion:
            continue  # a tag that only looks like one of ours
    return found


def build_from_tag(repository: Path, tag: str, folder: Path) -> Built:
    """The runtime's sdist and wheel as of a tag, whatever the working tree holds."""
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", tag, f"packages/{RUNTIME}"], stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    source, built = folder / "packages" / RUNTIME, folder / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", str(built)]
    result = subprocess.run([*command, str(source)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{tag} does not build:\n{result.stdout}")
    [sdist], [wheel] = built.glob("*.tar.gz"), built.glob("*.whl")
    return Built(source, sdist, wheel)


def test_against(package: Dependent, runtime: Built, local: Mapping[str, Built], folder: Path) -> str:
    """Run a package's tests beside this runtime, in an environment of their own. Returns pytest's output.

    `local` are the wheels of the present tree. Raises `UndeclaredError` if the tests fail.
    """
    wheels = {**local, RUNTIME: runtime}
    wanted = [name for name in (package.name, RUNTIME, "machete-sim") if name in wheels]
    environment = CleanEnvironment(folder / "env", closure([*wanted, *TEST_REQUIREMENTS], wheels))
    files = [str(wheels[name].wheel) for name in wanted]
    environment.install(*files, find_links=local[package.name].wheel.parent)
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300"]
    return environment.run(*options, str(package.folder / "tests"))


def _git(repository: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(repository), *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def main(
    repository: Annotated[Path, typer.Option(help="The repository to look at.")] = REPOSITORY,
) -> None:
    """Test each package beside the oldest runtime that it allows. Exits with 1 if one fails."""
    failed = []
    versions = released(repository)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local: Mapping[str, Built] = {}
        for package in dependents(repository):
            oldest = package.oldest(list(versions))
            if oldest is None:
                known = ", ".join(map(str, sorted(versions))) or "none"
                typer.echo(
                    f"{package.name}: no released {RUNTIME} is in {package.allowed} (releases: {known}): "
                    "there is nothing older than this tree to test with"
                )
                continue
            local = local or build_all(folder / "wheels", through_sdist=False)
            typer.echo(f"{package.name}: {package.allowed} begins with {RUNTIME} {oldest} ({versions[oldest]})")
            place = folder / package.name
            place.mkdir()
            try:
                output = test_against(package, build_from_tag(repository, versions[oldest], place), local, place)
            except (UndeclaredError, RuntimeError) as error:
                failed.append(package.name)
                typer.echo(str(error))
                continue
            typer.echo(output.strip().splitlines()[-1])
    if failed:
        typer.echo(f"failed beside the oldest runtime that they allow: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
