"""`machete plan`: what a list of ops becomes before anything is compiled, as text and as a picture."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from machete.megakernel.abi.errors import MacheteError, PlanError
from machete.megakernel.discovery import first_line

if TYPE_CHECKING:
    from machete.megakernel.abi.scheduled import ScheduledOp


def plan(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Python file with ops() or OPS.")],
    svg: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
    arch: Annotated[str, typer.Option(help="Architecture to plan for.")] = "sm_90a",
    num_sms: Annotated[int | None, typer.Option(help="SMs to plan for; those of a card of this architecture.")] = None,
    schedule: Annotated[str, typer.Option(help="static, dynamic or auto.")] = "auto",
) -> None:
    """Plan the ops of a Python file, check the plan, and print it. Nothing is compiled or run.

    The file defines `OPS`, or a function `ops()` that returns them: what `SomeOp.schedule(...)` returns, concatenated.
    Times are those of the cost model.
    """
    from machete.megakernel.abi.target import Target
    from machete.megakernel.launch.temporaries import placed
    from machete.megakernel.plan.cost import RATES
    from machete.megakernel.plan.picture import picture
    from machete.megakernel.plan.plan import Plan
    from machete.megakernel.plan.timeline import timeline

    try:
        target = Target.named(arch)
        lowered, _ = placed([op.op.lower(target, op) for op in ops_of(file)])
        if num_sms is None:
            num_sms = RATES[target.name].num_sms
        built = Plan.build(lowered, target, num_sms, schedule=schedule)
        built.verify()
    except MacheteError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(str(built))
    times = timeline(built)
    waiting = times.waiting_us.sum() / num_sms
    typer.echo(f"expected: {times.total_us:.1f} µs, of which an SM waits {waiting:.1f} µs for dependencies")
    if svg is not None:
        try:
            svg.write_text(picture(built), encoding="utf-8")
        except OSError as error:
            typer.echo(f"error: cannot write {svg}: {error.strerror or error}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"picture: {svg}")


def ops_of(file: Path) -> list[ScheduledOp]:
    """The ops that a Python file defines. Its folder is searched for imports, as if it were run.

    Raises `PlanError` if it cannot be run, or defines neither `ops()` nor `OPS` as a list of scheduled ops. Errors of
    Machete that the file raises are passed on.
    """
    from machete.megakernel.abi.scheduled import ScheduledOp

    spec = importlib.util.spec_from_file_location(f"machete_plan_of_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise PlanError(
            what=f"{file.name} is no Python file",
            where=str(file),
            why="ops are made by Python code",
            fix="name it something.py",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
        found = module.ops() if hasattr(module, "ops") else getattr(module, "OPS", None)
    except MacheteError:
        raise
    except (Exception, SystemExit) as error:  # whatever is wrong with the file, its author is told where
        raise PlanError(
            what=f"{file.name} cannot be run: {first_line(error)}",
            where=_place(error, file),
            why="its ops are what its code returns",
            fix=f"make `python {file.name}` work first",
        ) from error
    finally:
        sys.path.remove(folder)
        sys.modules.pop(spec.name, None)
    if found is None:
        raise PlanError(
            what=f"{file.name} defines neither ops() nor OPS",
            where=str(file),
            why="one of them is the list of ops to plan",
            fix="OPS = ScaleOp.schedule(x=x, y=y) + …",
        )
    ops = list(found) if isinstance(found, Iterable) else [found]
    if not isinstance(found, Iterable) or not all(isinstance(op, ScheduledOp) for op in ops):
        raise PlanError(
            what=f"the ops of {file.name} are no list of scheduled ops",
            where=str(file),
            why="the plan needs tensors and tile sizes",
            fix="OPS = ScaleOp.schedule(x=x, y=y) + …; put a single op into a list",
        )
    return ops


def _place(error: BaseException, file: Path) -> str:
    """The last line of the file that the error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}:{lines[-1]}" if lines else str(file)
