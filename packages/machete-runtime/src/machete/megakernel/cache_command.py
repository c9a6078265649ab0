"""`machete cache`: the compiled kernels on disk. Imports neither torch nor the DSL."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from machete.megakernel import settings
from machete.megakernel.abi.errors import MacheteError

cache = typer.Typer(help="List, verify and clear the compiled kernels on disk.", no_args_is_help=True)


@cache.command("list")
def list_kernels(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the kernels that are kept: most recently used first."""
    from machete.megakernel.launch.cache.inventory import kernels

    store = _store()
    found = sorted(kernels(store), key=lambda kernel: -kernel.used)
    if as_json:
        typer.echo(json.dumps({"folder": str(store.folder), "kernels": list(map(asdict, found))}, indent=2))
        return
    state = "" if _is_on() else " (switched off by MACHETE_CACHE)"
    typer.echo(f"{store.folder}{state}: {len(found)} kernels, {_size(sum(kernel.nbytes for kernel in found))}")
    if found:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for heading in ("kernel", "target", "ops", "size", "compiled", "took", "used"):
            table.add_column(heading, overflow="fold" if heading == "ops" else "ellipsis")
        now = time.time()
        for kernel in found:
            size = _size(kernel.nbytes)
            ages = (
                f"{_age(now - kernel.created)} ago",
                f"{kernel.compile_seconds:.1f} s",
                f"{_age(now - kernel.used)} ago",
            )
            cells = [kernel.identity[:12], kernel.target, ", ".join(kernel.kinds), size, *ages]
            table.add_row(*map(Text, cells))
        Console().print(table)


@cache.command("verify")
def verify_files() -> None:
    """Read every file, and compare it with its hash. Exits with 1 if one is damaged; such ones are never run."""
    from machete.megakernel.launch.cache.inventory import verify

    sound, damaged = verify(_store())
    for damage in damaged:
        typer.echo(f"damaged: {damage.path}: {damage.reason}")
    typer.echo(f"{sound} files are sound, {len(damaged)} damaged")
    if damaged:
        typer.echo(
            "`machete cache clear --damaged` removes those; they are compiled again when they are needed", err=True
        )
        raise typer.Exit(1)


@cache.command("clear")
def clear_files(
    damaged: Annotated[bool, typer.Option("--damaged", help="Only files that `verify` finds damaged.")] = False,
) -> None:
    """Remove the kernels; programs that run go on, and others compile again."""
    from machete.megakernel.launch.cache.inventory import verify

    store = _store()
    try:
        if damaged:
            broken = verify(store)[1]
            for one in broken:
                _remove(one.path)
            typer.echo(f"removed {len(broken)} damaged files")
        else:
            count = sum(1 for _ in store.objects())
            store.clear()
            typer.echo(f"removed {count} kernels from {store.folder}")
    except OSError as error:
        typer.echo(f"error: {error.filename}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None


@cache.command("folder")
def folder() -> None:
    """Print the folder; `MACHETE_CACHE_DIR` chooses another."""
    typer.echo(_store().folder)


def _store():  # type: ignore[no-untyped-def]
    from machete.megakernel.launch.cache.store import Store, default_folder

    try:
        return Store(default_folder())
    except MacheteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _is_on() -> bool:
    try:
        return settings.CACHE.get()
    except MacheteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _remove(path: Path) -> None:
    """Remove what lies in the place of a file, whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
