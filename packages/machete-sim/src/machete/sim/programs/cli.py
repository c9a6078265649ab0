"""The command `machete-sim`: programs written for a GPU, on a machine without one."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ExecutionError, UnsupportedLaunch
from ..report import json_report, text_report, write_json
from ..settings import Check, default_check
from ..timeline import chrome_trace, trace_launches
from .context import MissingPackage, Simulation, simulated_gpu
from .device import DEFAULT_SMS, Device

app = typer.Typer(
    name="machete-sim",
    help="Runs CuTe DSL programs without a GPU, and finds what is wrong with their kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # the program's own traceback, as Python prints it
)


PROGRAM_FIRST = {"ignore_unknown_options": True, "allow_interspersed_args": False}
Script = Annotated[str, typer.Argument(help="The program: a file, or with -m the name of a module.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="The program's own arguments.")]
Arch = Annotated[str, typer.Option(help="The GPU: sm_90a, sm_100a or sm_120a.")]
Sms = Annotated[int, typer.Option(help="Multiprocessors of the GPU, and CTAs that are resident at a time.")]
Seed = Annotated[int, typer.Option(help="Chooses the order of warps and of asynchronous copies.")]
AsModule = Annotated[bool, typer.Option("--module", "-m", help="SCRIPT names a module, as in python -m.")]


@app.command(context_settings=PROGRAM_FIRST)
def run(
    script: Script,
    arguments: Arguments = None,
    arch: Arch = "sm_90a",
    sms: Sms = DEFAULT_SMS,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Run the program this many times, each time with the next seed.")
    ] = 1,
    module: AsModule = False,
    check: Annotated[
        Check | None,
        typer.Option(
            help="races: everything; memory: no happens-before, faster; strict: bar.warp.sync alone orders lanes of "
            "a warp. Default: MACHETE_SIM_CHECK."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write what was found to this file: a list, empty if nothing was.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what the program prints.")] = False,
) -> None:
    """Run a program that is written for device="cuda", unchanged, on a simulated GPU.

    A kernel that goes wrong is reported: the op, the CTA, the warp, the instruction and the line of both accesses of a
    race, and what to do. It raises an exception where it was launched. The program's exit status is handed on.
    """
    device = _device(script, module, arch, sms)
    if json_file is not None:
        write_json(json_file, [])
    for current in range(seed, seed + seeds):
        try:
            with _checking(check), simulated_gpu(device.arch, sms=sms, seed=current) as simulation:
                _execute(script, arguments or [], module)
        except MissingPackage as error:
            typer.echo(f"machete-sim: {error}", err=True)
            raise typer.Exit(2) from None
        except BaseException as error:
            if isinstance(error, ExecutionError):
                typer.echo(text_report(error, current), err=True)
                if json_file is not None:
                    write_json(json_file, [json_report(error, current)])
            if seeds > 1:
                typer.echo(f"machete-sim: failed with --seed {current}", err=True)
            raise
        if not quiet:
            typer.echo(_summary(simulation), err=True)


@app.command(context_settings=PROGRAM_FIRST)
def trace(
    script: Script,
    arguments: Arguments = None,
    arch: Arch = "sm_90a",
    sms: Sms = DEFAULT_SMS,
    seed: Seed = 0,
    module: AsModule = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a Chrome JSON trace, which ui.perfetto.dev opens.")
    ] = None,
    ctas: Annotated[int, typer.Option(min=1, help="How many CTAs of a launch are printed.")] = 4,
    launches: Annotated[int, typer.Option(min=1, help="How many launches are printed.")] = 4,
    events: Annotated[bool, typer.Option("--events", help="Print what every warp did, line by line.")] = False,
) -> None:
    """Run a program as `run` does, and show which warp did what when, in simulated time.

    A test program: machete-sim trace -m pytest tests/test_kernel.py. A kernel that goes wrong is traced up to there.
    """
    device = _device(script, module, arch, sms)
    with trace_launches() as timelines:
        try:
            with simulated_gpu(device.arch, sms=sms, seed=seed):
                _execute(script, arguments or [], module)
        except MissingPackage as error:
            typer.echo(f"machete-sim: {error}", err=True)
            raise typer.Exit(2) from None
        except ExecutionError as error:
            typer.echo(text_report(error, seed), err=True)
            raise
        finally:
            for timeline in timelines[:launches]:
                typer.echo(timeline.text(ctas, events))
            if len(timelines) > launches:
                typer.echo(f"machete-sim: {len(timelines) - launches} more launches are not printed", err=True)
            if output is not None:
                output.write_text(chrome_trace(timelines))


def _device(script: str, module: bool, arch: str, sms: int) -> Device:
    """The GPU that is asked for. Raises typer.BadParameter, also if there is no such program."""
    if not module and not Path(script).is_file():
        raise typer.BadParameter(f"{script}: no such file", param_hint="SCRIPT")
    try:
        return Device.named(arch, sms)
    except UnsupportedLaunch as error:
        raise typer.BadParameter(str(error), param_hint="--arch, --sms") from None


@contextmanager
def _checking(check: Check | None) -> Iterator[None]:
    """Launches are watched this closely, unless they say otherwise."""
    before = os.environ.get("MACHETE_SIM_CHECK")
    os.environ["MACHETE_SIM_CHECK"] = check or default_check()
    try:
        yield
    finally:
        os.environ.pop("MACHETE_SIM_CHECK")
        if before is not None:
            os.environ["MACHETE_SIM_CHECK"] = before


def _execute(script: str, arguments: list[str], module: bool) -> None:
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if module else str(Path(script).resolve().parent))
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:] = before


def _summary(simulation: Simulation) -> str:
    nothing = "" if simulation.launches else "; no kernel was launched"
    return f"machete-sim: {simulation}{nothing}"
