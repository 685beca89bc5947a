"""``aiodist trace``: one trace of all ranks, from what each of them has written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aiodist.commands.output_file import check_output, write_output
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.observe.folder import Dump, read_parts
from aiodist.observe.rank_report import SO_FAR
from aiodist.observe.timeline import timeline
from aiodist.observe.trace import chrome_trace
from aiodist.observe.traffic_map import traffic_map

_MOST_NAMES = 4
"""Other jobs of a folder that are named; more are counted."""


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist trace",
        description="Make one trace of all ranks, on one clock: for ui.perfetto.dev or Chrome, or as a "
        "picture of the ranks over time; and a map of which ranks exchange data with which.",
        examples=(
            "AIODIST_TRACE_DIR=traces aiodist run -n 4 train.py     each rank writes its part",
            "aiodist trace traces -o trace.json                     for ui.perfetto.dev",
            "aiodist trace traces -o time.svg --map map.svg         two pictures for a browser",
        ),
    )
    made.add_argument(
        "folder", metavar="DIR", help="what AIODIST_TRACE_DIR (or AIODIST_DUMP_DIR) was"
    )
    made.add_argument(
        "-o",
        "--output",
        default="trace.json",
        metavar="FILE",
        help="a picture if it ends in .svg, else JSON (default trace.json)",
    )
    made.add_argument(
        "--map", metavar="FILE", help="also draw which ranks exchange data with which, as SVG"
    )
    made.add_argument(
        "--job", help="AIODIST_RUN_ID, or how the job's name begins (default: the latest)"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist trace DIR -o FILE``; returns the exit code."""
    args = parser().read(argv)
    if args.map and Path(args.map).suffix.lower() != ".svg":
        raise InvalidUsageError(f"--map is an SVG picture: name it {Path(args.map).stem}.svg")
    path = Path(args.output)
    check_kind(path)
    check_output("--output", path)
    if args.map:
        check_output("--map", Path(args.map))
    dump = read_parts(args.folder, args.job)
    sys.stderr.write(write_trace(dump, path, "--job takes one of them"))
    if args.map:
        write_output(Path(args.map), traffic_map(dump.parts))
        sys.stderr.write(f"aiodist: the map of the ranks is in {args.map}\n")
    return 0


def check_kind(path: Path) -> None:
    """Raise InvalidUsageError for a picture that cannot be drawn."""
    if path.suffix.lower() in (".png", ".jpg", ".pdf"):
        raise InvalidUsageError(
            f"the picture is an SVG, which every browser shows: name it {path.stem}.svg"
        )


def write_trace(dump: Dump, path: Path, advice: str) -> str:
    """Write the trace of ``dump``, as a picture if ``path`` ends in .svg; return what there is to say
    about it, in lines. Raises OSError.

    ``advice``: how to get at the other jobs in the folder. Ranks that meet anew make one.
    """
    trace = chrome_trace(dump.parts)
    is_picture = path.suffix.lower() == ".svg"
    text = timeline(dump.parts) if is_picture else json.dumps(trace)
    write_output(path, text)
    count = sum(len(part.operations) for part in dump.parts.values())
    told = f"aiodist: {count} operations of {len(dump.parts)} ranks are in {path}"
    errors = trace["otherData"]["clock_error_us"].values()
    if any(error is None for error in errors):
        told += "; some clocks are aligned by the calendar time of their hosts only"
    elif any(errors):
        told += f"; clocks agree to {max(errors):.0f} us"
    cut = {
        rank: f"was killed, or still runs: its last {len(part.operations)} operations are there, as "
        "they were a second or so before"
        for rank, part in dump.parts.items()
        if part.reason == SO_FAR
    }
    missing = "".join(
        f"aiodist: rank {rank}: {why}\n" for rank, why in sorted((cut | dump.silent).items())
    )
    others = ""
    if dump.others:
        names = [*dump.others[:_MOST_NAMES]]
        if len(dump.others) > _MOST_NAMES:
            names.append(f"{len(dump.others) - _MOST_NAMES} more")
        others = (
            f"aiodist: that is job {dump.job}; operations of {', '.join(names)} are left out: "
            f"{advice}\n"
        )
    return f"{told}\n{missing}{others}"
