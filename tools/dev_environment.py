"""Prepare the one environment that every session of noxfile.py runs in, and print its interpreter.

    python tools/dev_environment.py

The environment lies in `.nox/env`: a virtual environment with the development requirements, torch and every
package of the repository, editable. A second call finds it ready; a changed requirement, a changed
`pyproject.toml` or changed native source renews only that part. Uses the standard library alone, because it
runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".nox" / "env"
PYTHON = ENVIRONMENT / "bin" / "python"
DEV_REQUIREMENTS = REPOSITORY / "requirements" / "dev.txt"
CPU_TORCH = REPOSITORY / "requirements" / "torch-cpu.txt"
PROGRAMS = REPOSITORY / "requirements" / "programs.txt"
CPU_PROGRAMS = REPOSITORY / "requirements" / "programs-cpu.txt"
NATIVE_SOURCES = ("CMakeLists.txt", "*.cmake", "*.cpp", "*.hpp", "*.h", "*.inc")


def packages() -> list[Path]:
    """The folders of the distributions that hold modules, by name. The meta package holds none."""
    found = sorted(path.parent for path in (REPOSITORY / "packages").glob("*/pyproject.toml"))
    return [package for package in found if (package / "src").is_dir()]


def host_cuda_torch() -> str | None:
    """Version of the torch that this interpreter already has, if that torch sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    probe = "import torch; print(torch.__version__ if torch.cuda.is_available() else '')"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def digest(*parts: str | Path) -> str:
    """One hash of some words and of the contents of some files."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        total.update(b"\0")
    return total.hexdigest()


def native_sources(package: Path) -> list[Path]:
    """The files from which a package's native core is built; none for a package of Python alone."""
    if not (package / "CMakeLists.txt").exists():
        return []
    return sorted(path for pattern in NATIVE_SOURCES for path in source_files(package, pattern))


def source_files(package: Path, pattern: str) -> Iterator[Path]:
    return (path for path in package.rglob(pattern) if "build" not in path.relative_to(package).parts)


def package_digest(package: Path) -> str:
    """Changes when an editable installation of the package has to be made again."""
    native = native_sources(package)
    # scikit-build-core's editable finder lists the modules that it knows, so a new one counts too.
    modules = [str(path) for path in sorted((package / "src").rglob("*.py"))] if native else []
    return digest(package / "pyproject.toml", *native, *modules)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process prepares at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Stamps:
    """What was installed when, as one small file a step: a step whose digest is unchanged is skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fresh(self, step: str, value: str) -> bool:
        path = self.folder / step
        return path.exists() and path.read_text() == value

    def record(self, step: str, value: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / step).write_text(value)


def say(text: str) -> None:
    print(f"environment: {text}", file=sys.stderr, flush=True)


def pip_install(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


def make_environment(host_torch: str | None) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    if host_torch is None:
        return
    # Made from within a virtual environment, --system-site-packages would show the base interpreter only. So
    # the folders in which this interpreter finds its packages follow those of the new environment.
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    line = "import site; " + "; ".join(f"site.addsitedir({path!r})" for path in folders)
    [purelib] = ENVIRONMENT.glob("lib/python*/site-packages")
    (purelib / "zz-host-packages.pth").write_text(line + "\n")


def torch_constraint(host_torch: str | None) -> Path:
    if host_torch is None:
        return CPU_TORCH
    constraint = ENVIRONMENT / "host-torch.txt"
    constraint.write_text(f"torch=={host_torch}\n")
    return constraint


def dependencies(package_folders: Iterable[Path]) -> list[str]:
    """Each package's declared dependencies and build requirements on other people's distributions."""
    found: set[str] = set()
    for package in package_folders:
        metadata = tomllib.loads((package / "pyproject.toml").read_text())
        found.update(metadata["build-system"]["requires"])
        found.update(metadata["project"].get("dependencies", []))
    return sorted(requirement for requirement in found if not requirement.startswith("machete"))


def prepare() -> Path:
    """Make the environment, or what is stale of it; returns its interpreter."""
    with locked(REPOSITORY / ".nox" / "env.lock"):
        host_torch = host_cuda_torch()
        stamps = Stamps(ENVIRONMENT / "stamps")

        interpreter = digest(sys.version, sys.base_prefix, str(ENVIRONMENT), host_torch or "")
        if not stamps.fresh("interpreter", interpreter):
            say(f"making {ENVIRONMENT.relative_to(REPOSITORY)} with Python {sys.version.split()[0]}")
            make_environment(host_torch)
            stamps.record("interpreter", interpreter)

        constraint = torch_constraint(host_torch)
        members = packages()
        required = dependencies(members)
        third_party = digest(DEV_REQUIREMENTS, constraint, *required)
        if not stamps.fresh("third-party", third_party):
            say(f"installing requirements (torch: {host_torch or 'CPU build'})")
            pip_install("-r", str(DEV_REQUIREMENTS), "-c", str(constraint), "torch", *required)
            stamps.record("third-party", third_party)

        programs = [PROGRAMS] if host_torch else [PROGRAMS, CPU_PROGRAMS]
        if not stamps.fresh("programs", digest(*programs)):
            say("installing the packages that are run on the simulator")
            pip_install("--no-deps", *(argument for path in programs for argument in ("-r", str(path))))
            stamps.record("programs", digest(*programs))

        for package in members:
            current = package_digest(package)
            if not stamps.fresh(package.name, current):
                built = " (compiling its native core)" if native_sources(package) else ""
                say(f"installing {package.name}{built}")
                # Its dependencies are there: other people's from above, and the repository's own are never
                # looked up on an index, where the same names may belong to someone else.
                pip_install("--no-deps", "--no-build-isolation", "--editable", str(package))
                stamps.record(package.name, current)
    return PYTHON


if __name__ == "__main__":
    print(prepare())
