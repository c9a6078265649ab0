"""`machete doctor`: what is installed, what works, and what is wrong with it.

It is for machines on which something is broken, so this module imports the standard library and nothing else; `python
-m machete.megakernel.doctor` is the same. Every probe is guarded: one that fails is a line of the report. Packages are
imported in processes of their own, which may crash or hang.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OK, NOTE, WRONG = "ok", "note", "wrong"

#: Seconds that one package may take to be imported.
IMPORT_SECONDS = 120.0

#: Module to a program that imports it and prints something worth knowing.
IMPORTS = {
    "numpy": "import numpy; print(numpy.__version__)",
    "torch": (
        "import torch; print(torch.__version__, 'for CUDA', torch.version.cuda, "
        "'which sees', torch.cuda.device_count(), 'devices')"
    ),
    "cutlass": "import cutlass, cutlass.cute; print(getattr(cutlass, '__version__', 'imported'))",
    "cuda.bindings": "from cuda.bindings import driver; print('imported')",
    "machete.megakernel": "from machete.megakernel import ABI, Megakernel; print('Op ABI', '.'.join(map(str, ABI)))",
}

#: Entry-point group to what is missing if nobody announces anything in it; "" if that is fine.
GROUPS = {
    "machete.simulators": "kernels on CPU tensors do not run: pip install 'machete-runtime[sim]'",
    "machete.ops.v1": "there are no ops: pip install machete-ops-dense, or write your own",
    "machete.tracers": "",
    "machete.cli": "",
    "machete.settings": "",
}

#: Attributes of a device, as the CUDA driver numbers them.
_MULTIPROCESSORS, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76
_TARGETS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, whether it is "ok" or "wrong" or worth a "note", and a sentence."""

    section: str
    name: str
    status: str
    text: str


def examine() -> Iterator[Finding]:
    """All findings, section by section."""
    probes: dict[str, Callable[[], Iterable[Finding]]] = {
        "system": system,
        "packages": packages,
        "imports": imports,
        "GPU": gpu,
        "plugins": plugins,
        "settings": settings,
        "cache": cache,
    }
    for section, probe in probes.items():
        try:
            yield from probe()
        except Exception as error:  # whatever it is, the other sections are reported
            yield Finding(section, "probe", WRONG, _line(error))


# ---------------------------------------------------------------------- probes


def system() -> Iterator[Finding]:
    """Interpreter and machine."""
    supported = sys.version_info >= (3, 11)
    yield Finding("system", "Python", OK if supported else WRONG, f"{platform.python_version()} at {sys.executable}")
    linux = platform.system() == "Linux"
    yield Finding("system", "platform", OK if linux else NOTE, f"{platform.platform()}, {os.cpu_count()} CPUs")
    compiler = shutil.which("g++") or shutil.which("c++")
    # Wheels have the simulator's core in them: only a build from source needs one.
    yield Finding("system", "C++ compiler", OK if compiler else NOTE, compiler or "none; needed to build the simulator")
    # A namespace that somebody gave an __init__.py hides all packages of the others.
    for folder in dict.fromkeys(sys.path):
        for inside in ("machete", "machete/kernels"):
            stray = Path(folder or ".") / inside / "__init__.py"
            if stray.is_file():
                yield Finding("system", "namespace", WRONG, f"{stray} hides other packages of Machete: remove it")


def packages() -> Iterator[Finding]:
    """Versions, from the metadata of what is installed, and whether each other's requirements name them."""
    wanted = ["nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13", "cuda-bindings"]
    wanted += ["torch", "numpy", "networkx", "packaging", "platformdirs", "filelock", "typer", "rich"]
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # a folder that an interrupted installation left
            name = distribution.metadata["Name"].lower().replace("_", "-")
            found.setdefault(name, distribution.version)
    ours = sorted(name for name in found if name == "machete" or name.startswith("machete-"))
    if "machete-runtime" not in found:
        yield Finding("packages", "machete-runtime", WRONG, "is not installed: pip install machete-runtime")
    for name in ours:
        yield Finding("packages", name, OK, found[name])
    optional = {"nvidia-cutlass-dsl-libs-cu13"}
    for name in wanted:
        if name in found:
            yield Finding("packages", name, OK, found[name])
        else:
            missing = "is not installed: pip install --upgrade machete-runtime brings it"
            yield Finding(
                "packages",
                name,
                NOTE if name in optional else WRONG,
                "is not installed" if name in optional else missing,
            )


