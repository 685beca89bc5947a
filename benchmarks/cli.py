"""``python -m benchmarks``: measure, make the page, or measure the engine's own steps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from aiodist.bench.cases import OPERATIONS
from aiodist.commands.output_file import check_output
from aiodist.errors import InvalidUsageError
from aiodist.launch.quantities import numbers, sizes
from benchmarks.cases import FULL, QUICK, STANDARD, Suite
from benchmarks.machine import busy, describe
from benchmarks.peers import (
    BETWEEN_HOSTS,
    LIBRARIES,
    ON_A_HOST,
    ON_HOSTS_OF_SEVERAL,
    PEERS,
    make_peer,
)
from benchmarks.processes import ROOT
from benchmarks.steps.cases import STEPS
from benchmarks.targets import FOUR_HOSTS, HOST, NETWORK

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "docs" / "performance" / "results.json"
ARRIVAL_PAGE = ROOT / "docs" / "performance" / "arrival.md"
STARTING_PAGE = ROOT / "docs" / "performance" / "starting.md"
NETWORK_PAGE = ROOT / "docs" / "performance-network.md"
NETWORK_RESULTS = ROOT / "docs" / "performance-network" / "results.json"
FOUR_HOSTS_PAGE = ROOT / "docs" / "performance-hosts.md"
FOUR_HOSTS_RESULTS = ROOT / "docs" / "performance-hosts" / "results.json"
PAGES = MappingProxyType({HOST: PAGE, NETWORK: NETWORK_PAGE, FOUR_HOSTS: FOUR_HOSTS_PAGE})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    command = options.command or "bench"
    if rest and command != "micro":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "output" in options:
        _check(options.output)
    if command == "rank":
        from benchmarks.rank import serve

        serve(
            options.rank,
            options.ranks,
            options.meeting,
            list(filter(None, options.peers.split(","))),
            options.pin,
        )
        return 0
    if command == "micro":
        return _micro(rest)
    if command == "arrival":
        return _arrival(options)
    if command == "starting":
        return _starting(options)
    if command == "page":
        return _page(options.results)
    if command == "run":
        return _run(_suite(options), _peers(options), options.output, options)
    defaults = _parser().parse_args(["run"])
    return _run(STANDARD, ON_A_HOST, RESULTS, defaults) or _page(RESULTS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Without a command: the standard suite, then the page docs/performance.md.",
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    run = commands.add_parser("run", help="measure, show tables, write JSON")
    size = run.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few sizes and repetitions")
    size.add_argument("--full", action="store_true", help="all sizes on all ranks; takes long")
    run.add_argument("--ranks", type=numbers, help="only these, as 2,4")
    run.add_argument("--operations", help=f"only these of {','.join([*OPERATIONS, *STEPS])}")
    run.add_argument("--sizes", type=sizes, help="only these bytes, as 4,64K,1M")
    run.add_argument(
        "--peers",
        help=f"these of {','.join(PEERS)}; default: all that are of one host, with --quick none of "
        f"those that are no library; with --namespaces {','.join(BETWEEN_HOSTS)}, with --ranks-per-host "
        f"{','.join(ON_HOSTS_OF_SEVERAL)}",
    )
    run.add_argument(
        "--passes", type=int, help="over all cases, with new processes each, instead of the suite's"
    )
    run.add_argument("--pin", action="store_true", help="keep each rank on its share of cores")
    run.add_argument(
        "--namespaces",
        action="store_true",
        help="each rank on a host of its own, made of network namespaces (needs the right to)",
    )
    run.add_argument(
        "--ranks-per-host",
        type=int,
        default=1,
        metavar="N",
        help="with --namespaces: N ranks on each host (default 1)",
    )
    run.add_argument("--rate", help="with --namespaces: limit each host's link, as 1gbit")
    run.add_argument(
        "--congestion", help="with --namespaces: TCP's congestion control for all peers, as reno"
    )
    run.add_argument("--with-mpi", action="store_true", help="Open MPI and MPICH as well")
    run.add_argument("--output", type=Path, default=Path("build/benchmarks.json"))
    page = commands.add_parser(
        "page",
        help="publish results with figures and JSON: docs/performance.md, or the page of runs "
        "between hosts",
    )
    page.add_argument("results", type=Path, nargs="?", default=RESULTS)
    arrival = commands.add_parser(
        "arrival", help="late ranks, computation between calls, calls in a row"
    )
    arrival.add_argument("--quick", action="store_true", help="few sizes and repetitions")
    arrival.add_argument("--patterns", help="only these of late,training,batch,wait")
    arrival.add_argument("--sizes", type=sizes, help="only these bytes, as 4,64K,1M")
    arrival.add_argument("--operation", choices=OPERATIONS, help="only this one")
    arrival.add_argument("--ranks", type=numbers, help="only these, as 2,4")
    arrival.add_argument("--peers", help="in place of the usual ones")
    arrival.add_argument("--with-mpi", action="store_true", help="Open MPI as well")
    arrival.add_argument("--output", type=Path, default=Path("build/arrival.json"))
    arrival.add_argument(
        "--page", action="store_true", help="publish: docs/performance/arrival.md and its JSON"
    )
    starting = commands.add_parser(
        "starting", help="how long many ranks take to start, and what each of them costs"
    )
    starting.add_argument("--ranks", type=numbers, default=[2, 8, 32, 64], help="as 2,8,32,64")
    starting.add_argument("--repeats", type=int, default=3, help="starts of each library")
    starting.add_argument("--libraries", help="in place of the usual ones")
    starting.add_argument("--output", type=Path, default=Path("build/starting.json"))
    starting.add_argument(
        "--page", action="store_true", help="publish: docs/performance/starting.md and its JSON"
    )
    commands.add_parser(
        "micro", help="the engine's own steps; other arguments are pytest-benchmark's"
    )
    rank = commands.add_parser("rank", help="one rank of a run (the runner starts it)")
    rank.add_argument("rank", type=int)
    rank.add_argument("ranks", type=int)
    rank.add_argument("meeting")
    rank.add_argument("peers")
    rank.add_argument("--pin", action="store_true")
    return parser


def _check(output: Path) -> None:
    """Leave with a sentence, before anything is measured, if the results could not be written."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        check_output("--output", output)
    except (OSError, InvalidUsageError) as error:
        raise SystemExit(str(error)) from None


