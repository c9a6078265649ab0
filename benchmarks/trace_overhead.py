"""What tracing costs, and whether it tells the truth, on one GPU; everything is written into a folder.

    python benchmarks/trace_overhead.py --out DIR [--part overhead --part diagnosis --part profile]

`overhead`: the decode chain of decode_chain.py, traced and not, as CUDA graphs that are replayed by turns. Medians,
what tracing adds, and how far the report's sum is from the wall time. Its trace, with report and timeline, is in
DIR/chain.

`diagnosis`: graphs with a known ailment (tools/diagnosis_graphs.py), on all SMs, each with and without a planted delay:
in which category the delay lands, in parts of what was planted, and what the report names first.

`profile`: a graph that the planner's cost model misjudges, planned without and with the times of its own trace.

A part that fails says so in DIR/results.json, and the others go on. With `--device cpu` everything runs on the
simulator, with 4 SMs and a small chain, to try the script.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

from decode_chain import Chain, captured, microseconds, relative_error  # noqa: E402

from diagnosis_graphs import AILMENTS, misjudged  # noqa: E402
from machete.megakernel import Megakernel  # noqa: E402
from machete.trace import Report, Trace  # noqa: E402
from machete.trace.cli import write_everything  # noqa: E402
from machete.trace.wall import wall_us  # noqa: E402

PLANTED_US = 200.0


def written(trace: Trace, folder: Path) -> None:
    """Everything that is made from a trace; where perfetto is not installed, all but that."""
    try:
        write_everything(trace, folder)
    except ModuleNotFoundError as missing:
        typer.echo(f"{folder}: {missing}; `machete trace report {folder} --out {folder}` writes the rest", err=True)


def traced(kernel: Megakernel) -> Trace:
    """One launch, and its wall time."""
    if kernel.simulated:
        return Trace.of(kernel, kernel.run())
    return Trace.of(kernel, wall_us=wall_us(kernel))


def summary(report: Report) -> dict[str, Any]:
    """What of a report goes into the results."""
    return {
        "us": report.us,
        "traced_us": report.traced_us,
        "wall_us": report.wall_us,
        "reconciliation": report.reconciliation,
        "floor_us": report.floor.us,
        "lost": report.lost,
        "alignment_error_ns": report.alignment.error_ns,
        "early_ns": report.alignment.early_ns,
        "timer_step_ns": report.alignment.timer_step_ns,
        "ns_per_cycle": report.alignment.ns_per_cycle,
        "savings": [(saving.us, saving.category, saving.advice) for saving in report.savings],
    }


def overhead(device: str, out: Path, rounds: int) -> dict[str, Any]:
    """The decode chain, traced and not."""
    torch.manual_seed(0)
    layers, d, f = (16, 2048, 8192) if device == "cuda" else (2, 256, 512)
    chain = Chain.random(layers, d, f, 1, device)
    reference = chain.reference()
    kernels = {"plain": Megakernel(chain.ops()), "traced": Megakernel(chain.ops(), trace=True)}
    errors = {}
    for name, kernel in kernels.items():
        chain.xs[1:].fill_(float("nan"))
        kernel.run()
        errors[name] = relative_error(chain.xs[-1], reference)
    result: dict[str, Any] = {"error": errors, "layers": layers, "d": d, "f": f}
    wall = None
    if device == "cuda":
        graphs = {name: captured(lambda kernel=kernel: kernel.run(sync=False))[0] for name, kernel in kernels.items()}
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name, graph in graphs.items():
                samples[name].append(microseconds(graph))
        medians = {name: statistics.median(values) for name, values in samples.items()}
        result |= {"medians_us": medians, "samples_us": samples, "slower_by": medians["traced"] / medians["plain"] - 1}
        wall = medians["traced"]
        microseconds(graphs["traced"])  # the last launch is what the trace shows
    trace = Trace.of(kernels["traced"], kernels["traced"].report, wall_us=wall)
    result |= {"events": len(trace.time), "buffer_bytes": kernels["traced"].trace_buffer.numel()}
    result |= {"report": summary(trace.report())}
    written(trace, out / "chain")
    return result


def diagnosis(device: str, out: Path, rounds: int) -> dict[str, Any]:
    """Where planted delays land."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 4
    results = {}
    for name, make in AILMENTS.items():
        graph = make(device, num_sms)
        kernel = Megakernel(graph.ops, num_sms=num_sms, trace=True)
        traced(kernel)  # to warm up
        reports = []
        for planted in (0, int(1000 * PLANTED_US)):
            graph.delays[graph.tile] += planted
            graph.result.zero_()
            trace = traced(kernel)
            reports.append(trace.report())
        written(trace, out / name.replace(" ", "-"))
        well, ill = reports
        landed = {kind: num_sms * (ill.us[kind] - well.us[kind]) / PLANTED_US for kind in well.us}
        results[name] = {
            "right": bool(torch.equal(graph.result, graph.reference)),
            "expected": graph.expected,
            "landed": landed,
            "off_by": max(abs(landed[kind] - count) / count for kind, count in graph.expected.items()),
            "says": (ill if graph.planted_is_ill else well).savings[0].category,
            "should_say": graph.says,
            "well": summary(well),
            "ill": summary(ill),
        }
    return results