def imports() -> Iterator[Finding]:
    """Each package imported in a process of its own, all at a time."""
    programs = dict(IMPORTS)
    for entry in _entries("machete.simulators"):
        programs[entry.value] = f"import importlib; importlib.import_module({entry.module!r}); print('imported')"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for number, (name, program) in enumerate(programs.items()):
            output = (Path(folder) / str(number)).open("w+b")
            process = subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)
            running[name] = process, output
        for name, (process, output) in running.items():
            try:
                code: int | None = process.wait(max(0.1, IMPORT_SECONDS - (time.monotonic() - started)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines() or [""]
            output.close()
            if code == 0:
                yield Finding("imports", name, OK, lines[-1])
            elif code is None:
                yield Finding("imports", name, WRONG, f"took longer than {IMPORT_SECONDS:.0f} s")
            else:
                ended = f"ended by signal {-code}: " if code < 0 else ""
                yield Finding("imports", name, WRONG, f"{ended}{lines[-1]}")


def gpu() -> Iterator[Finding]:
    """The CUDA driver and its devices, asked through ctypes."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        yield Finding("GPU", "driver", NOTE, f"none ({error}): kernels run on the simulator")
        return
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    kernel_module = Path("/proc/driver/nvidia/version")
    module = f" ({kernel_module.read_text().splitlines()[0]})" if kernel_module.exists() else ""
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}{module}"
    # cuLaunchKernelEx and cooperative launch attributes: CUDA 12; we test with 12.8 and later.
    yield Finding("GPU", "driver", OK if version.value >= 12080 else WRONG, f"{text}; 12.8 or later is needed")
    status = driver.cuInit(0)
    if status:
        yield Finding("GPU", "devices", WRONG, f"cuInit failed with error {status}: the driver does not work")
        return
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        yield _device(driver, index)
    if not count.value:
        yield Finding("GPU", "devices", NOTE, "none: kernels run on the simulator")


def _device(driver: ctypes.CDLL, index: int) -> Finding:
    device = ctypes.c_int(0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, 256, device)

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    capability = attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)
    target = _TARGETS.get(capability)
    text = f"{name.value.decode(errors='replace')}, {attribute(_MULTIPROCESSORS)} SMs, compute capability "
    text += f"{capability[0]}.{capability[1]} ({target or 'not supported: use CPU tensors, which are simulated'})"
    return Finding("GPU", f"cuda:{index}", OK if target else NOTE, text)


def plugins() -> Iterator[Finding]:
    """What distributions announce to Machete."""
    for group, missing in GROUPS.items():
        names = sorted({entry.name for entry in _entries(group)})
        yield Finding("plugins", group, OK if names or not missing else NOTE, ", ".join(names) or missing or "none")


def settings() -> Iterator[Finding]:
    """Every environment variable that counts, and those that nobody reads."""
    from machete.megakernel import settings as module

    for setting in module.SETTINGS:
        try:
            value, status = setting.get(), OK
            text = f"{_plain(value)}{'' if setting.text else ' (default)'}. {setting.help}"
        except Exception as error:
            text, status = f"{_line(error)}; {getattr(error, 'why', '')}", WRONG
        yield Finding("settings", setting.variable, status, text)
    announced = {entry.name: entry for entry in _entries("machete.settings")}
    for name, entry in sorted(announced.items()):  # not loaded: packages may be what is broken
        text = os.environ.get(name, "").strip() or "not set"
        yield Finding("settings", name, OK, f"{text}. Read by {entry.module}.")
    for name in module.unknown(announced):
        yield Finding("settings", name, WRONG, "is set, but nothing reads it: misspelt, or of another version")


def cache() -> Iterator[Finding]:
    """The kernel cache: where it is, and whether it can be used."""
    from machete.megakernel.launch.cache.store import Store, default_folder

    folder = default_folder()
    objects = list(Store(folder).objects())
    nbytes = sum(path.stat().st_size for path in objects)
    yield Finding("cache", "kernels", OK, f"{len(objects)} in {folder}, {nbytes / 2**20:.1f} MiB")
    place = folder
    while not place.exists() and not place.is_symlink():
        place = place.parent
    if not place.exists():
        yield Finding("cache", "disk", WRONG, f"{place} is a link to nothing: kernels are compiled in every process")
        return
    writable = place.is_dir() and os.access(place, os.W_OK)
    free = shutil.disk_usage(place).free
    text = (
        f"{free / 2**30:.1f} GiB free"
        if writable
        else f"{place} cannot be written: kernels are compiled in every process"
    )
    yield Finding("cache", "disk", OK if writable and free > 1 << 26 else WRONG, text)


# ---------------------------------------------------------------------- the report


def report(findings: Iterable[Finding], write: Callable[[str], object]) -> int:
    """Write the findings as they come. Returns how many are wrong."""
    marks = {OK: " ", NOTE: "-", WRONG: "!"}
    section, wrong = "", []
    for finding in findings:
        if finding.section != section:
            section = finding.section
            write(f"\n{section}")
        write(f"{marks[finding.status]}   {finding.name:<28} {finding.text}")
        wrong += [finding] if finding.status == WRONG else []
    write("")
    for finding in wrong:
        write(f"wrong: {finding.section}: {finding.name}: {finding.text}")
    write(f"{len(wrong)} things are wrong" if wrong else "nothing is wrong")
    return len(wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="machete doctor", description="What is installed, and what is wrong with it.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.json:
        found = list(examine())
        print(json.dumps([asdict(finding) for finding in found], indent=2))
        return int(any(finding.status == WRONG for finding in found))
    return int(report(examine(), lambda line: print(line, flush=True)) > 0)


def _entries(group: str) -> list[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=group))


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
