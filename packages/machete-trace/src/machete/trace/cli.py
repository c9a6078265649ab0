"""`machete trace`: run something traced, and say where the time went."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from machete.megakernel import Megakernel

    from .trace import Trace

app = typer.Typer(help="See every tile of a kernel, and where every microsecond went.", no_args_is_help=True)

TRACE_FILE = "trace.npz"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Python file: ops, or a program.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("trace"),
    arch: Annotated[str | None, typer.Option(help="Architecture to simulate, for ops on CPU tensors.")] = None,
    num_sms: Annotated[int | None, typer.Option(help="SMs to run ops on.")] = None,
    schedule: Annotated[str, typer.Option(help="static, dynamic or auto, for ops.")] = "auto",
) -> None:
    """Run a Python file traced, write what was recorded, and report where the time went.

    A file that defines `OPS` or `ops()`, as for `machete plan`, is a graph: it is run once as one kernel, after a run
    to warm up. Any other file is run as a program, with the arguments that follow it, and every kernel that it makes
    is traced; what is shown is the last launch of each.
    """
    from machete.megakernel import MacheteError

    from .errors import OutputError
    from .trace import Trace

    try:
        if _defines_ops(file):
            kernel, wall_us = _run_ops(file, arch, num_sms, schedule)
            traces = [Trace.of(kernel, kernel.report, wall_us=wall_us)]
        else:
            traces = _run_program(file, context.args)
        for number, trace in enumerate(traces):
            folder = out if len(traces) == 1 else out / f"kernel-{number}"
            write_everything(trace, folder)
            typer.echo(str(trace.report()))
            typer.echo(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    except OutputError as error:
        _fail(error)
    except MacheteError as error:
        _fail(error)


@app.command()
def report(
    path: Annotated[Path, typer.Argument(exists=True, help="Folder that `machete trace run` wrote, or its trace.npz.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write report, timelines and tables into this folder again.")] = None,
) -> None:
    """Say where every SM-microsecond of a trace went, beside what the graph could not have been faster than."""
    from rich.console import Console

    from machete.megakernel import MacheteError

    from .tables import tables_of
    from .trace import Trace

    try:
        trace = Trace.load(path / TRACE_FILE if path.is_dir() else path)
        found = trace.report()
        if out is not None:
            write_everything(trace, out)
    except MacheteError as error:
        _fail(error)
    if as_json:
        typer.echo(found.to_json())
    elif sys.stdout.isatty():
        Console().print(tables_of(found))
    else:
        typer.echo(str(found))


def write_everything(trace: Trace, folder: Path) -> None:
    """The trace itself, and everything that is made from it, into a folder. `OutputError` if that cannot be."""
    from .csv_export import write_csv
    from .errors import OutputError
    from .page import page
    from .picture import picture

    found = trace.report()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trace.save(folder / TRACE_FILE)
        with (folder / "spans.csv").open("w", encoding="utf-8", newline="") as file:
            write_csv(trace, file)
        (folder / "timeline.html").write_text(page(trace), encoding="utf-8")
        (folder / "timeline.svg").write_text(picture(trace), encoding="utf-8")
        (folder / "report.txt").write_text(f"{found}\n", encoding="utf-8")
        (folder / "report.json").write_text(found.to_json(), encoding="utf-8")
        from .perfetto_export import write_perfetto  # last: whatever is wrong with protobuf, the rest is there

        with (folder / "trace.perfetto").open("wb") as binary:
            write_perfetto(trace, binary)
    except OSError as error:
        raise OutputError(
            what=f"cannot write to {folder}: {error.strerror or error}",
            where="machete trace --out",
            why="what was recorded is written into one folder",
            fix="name a folder that can be written to",
        ) from None


def _defines_ops(file: Path) -> bool:
    """Whether the file says at its top level what `machete plan` looks for."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return False  # running it will say what is wrong
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    imported = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    functions |= {alias.asname or alias.name for alias in imported} & {"ops"}
    targets += [ast.Name(alias.asname or alias.name) for alias in imported]
    return "ops" in functions or any(isinstance(target, ast.Name) and target.id == "OPS" for target in targets)


def _run_ops(file: Path, arch: str | None, num_sms: int | None, schedule: str) -> tuple[Megakernel, float | None]:
    """The kernel of the ops in a file, after a traced run; and its wall time, where the runtime does not know it."""
    from machete.megakernel import Megakernel
    from machete.megakernel.tooling import ops_of

    from .wall import wall_us

    kernel = Megakernel(ops_of(file), arch=arch, num_sms=num_sms, schedule=schedule, trace=True)
    if kernel.simulated:
        kernel.run()
        return kernel, None
    return kernel, wall_us(kernel)


def _run_program(file: Path, arguments: list[str]) -> list[Trace]:
    """Run a file as a program; the traces of all kernels that it has run."""
    import torch

    from machete.megakernel.tooling import traced_kernels

    from .errors import NotTracedError
    from .trace import Trace

    before = sys.argv, list(sys.path)
    sys.argv, sys.path = [str(file), *arguments], [str(file.resolve().parent), *sys.path]
    try:
        with traced_kernels() as kernels:
            try:
                runpy.run_path(str(file), run_name="__main__")
            except SystemExit as error:
                if error.code:
                    raise
    finally:
        sys.argv, sys.path = before
    ran = [kernel for kernel in kernels if kernel.report is not None]
    if not ran:
        raise NotTracedError(
            what=f"{file.name} has run no kernel",
            where=str(file),
            why="only kernels can be traced",
            fix="have it run a Megakernel, or define ops() or OPS",
        )
    for device in {kernel.device for kernel in ran if kernel.device.type == "cuda"}:
        torch.cuda.synchronize(device)  # programs need not wait for the last launch
    return [Trace.of(kernel, kernel.report) for kernel in ran]


def _fail(error: Exception) -> None:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1) from None
