"""``aiodist trace``: one trace of all ranks, from what each of them has written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aiodist.launch.args import Parser
from aiodist.observe.folder import Dump, read_parts
from aiodist.observe.rank_report import SO_FAR
from aiodist.observe.trace import chrome_trace


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist trace",
        description="Make one trace of all ranks, on one clock, for ui.perfetto.dev or Chrome.",
    )
    made.add_argument(
        "folder", metavar="DIR", help="what AIODIST_TRACE_DIR (or AIODIST_DUMP_DIR) was"
    )
    made.add_argument(
        "-o", "--output", default="trace.json", metavar="FILE", help="(default trace.json)"
    )
    made.add_argument("--job", help="of this job, or one that begins so (default: the latest)")
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist trace DIR -o FILE``; returns the exit code."""
    args = parser().read(argv)
    sys.stderr.write(write_trace(read_parts(args.folder, args.job), Path(args.output)))
    return 0


def write_trace(dump: Dump, path: Path) -> str:
    """Write the trace of ``dump``; what there is to say about it, in lines. Raises OSError."""
    trace = chrome_trace(dump.parts)
    path.write_text(json.dumps(trace))
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
    missing = "".join(f"aiodist: rank {rank}: {why}\n" for rank, why in (cut | dump.silent).items())
    return f"{told}\n{missing}"
