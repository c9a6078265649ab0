"""What went wrong, for people and for programs: the text of a report, and the same as plain values."""

import json
from pathlib import Path
from typing import Any

from .errors import ExecutionError, Place

WIDTH = 9  # of "========="


def text_report(error: ExecutionError, seed: int | None = None) -> str:
    """A report in the manner of compute-sanitizer, with the op, the tile and the author's line.

    seed: the order that found it, to be said how to run it again.
    """
    message, _, advice = error.message.partition("; ")
    lines = [f"{error.kind}: {message}"]
    lines += [f"    {line}" for line in _position(error.cta, error.warp, error.lanes, error.place)]
    for other in error.waiting:
        lines.append(f"  {other.what}")
        lines += [f"    {line}" for line in _position(other.cta, other.warp, (), other.place)]
    if advice:
        lines.append(f"  what to do: {advice}")
    if seed is not None:
        lines.append(f"  found with seed {seed}")
    return "\n".join(f"{'=' * WIDTH} {line}".rstrip() for line in lines)


def json_report(error: ExecutionError, seed: int | None = None) -> dict[str, Any]:
    """The report as plain values, for `json.dumps`; paths are given by their last part only."""
    return {
        "kind": error.kind,
        "error": type(error).__name__,
        "message": error.message,
        "seed": seed,
        "cta": None if error.cta is None else list(error.cta),
        "warp": error.warp,
        "lanes": list(error.lanes),
        "place": _place(error.place),
        "others": [
            {"what": other.what, "cta": other.cta, "warp": other.warp, "place": _place(other.place)}
            for other in error.waiting
        ],
    }


def write_json(path: Path, reports: list[dict[str, Any]]) -> None:
    """A file with a list of reports; an empty list says that nothing was found."""
    path.write_text(json.dumps(reports, indent=1) + "\n")


def _position(cta: object, warp: int | None, lanes: tuple[int, ...], place: Place | None) -> list[str]:
    where = [f"CTA {cta}"] if cta is not None else []
    where += [f"warp {warp}"] if warp is not None else []
    if lanes and len(lanes) < 32:
        where.append(f"{'lanes' if len(lanes) > 1 else 'lane'} {', '.join(map(str, lanes))}")
    lines = [", ".join(where)] if where else []
    if place is None:
        return lines
    lines.append(f"at {place.source or f'line {place.ptx_line} of the PTX'}")
    lines.append(f"   {place.text}")
    if place.mark:
        lines.append(f"in {place.mark}")
    return lines


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    source = None
    if place.source is not None:
        name, _, line = place.source.rpartition(":")
        source = f"{Path(name).name}:{line}"
    return {"instruction": place.text, "ptx_line": place.ptx_line, "source": source, "mark": place.mark}
