"""``aiodist dump``: what the ranks of a job dumped when something failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aiodist.launch.args import Parser
from aiodist.observe.comparing import group_reports
from aiodist.observe.folder import Dump, read_parts
from aiodist.observe.report_text import situation


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist dump",
        description="Read the parts that all ranks have dumped into a folder, and say which rank "
        "is behind and where the ranks begin to differ.",
        examples=(
            "AIODIST_DUMP_DIR=dump aiodist run -n 4 train.py     ranks write there when one fails",
            "aiodist dump dump                                   what they say together",
        ),
    )
    made.add_argument("folder", metavar="DIR", help="what AIODIST_DUMP_DIR was")
    made.add_argument(
        "--job", help="AIODIST_RUN_ID, or how the job's name begins (default: the latest)"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist dump DIR``; returns the exit code: 0, whatever the dump says."""
    args = parser().read(argv)
    sys.stdout.write(report(read_parts(args.folder, args.job)))
    return 0


def report(dump: Dump) -> str:
    """Return the text of a dump: each rank, the diagnosis, each group."""
    lines = [f"job {dump.job}: {len(dump.parts)} of {dump.size} ranks have written a part"]
    if dump.others:
        lines.append(f"(the folder has parts of other jobs: {', '.join(dump.others)}; see --job)")
    reasons: dict[str, int] = {}
    for rank, part in sorted(dump.parts.items(), key=lambda pair: pair[1].wall):
        reasons.setdefault(part.reason, rank)
    lines += [f"because (rank {rank}): {reason}" for reason, rank in reasons.items()]
    told = group_reports(dump.parts)
    lines += situation(dump.parts, dump.silent, told)
    for story in told:
        lines += ["", str(story)]
    return "\n".join(lines) + "\n"
