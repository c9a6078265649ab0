"""The command `machete`. It starts fast: neither torch nor the DSL is imported, and plugins only when they are named.

Other packages add a subcommand in the entry-point group `machete.cli`, as a `typer.Typer` or a function that typer
understands::

    [project.entry-points."machete.cli"]
    trace = "machete.trace.cli:app"
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from machete.megakernel import doctor as examination
from machete.megakernel.abi.version import ABI
from machete.megakernel.cache_command import cache
from machete.megakernel.discovery import Announcement, announced, first_line, installed_versions
from machete.megakernel.plan_command import plan
from machete.megakernel.registry import InstalledOp, installed_ops

GROUP = "machete.cli"


def ops(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    load: Annotated[bool, typer.Option("--load", help="Import each op too, and check its class.")] = False,
) -> None:
    """List the installed ops: which fit this runtime, which do not, and why.

    Decided from the packages' metadata alone, unless --load is given.
    """
    with contextlib.redirect_stdout(sys.stderr):  # whatever an op package prints while it is imported
        rows = installed_ops(load=load)
    if as_json:
        typer.echo(json.dumps({"abi": _dotted(ABI), "ops": list(map(_as_json, rows))}, indent=2))
    elif rows:
        _print_table(rows)
    else:
        typer.echo("no op package is installed")


def version() -> None:
    """Show the versions of the runtime, of the Op ABI, and of what is installed beside them."""
    typer.echo(f"Op ABI {_dotted(ABI)}")
    versions = installed_versions()
    ours = {name for name in versions if name.startswith("machete-")}
    for name in [*sorted({"machete-runtime", *ours}), "nvidia-cutlass-dsl", "torch"]:
        typer.echo(f"{name} {versions.get(name, 'is not installed')}")
    typer.echo(f"Python {platform.python_version()}")


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Examine this installation: versions, imports, GPU, settings, and what is wrong with them."""
    raise typer.Exit(examination.main(["--json"] if as_json else []))


def application() -> typer.Typer:
    """The program: its own subcommands, and one for each that a distribution announces."""
    app = typer.Typer(
        name="machete", help="Small GPU ops as one persistent kernel.", no_args_is_help=True, add_completion=False
    )
    own: dict[str, Callable[..., None]] = {"doctor": doctor, "ops": ops, "plan": plan, "version": version}
    for name, command in own.items():
        app.command(name)(command)
    app.add_typer(cache, name="cache")
    announcements, unreadable = announced(GROUP)
    for broken in unreadable:
        _warn(f"the metadata of {broken.distribution} cannot be read: {broken.reason}")
    taken = dict.fromkeys([*own, "cache"], "machete-runtime")
    for plugin in announcements:
        name = plugin.entry.name
        if name in taken:
            _warn(f"`{name}` of {plugin.distribution} is left out: {taken[name]} has a command of that name")
        else:
            taken[name] = plugin.distribution
            _add(app, plugin)
    return app


def main() -> None:
    """Entry point of the script `machete`."""
    application()()


def _add(app: typer.Typer, plugin: Announcement) -> None:
    """A subcommand that stands for a plugin, and hands its arguments over when it is called."""
    summary = plugin.summary or f"From {plugin.distribution}."

    @app.command(
        plugin.entry.name,
        help=summary,
        add_help_option=False,  # --help too is for the plugin to answer
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )
    def run(context: typer.Context) -> None:
        try:
            command = _command(plugin.entry.load())
        except (Exception, SystemExit) as error:
            _warn(f"`{plugin.entry.name}` of {plugin.distribution} {plugin.version} is broken: {first_line(error)}")
            raise typer.Exit(1) from None
        command(args=context.args, prog_name=context.command_path)


def _command(found: Any) -> Any:
    """What an entry point of the group names, as something to call with `args` and `prog_name`."""
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    if not callable(found):
        raise TypeError(f"neither a typer.Typer nor a function, but {found!r}")
    app = typer.Typer(add_completion=False)
    app.command()(found)
    return typer.main.get_command(app)


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _dotted(abi: tuple[int, int] | None) -> str | None:
    return f"{abi[0]}.{abi[1]}" if abi else None


def _as_json(row: InstalledOp) -> dict[str, str | None]:
    return {
        "name": row.name,
        "source": row.source,
        "distribution": row.distribution,
        "version": row.version,
        "abi": _dotted(row.abi),
        "status": row.status,
        "reason": row.reason,
    }


def _print_table(rows: list[InstalledOp]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Ops for ABI {_dotted(ABI)}")
    for heading in ("op", "distribution", "version", "ABI"):
        table.add_column(heading, no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for row in rows:
        style = "red" if row.refusal else "green"
        cells = [row.name, row.distribution, row.version, _dotted(row.abi) or "?"]
        # Text, not str: what packages say of themselves is no markup.
        table.add_row(*map(Text, cells), Text(row.status, style=style), Text(row.reason))
    Console().print(table)