def _named_peers(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the peers of ``--peers``, none without it. Leave with a sentence if one is not known."""
    peers = tuple(options.peers.split(",")) if options.peers else ()
    try:
        for name in peers:
            make_peer(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise SystemExit(str(error)) from None
    return peers


def _peers(options: argparse.Namespace) -> tuple[str, ...]:
    if peers := _named_peers(options):
        return peers
    if options.namespaces:
        return BETWEEN_HOSTS if options.ranks_per_host == 1 else ON_HOSTS_OF_SEVERAL
    return LIBRARIES if options.quick else ON_A_HOST


def _suite(options: argparse.Namespace) -> Suite:
    suite = QUICK if options.quick else FULL if options.full else STANDARD
    if options.operations:
        chosen = options.operations.split(",")
        known = [*OPERATIONS, *STEPS]
        unknown = set(chosen) - set(known)
        if unknown:
            raise SystemExit(f"no operation {', '.join(unknown)}; there are {', '.join(known)}")
        kinds = tuple(name for name in chosen if name in STEPS)
        suite = replace(
            suite,
            operations=tuple(name for name in chosen if name not in STEPS),
            steps=replace(suite.steps, kinds=kinds),
        )
    by_ranks = dict(suite.sizes)
    if options.ranks:
        if min(options.ranks) < 2:
            raise SystemExit("--ranks: there is nothing to measure with 1 rank")
        longest = max(by_ranks.values(), key=len)
        by_ranks = {count: by_ranks.get(count, longest) for count in options.ranks}
        suite = replace(suite, steps=replace(suite.steps, ranks=tuple(options.ranks)))
    if options.sizes:
        by_ranks = dict.fromkeys(by_ranks, tuple(options.sizes))
    if options.ranks_per_host < 1 or any(n % options.ranks_per_host for n in by_ranks):
        raise SystemExit("--ranks-per-host: a number that divides all of --ranks")
    passes = suite.passes if options.passes is None else options.passes
    if passes < 1:
        raise SystemExit(f"--passes must be at least 1, not {passes}")
    return replace(suite, sizes=by_ranks, passes=passes)


def _run(suite: Suite, peers: Sequence[str], output: Path, options: argparse.Namespace) -> int:
    from rich.console import Console

    from benchmarks.hosts import NoNamespacesError
    from benchmarks.processes import RankFailedError, exit_on_sigterm
    from benchmarks.results import save
    from benchmarks.run import run
    from benchmarks.table import print_report

    console = Console()
    if busy(describe()):
        console.print(
            "[yellow]== the machine is busy with something else; these figures will be too[/]"
        )
    if not console.is_terminal:
        console = Console(width=14 + 26 * (len(peers) + 2))  # a file has room for every peer
    others = []
    if options.with_mpi:
        from benchmarks.mpi import mpi_peers

        others = mpi_peers(console.print)
    exit_on_sigterm()
    try:
        report = run(
            suite,
            peers,
            others,
            pinned=options.pin,
            apart=options.namespaces,
            ranks_per_host=options.ranks_per_host,
            rate=options.rate,
            congestion=options.congestion,
            progress=lambda line: console.print(f"== {line}"),
        )
    except (RankFailedError, NoNamespacesError) as error:
        print(error, file=sys.stderr)
        return 1
    print_report(report, console)
    save(report, output)
    console.print(f"== results: {output}")
    return 0


def _arrival(options: argparse.Namespace) -> int:
    from benchmarks.arrival import cases, page, results
    from benchmarks.arrival.run import PEERS as USUAL
    from benchmarks.arrival.run import run
    from benchmarks.processes import RankFailedError, exit_on_sigterm

    suite = cases.QUICK if options.quick else cases.STANDARD
    kinds = options.patterns.split(",") if options.patterns else cases.KINDS
    if unknown := set(kinds) - set(cases.KINDS):
        raise SystemExit(f"no pattern {', '.join(unknown)}; there are {', '.join(cases.KINDS)}")
    blocks = [
        replace(block, sizes=tuple(options.sizes or block.sizes))
        for block in suite.blocks
        if block.kind in kinds
        and (not options.operation or block.operation == options.operation)
        and (not options.ranks or block.ranks in options.ranks)
    ]
    suite = replace(suite, blocks=tuple(blocks))
    peers = _named_peers(options) or USUAL
    others = []
    if options.with_mpi:
        from benchmarks.mpi import MpiJobs
        from benchmarks.mpi_environment import mpi_environment

        others = [MpiJobs(mpi_environment("openmpi", print))]
    exit_on_sigterm()
    try:
        report = run(suite, peers, others, lambda line: print(f"== {line}", flush=True))
    except RankFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return _published(
        options, ARRIVAL_PAGE, partial(results.save, report), partial(page.render, report)
    )


def _starting(options: argparse.Namespace) -> int:
    from benchmarks.processes import RankFailedError, exit_on_sigterm
    from benchmarks.starting import page
    from benchmarks.starting.run import LIBRARIES as USUAL
    from benchmarks.starting.run import run

    libraries = tuple(options.libraries.split(",")) if options.libraries else USUAL
    if unknown := set(libraries) - set(USUAL):
        raise SystemExit(f"no library {', '.join(unknown)}; there are {', '.join(USUAL)}")
    if options.repeats < 1:
        raise SystemExit(f"--repeats must be at least 1, not {options.repeats}")
    exit_on_sigterm()
    try:
        report = run(
            options.ranks, options.repeats, libraries, lambda line: print(f"== {line}", flush=True)
        )
    except RankFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return _published(
        options, STARTING_PAGE, partial(page.save, report), partial(page.render, report)
    )


def _published(
    options: argparse.Namespace,
    page: Path,
    save: Callable[[Path], None],
    render: Callable[[str], str],
) -> int:
    """Write the results; with --page beside ``page``, which is written, too, else show its text."""
    output: Path = page.with_suffix(".json") if options.page else options.output
    save(output)
    text = render(output.name)
    if options.page:
        page.write_text(text, encoding="utf-8")
    else:
        print(text)
    print(f"== results: {output}")
    return 0


def _page(results: Path) -> int:
    from benchmarks.goals import where_of
    from benchmarks.page import render, render_tables
    from benchmarks.plots import draw
    from benchmarks.results import load, save

    report = load(results)
    page = PAGES[where_of(report)]
    figures = page.with_suffix("")
    own = figures / "results.json"
    if results.resolve() != own.resolve():
        save(report, own)  # the page links to what it was made of
    draw(report, figures)
    page.write_text(render(report, figures.name), encoding="utf-8")
    (figures / "tables.md").write_text(render_tables(report), encoding="utf-8")
    print(f"== page: {page.relative_to(ROOT)}")
    return 0


def _micro(rest: Sequence[str]) -> int:
    import pytest

    folder = ROOT / "benchmarks" / "micro"
    return int(pytest.main(["-c", str(folder / "pytest.ini"), *rest, str(folder)]))
