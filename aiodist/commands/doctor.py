"""``aiodist doctor``: what this host, or the hosts of a job, offer to ranks, and what to set."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from aiodist.api.environment_check import mistakes_in
from aiodist.api.spelling import misspelt_in
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.observe.doctor.between import compare, judge_between
from aiodist.observe.doctor.facts import look
from aiodist.observe.doctor.finding import OK, PROBLEM, WARNING, Finding, worst
from aiodist.observe.doctor.host_checks import examine


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist doctor",
        description="Examine this host; with --master and --nnodes, started on each host of a job, "
        "also compare the hosts and try every way between them.",
        examples=(
            "aiodist doctor                                                       this host",
            "aiodist doctor --master 10.0.0.1:29500 --nnodes 2 --node-rank 0      on the first host",
            "aiodist doctor --master 10.0.0.1:29500 --nnodes 2 --node-rank 1      on the second",
        ),
    )
    made.add_argument(
        "--master", metavar="HOST:PORT", help="where the hosts meet: an address of node 0"
    )
    made.add_argument("--nnodes", type=int, default=1, metavar="N", help="hosts (default 1)")
    made.add_argument(
        "--node_rank", "--node-rank", type=int, default=0, metavar="K", help="number of this host"
    )
    made.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="for the others to come"
    )
    made.add_argument("-q", "--quiet", action="store_true", help="say only what is not well")
    return made


def main(argv: Sequence[str]) -> int:
    """``aiodist doctor ...``; returns the exit code: 1 where ranks would fail."""
    args = parser().read(argv)
    if args.nnodes < 1 or not 0 <= args.node_rank < args.nnodes:
        raise InvalidUsageError(
            f"node {args.node_rank} of {args.nnodes} hosts: there must be one host at least, and the "
            "numbers of hosts go from 0 to one below --nnodes"
        )
    if (args.nnodes > 1) != (args.master is not None):
        raise InvalidUsageError(
            "--master and --nnodes go together: give both, and start this on each host, or none"
        )
    if args.master is None:
        findings = examine(look(os.environ), several=False)
    else:
        findings = _between(args)
    findings += [Finding(PROBLEM, "settings", each) for each in mistakes_in(os.environ)]
    findings += [Finding(WARNING, "settings", each) for each in misspelt_in(os.environ)]
    shown = [finding for finding in findings if finding.level != OK or not args.quiet]
    sys.stdout.write("".join(f"{finding}\n" for finding in shown))
    level = worst(findings)
    sys.stdout.write(_CONCLUSION[level == PROBLEM] if level != OK else "all is well\n")
    return 1 if level == PROBLEM else 0


_CONCLUSION = ("ranks will run; see the warnings\n", "ranks will fail here: see the problems\n")


def _between(args: argparse.Namespace) -> list[Finding]:
    host, _, port = args.master.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidUsageError("--master takes HOST:PORT, such as 10.0.0.1:29500")
    meeting = compare(
        host.strip("[]"), int(port), args.nnodes, args.node_rank, args.timeout, os.environ
    )
    told = asyncio.run(meeting)
    return [*examine(told.hosts[args.node_rank], several=True), *judge_between(told)]
