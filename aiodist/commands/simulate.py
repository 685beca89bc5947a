"""``aiodist simulate``: the algorithms on a simulated network, as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Parser
from aiodist.launch.quantities import numbers, sizes
from aiodist.launch.starting import say
from aiodist.simulate import (
    NETWORKS,
    Parameters,
    algorithms_of,
    algorithms_over_hosts,
    hosts_of,
    operations,
    report,
)


def main(argv: Sequence[str]) -> int:
    """``aiodist simulate``; returns the exit code."""
    args = parser().read(argv)
    parameters = _parameters(args)
    if args.per_host < 1:
        raise InvalidUsageError(f"{args.per_host} ranks on a host: there must be one at least")
    for operation in args.operations:
        # Whether it can be simulated: all are looked at before the first one runs.
        algorithms_of(operation)
        if args.per_host > 1:
            algorithms_over_hosts(operation, hosts_of(1, 1))
    for operation in args.operations:
        left_out: list[str] = []
        if args.per_host == 1:
            found = report.rows(operation, args.ranks, args.sizes, parameters, left_out)
        else:
            found = report.rows_over_hosts(
                operation, args.ranks, args.per_host, args.sizes, parameters, left_out
            )
        table = list(found)
        if args.markdown:
            sys.stdout.write(f"## {operation}\n\n{report.markdown(table)}\n")
        else:
            sys.stdout.write(f"{operation}\n{report.plain(table)}\n")
        sys.stdout.flush()
        for each in left_out:
            say(f"{operation}: {each} is left out: it would take minutes")
    return 0


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist simulate",
        description="Run the algorithms of the collectives under a simulated clock: seconds, "
        "messages and bytes for more ranks than this host can run. A star marks what the table "
        "of aiodist chooses.",
        examples=(
            "aiodist simulate all_reduce -n 64,1024 -s 1K,64M       two sizes on many ranks",
            "aiodist simulate all_gather --per-host 8 -n 512        hosts of 8 ranks",
        ),
    )
    made.add_argument(
        "operations",
        nargs="*",
        default=["all_reduce"],
        metavar="OPERATION",
        help=f"(default all_reduce; there are {', '.join(operations())})",
    )
    made.add_argument(
        "-n",
        "--ranks",
        type=numbers,
        default=[8, 64, 512, 4096],
        metavar="N,N",
        help="numbers of ranks (default 8,64,512,4096)",
    )
    made.add_argument(
        "-s",
        "--sizes",
        type=sizes,
        default=[1 << 10, 1 << 20, 64 << 20],
        metavar="B,B",
        help="bytes, as 4, 64K, 16M or 1G (default 1K,1M,64M); the data, or all blocks together",
    )
    made.add_argument(
        "--network",
        choices=sorted(NETWORKS),
        default="100G",
        help="what it all costs (default 100G); the options below change a part of it",
    )
    made.add_argument(
        "--per-host",
        type=int,
        default=1,
        metavar="N",
        help="so many ranks on each host (default 1), which share its link: flat, and by hosts; "
        "messages and bytes are those between hosts",
    )
    made.add_argument("--latency", type=float, metavar="US", help="microseconds from rank to rank")
    made.add_argument("--overhead", type=float, metavar="US", help="microseconds a message")
    made.add_argument("--bandwidth", type=float, metavar="GB", help="GB/s of a rank's link")
    made.add_argument("--markdown", action="store_true", help="tables for a page")
    return made


def _parameters(args: argparse.Namespace) -> Parameters:
    parameters = NETWORKS[args.network]
    if args.latency is not None:
        parameters = replace(parameters, latency=args.latency * 1e-6)
    if args.overhead is not None:
        parameters = replace(parameters, overhead=args.overhead * 1e-6)
    if args.bandwidth is not None:
        if args.bandwidth <= 0:
            raise InvalidUsageError("the bandwidth must be above 0 GB/s")
        parameters = replace(parameters, per_byte=1 / (args.bandwidth * 1e9))
    return parameters
