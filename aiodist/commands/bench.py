"""``aiodist bench``: how fast operations are here, beside Gloo."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from aiodist.bench.cases import ITEMSIZE, OPERATIONS, SPLIT, Case
from aiodist.bench.chart import Row, draw, table
from aiodist.bench.measure import Repetitions
from aiodist.bench.peers import PEERS
from aiodist.bench.times import Timing
from aiodist.commands.main import version_of
from aiodist.commands.output_file import check_output, write_output
from aiodist.commands.terminal import BOLD, GREEN, coloured, has_colours
from aiodist.commands.trace import check_kind
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Nodes, Parser, add_nodes, nodes_of, unknown
from aiodist.launch.quantities import sizes
from aiodist.launch.spec import JobSpec
from aiodist.launch.supervisor import run_job
from aiodist.launch.target import module_program
from aiodist.links.host import own_cores

OURS = ("async", "blocking")
DEFAULT_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
FEWEST, MOST = 5, 5000
"""Rounds of a case; in each, every library has a turn."""


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist bench",
        description="Measure how long operations take on this machine, beside Gloo: in the same "
        "processes, call by call in turns, with every result checked. The time is that of the slowest "
        "rank. It takes half a minute.",
        examples=(
            "aiodist bench                               all_reduce on 2 ranks, beside Gloo",
            "aiodist bench -n 4 broadcast barrier        other operations, 4 ranks",
            "aiodist bench -s 4,64K,100M --svg fig.svg   other sizes, and a figure",
            "aiodist bench --against none                aiodist alone",
        ),
    )
    made.add_argument(
        "operations",
        nargs="*",
        metavar="OPERATION",
        help=f"(default all_reduce; there are {', '.join(OPERATIONS)})",
    )
    made.add_argument(
        "-n", "--ranks", type=int, default=2, metavar="N", help="ranks, on each node (default 2)"
    )
    made.add_argument(
        "-s",
        "--sizes",
        type=sizes,
        default=list(DEFAULT_SIZES),
        metavar="B,B",
        help="bytes of a rank's larger tensor, as 4, 64K, 16M (default 1K,64K,1M,16M)",
    )
    made.add_argument(
        "--against",
        choices=[*(name for name in PEERS if name not in OURS), "none"],
        default="gloo",
        help="what to compare the async and the blocking API with: Gloo, one of them over TCP, or "
        "nothing (default gloo)",
    )
    made.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="for all measurements together, besides the start (default 20)",
    )
    made.add_argument("--json", metavar="FILE", help="write the times to a file, too")
    made.add_argument("--svg", metavar="FILE", help="draw a figure of them (needs matplotlib)")
    add_nodes(made)
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist bench``; returns the exit code."""
    args = parser().read(argv)
    nodes = nodes_of(args, os.environ)
    cases = _cases(args, args.ranks * nodes.nnodes)
    if args.svg and importlib.util.find_spec("matplotlib") is None:
        raise InvalidUsageError("--svg needs matplotlib: pip install matplotlib")
    check_kind(Path(args.svg or ""))
    for option, name in (("--svg", args.svg), ("--json", args.json)):
        if name:
            check_output(option, Path(name))
    _warn_if_busy(args.ranks)
    against = None if args.against == "none" else args.against
    with tempfile.TemporaryDirectory(prefix="aiodist-bench-") as folder:
        answer = Path(folder) / "rows.json"
        effort = Repetitions(args.seconds / len(cases), FEWEST, MOST)
        order = {
            "cases": [asdict(case) for case in cases],
            "peers": [*([against] if against else []), *OURS],
            "effort": asdict(effort),
            "answer": str(answer),
        }
        code = run_job(_job(nodes, args.ranks, json.dumps(order)))
        if code:
            return code
        if nodes.node_rank:
            sys.stderr.write("aiodist: node 0 shows and writes the times\n")
            return 0
        text = answer.read_text(encoding="utf-8")
    rows = [
        Row(Case(**each["case"]), each["peer"], Timing(**each["timing"]))
        for each in json.loads(text)
    ]
    _show(rows, against)
    if args.json:
        write_output(Path(args.json), text)
    if args.svg:
        draw(rows, Path(args.svg), _machine())
    return 0


def _cases(args: argparse.Namespace, ranks: int) -> list[Case]:
    """Return what to measure. Raises InvalidUsageError for an operation that there is not."""
    chosen = args.operations or ["all_reduce"]
    for name in chosen:
        if name not in OPERATIONS:
            raise InvalidUsageError(unknown("operation", name, OPERATIONS))
    if ranks < 2:
        raise InvalidUsageError("one rank has no other to exchange with: pass -n 2 or more")
    if "send_recv" in chosen and ranks != 2:
        raise InvalidUsageError(f"send_recv is between 2 ranks, and there are {ranks}")
    if not 0 < args.seconds < math.inf:
        raise InvalidUsageError(f"--seconds must be above 0 and finite, not {args.seconds:g}")
    cases = []
    for name in dict.fromkeys(chosen):
        if name == "barrier":
            cases.append(Case(name, ranks, 0))
            continue
        step = ITEMSIZE * (ranks if name in SPLIT else 1)  # equal blocks for all ranks
        rounded = [-(-max(nbytes, step) // step) * step for nbytes in args.sizes]
        cases += [Case(name, ranks, nbytes) for nbytes in sorted(set(rounded))]
    return cases


def _job(nodes: Nodes, ranks: int, order: str) -> JobSpec:
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop("AIODIST_INSTEAD_OF", None)  # by which what is called Gloo would be aiodist
    if nodes.nnodes == 1:
        for name in ("AIODIST_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            environment.setdefault(name, "lo")
    return JobSpec(
        program=module_program("aiodist.bench.measuring_rank"),
        arguments=(order,),
        nproc=ranks,
        prefix=False,
        environment=environment,
        **nodes._asdict(),
    )


def _warn_if_busy(ranks: int) -> None:
    cores = len(own_cores())
    if ranks > cores:
        sys.stderr.write(f"aiodist: {ranks} ranks share {cores} cores, which costs all libraries\n")
    load = os.getloadavg()[0]
    if load > 0.5 * cores:
        sys.stderr.write(
            f"aiodist: the machine is busy (load {load:.1f} on {cores} cores), and the times are too\n"
        )


def _show(rows: Sequence[Row], against: str | None) -> None:
    colours = has_colours(sys.stdout)
    blocks = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table(rows, against, blocks=blocks, columns=columns):
        is_head = "library" in line and "median" in line
        codes = [BOLD] if is_head else [GREEN] if " aiodist, " in line else []
        sys.stdout.write(coloured(line, *codes, on=colours) + "\n")
    calls = sum(row.timing.calls for row in rows)
    sys.stdout.write(
        f"{calls} calls were timed, in turns, and every result was right: {_machine()}\n"
    )


def _machine() -> str:
    versions = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "aiodist"))
    return f"{len(own_cores())} cores, {versions}"
