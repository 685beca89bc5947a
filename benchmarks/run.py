"""A whole run: every block of a suite over all peers, merged into a report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from aiodist.bench.cases import Case
from aiodist.bench.measure import Repetitions, Samples
from aiodist.bench.times import combine
from benchmarks import machine
from benchmarks.cases import Suite
from benchmarks.hosts import namespaces
from benchmarks.peers import ON_A_HOST
from benchmarks.processes import Ranks
from benchmarks.results import Report, Result, in_order
from benchmarks.stats import summarize
from benchmarks.steps.results import step_result

Row = dict[str, Result]


class Blocks(Protocol):
    """A peer in a job of its own, which measures a block of cases at a time."""

    name: str
    version: str
    peers: tuple[str, ...]
    """Those that share its job and take turns in it."""

    def measure(
        self, ranks: int, cases: Sequence[Case], effort: Repetitions, pinned: bool
    ) -> list[list[Samples]]:
        """For each case what each rank saw."""
        ...


class Gathered:
    """Times and refusals of all peers, which come in one pass or several."""

    def __init__(self) -> None:
        self._times: dict[tuple[Case, str], list[float]] = {}
        self._unsupported: dict[tuple[Case, str], str] = {}

    def add(self, case: Case, by_rank: Sequence[Samples]) -> None:
        """Take in what each rank saw of ``case``."""
        for peer in by_rank[0].intervals:
            times = combine(case, [samples.intervals[peer] for samples in by_rank])
            self._times.setdefault((case, peer), []).extend(times)
        for peer, reason in by_rank[0].unsupported.items():
            self._unsupported[case, peer] = reason

    def results(self) -> list[Result]:
        """A result for each case and peer."""
        found = [
            Result(case, peer, summarize(times)) for (case, peer), times in self._times.items()
        ]
        return found + [
            Result(case, peer, None, reason) for (case, peer), reason in self._unsupported.items()
        ]


def run(
    suite: Suite,
    peers: Sequence[str] = ON_A_HOST,
    others: Sequence[Blocks] = (),
    *,
    pinned: bool = False,
    apart: bool = False,
    ranks_per_host: int = 1,
    rate: str | None = None,
    congestion: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measure all cases of ``suite``.

    ``apart``: the ranks on hosts, made of network namespaces, ``ranks_per_host`` on each; no steps
    then. ``rate``: what each host may send at, in tc's words. ``congestion``: TCP's congestion
    control there.

    ``peers`` share their processes and take turns call by call. ``others`` have jobs of their
    own, for each block (all sizes of one operation).

    A pass goes over all blocks, and over the jobs of each, the next one backwards: where the system
    happened to put a process, and what else it was busy with, decides about one of them alone.
    """
    before = machine.describe()
    began = time.monotonic()
    passes = suite.passes
    effort = Repetitions(
        suite.budget / passes, -(-suite.fewest // passes), max(1, suite.most // passes)
    )
    alone = dataclasses.replace(effort, budget=effort.budget / len(peers))
    gathered = Gathered()
    for number in range(passes):
        turn: Callable[[list[Any]], Iterable[Any]] = reversed if number % 2 else iter
        for ranks in turn(list(suite.sizes) if suite.operations else []):
            with (
                namespaces(ranks // ranks_per_host, rate, congestion)
                if apart
                else nullcontext(()) as hosts,
                Ranks(
                    ranks,
                    peers,
                    pinned=pinned,
                    hosts=[host for host in hosts for _ in range(ranks_per_host)],
                ) as job,
            ):
                for _, operation, cases in turn([b for b in suite.blocks() if b[0] == ranks]):
                    jobs = [
                        partial(_ours, job, cases, effort, gathered),
                        *(
                            partial(_theirs, other, ranks, cases, alone, pinned, gathered)
                            for other in others
                        ),
                    ]
                    for measure in turn(jobs):
                        measure()
                    spent = time.monotonic() - began
                    progress(
                        f"{ranks} ranks, {operation}: {len(cases)} sizes, pass {number + 1} of "
                        f"{passes}, {spent:.0f} s so far"
                    )
    steps = []
    bounds = Repetitions(suite.steps.budget, suite.steps.fewest, suite.steps.most)
    for ranks, group in groupby(() if apart else suite.steps.cases(), lambda step: step.ranks):
        with Ranks(ranks, (), pinned=pinned) as job:
            for step in group:
                steps.append(step_result(step, job.measure(step, bounds)))
                progress(f"{step}: {time.monotonic() - began:.0f} s so far")
    names = (*peers, *(peer for other in others for peer in other.peers))
    inside = "each rank" if ranks_per_host == 1 else f"each {ranks_per_host} ranks"
    veth = f"veth{f' at {rate}' if rate else ''}, {inside} in a network namespace"
    settings: dict[str, Any] = {
        "suite": suite.name,
        "effort": dataclasses.asdict(effort),
        "jobs": passes,
        "seconds": round(time.monotonic() - began),
        "interface": veth if apart else "lo",
        "ranks_per_host": ranks_per_host,
        "congestion": congestion if apart else None,
        "pinned": pinned,
    }
    before["versions"].update({other.name: other.version for other in others})
    results = in_order(gathered.results(), names)
    return Report(before, settings, names, results, tuple(steps))


def _ours(job: Ranks, cases: Sequence[Case], effort: Repetitions, gathered: Gathered) -> None:
    for case in cases:
        gathered.add(case, job.measure(case, effort))


def _theirs(
    other: Blocks,
    ranks: int,
    cases: Sequence[Case],
    effort: Repetitions,
    pinned: bool,
    gathered: Gathered,
) -> None:
    for case, by_rank in zip(cases, other.measure(ranks, cases, effort, pinned), strict=True):
        gathered.add(case, by_rank)
