"""``aiodist tune``: measure which algorithm is the fastest here, and write the tables of choices."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aiodist.collectives.rule_tables import TUNABLE, Tables, decode, encode
from aiodist.collectives.select import Rule, Rules
from aiodist.commands.output_file import check_output, write_output
from aiodist.errors import InvalidUsageError
from aiodist.launch.args import Nodes, Parser, add_nodes, nodes_of, unknown
from aiodist.launch.quantities import numbers, sizes
from aiodist.launch.spec import DEFAULT_MASTER_PORT, JobSpec
from aiodist.launch.supervisor import run_job
from aiodist.launch.target import module_program

DEFAULT_SIZES = (1 << 10, 8 << 10, 64 << 10, 256 << 10, 512 << 10, 4 << 20, 32 << 20)


def main(argv: Sequence[str]) -> int:
    """``aiodist tune``; returns the exit code."""
    args = parser().read(argv)
    chosen = args.operations or list(TUNABLE)
    for name in chosen:
        if name not in TUNABLE:
            raise InvalidUsageError(unknown("operation to choose for", name, TUNABLE))
    if not 0 <= args.seconds < math.inf:
        raise InvalidUsageError(f"--seconds must be 0 or more and finite, not {args.seconds:g}")
    nodes = nodes_of(args, os.environ)
    if min(args.ranks) * nodes.nnodes < 2:
        raise InvalidUsageError("one rank has nothing to choose: pass -n 2 or more")
    path = Path(args.output)
    if nodes.node_rank == 0:
        check_output("--output", path)
    parts: list[dict[str, list[Rule]]] = [{name: [] for name in chosen} for _ in Tables._fields]
    measured, shared, over_hosts = parts
    for number, per_node in enumerate(args.ranks):
        with tempfile.TemporaryDirectory(prefix="aiodist-tune-") as folder:
            answer = Path(folder) / "rows.json"
            order = {
                "operations": chosen,
                "sizes": sorted(set(args.sizes)),
                "seconds": args.seconds,
                "answer": str(answer),
            }
            code = run_job(_job(nodes, number, per_node, json.dumps(order)))
            if code:
                return code
            if nodes.node_rank:
                continue  # rank 0 has the answer
            tables = decode(answer.read_text(encoding="utf-8"))
        for name in chosen:
            measured[name] += _of(per_node * nodes.nnodes, tables.messages, name)
            shared[name] += _of(per_node * nodes.nnodes, tables.shared, name)
            if per_node == max(args.ranks):  # a row can only say for how many hosts it is
                over_hosts[name] = _of(nodes.nnodes, tables.hosts, name)
    if nodes.node_rank:
        sys.stderr.write("aiodist: node 0 writes the table\n")
        return 0
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "host": platform.node()}
    write_output(path, encode(measured, shared, over_hosts, machine))
    sys.stderr.write(f"aiodist: the table is in {path}; a job takes it with AIODIST_TABLE={path}\n")
    return 0


def _job(nodes: Nodes, number: int, per_node: int, order: str) -> JobSpec:
    """Job ``number`` of the run. On several nodes each has a port of its own.

    A node that is quick would else meet the rank 0 of the job before.
    """
    if nodes.nnodes > 1:
        port = DEFAULT_MASTER_PORT if nodes.master_port is None else nodes.master_port
        nodes = nodes._replace(master_port=port + number)
    return JobSpec(
        program=module_program("aiodist.tuning.tuning_rank"),
        arguments=(order,),
        nproc=per_node,
        **nodes._asdict(),
    )


def _of(ranks: int, rules: Rules, operation: str) -> list[Rule]:
    """Return the rows that were measured with ``ranks`` ranks, or hosts."""
    return [rule for rule in rules[operation] if rule.least == rule.ranks == ranks]


def parser() -> Parser:
    """Return a new parser of the command's options."""
    made = Parser(
        prog="aiodist tune",
        description="Measure every algorithm of every collective, over the transports in "
        "AIODIST_TRANSPORT: over messages, in shared memory and over several hosts. Write the "
        "fastest ones to a table that jobs can load.",
        examples=(
            "aiodist tune -n 2,4 -o table.json            all operations, on 2 and on 4 ranks",
            "AIODIST_TABLE=table.json aiodist run ...     a job that uses the table",
        ),
    )
    made.add_argument(
        "operations", nargs="*", metavar="OPERATION", help="only these (default: all)"
    )
    made.add_argument(
        "-n",
        "--ranks",
        type=numbers,
        default=[2],
        metavar="N,N",
        help="numbers of ranks, on each node where there are several (default 2)",
    )
    made.add_argument(
        "-s",
        "--sizes",
        type=sizes,
        default=list(DEFAULT_SIZES),
        metavar="B,B",
        help="bytes, as 4, 64K, 16M (default 1K,8K,64K,256K,512K,4M,32M)",
    )
    made.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        metavar="S",
        help="for each operation and size (default 0.5)",
    )
    made.add_argument(
        "-o", "--output", default="table.json", metavar="FILE", help="(default table.json)"
    )
    add_nodes(made)
    return made