def profile(device: str, out: Path, rounds: int) -> dict[str, Any]:
    """Planned without and with measured times."""
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 4
    graph = misjudged(device, num_sms)
    first = Megakernel(graph.ops, num_sms=num_sms, trace=True)
    before = traced(first)
    times = before.profile()
    graph.result.zero_()
    second = Megakernel(graph.ops, num_sms=num_sms, trace=True, profile=times)
    after = traced(second)
    written(before, out / "profile-before")
    written(after, out / "profile-after")
    return {
        "right": bool(torch.equal(graph.result, graph.reference)),
        "profile": times,
        "before": summary(before.report()),
        "after": summary(after.report()),
        "faster_by": before.total_us / after.total_us,
    }


PARTS: dict[str, Callable[[str, Path, int], dict[str, Any]]] = {
    "overhead": overhead,
    "diagnosis": diagnosis,
    "profile": profile,
}


def main(
    out: Annotated[Path, typer.Option(help="Folder for everything that is found.")],
    device: Annotated[str, typer.Option(help="cuda, or cpu for the simulator.")] = "cuda",
    rounds: int = 25,
    part: Annotated[list[str] | None, typer.Option(help="Only these parts; may be given several times.")] = None,
) -> None:
    """Measure, and write after each part."""
    out.mkdir(parents=True, exist_ok=True)
    machine = torch.cuda.get_device_name() if device == "cuda" else "simulator"
    results: dict[str, Any] = {"machine": machine, "torch": torch.__version__}
    for name in part or PARTS:
        started = time.perf_counter()
        try:
            results[name] = PARTS[name](device, out, rounds)
        except Exception:  # device time is scarce: what else can be measured is measured
            results[name] = {"failed": traceback.format_exc()}
        results[f"{name}_seconds"] = time.perf_counter() - started
        (out / "results.json").write_text(json.dumps(results, indent=1, default=str))
        typer.echo(f"{name}: {results[f'{name}_seconds']:.1f} s")
    failed = [name for name in part or PARTS if "failed" in results[name]]
    for name in failed:
        typer.echo(results[name]["failed"], err=True)
    for name, value in results.get("diagnosis", {}).items():
        if isinstance(value, dict):
            typer.echo(f"{name}: off by {value['off_by']:.1%}, says {value['says']} ({value['should_say']})")
    if "slower_by" in results.get("overhead", {}):
        typer.echo(f"traced {results['overhead']['medians_us']}, slower by {results['overhead']['slower_by']:.2%}")
    if "faster_by" in results.get("profile", {}):
        typer.echo(f"a plan from its own trace is faster by {results['profile']['faster_by']:.2f}")
    raise typer.Exit(bool(failed))


if __name__ == "__main__":
    typer.run(main)
