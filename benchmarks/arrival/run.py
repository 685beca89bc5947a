"""A whole run: every case of a suite over all peers, merged into a report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from aiodist.bench.measure import Repetitions, Samples
from benchmarks import machine
from benchmarks.arrival.cases import PatternCase, PatternSuite
from benchmarks.arrival.results import PatternReport, PatternResult, results_of
from benchmarks.processes import Ranks

PEERS = ("gloo", "async", "blocking", "async-persistent", "blocking-persistent", "floor", "wake-up")
"""Those that share their processes and take turns."""


class PatternJob(Protocol):
    """A peer in a job of its own."""

    @property
    def name(self) -> str:
        """The peer's name."""
        ...

    @property
    def version(self) -> str:
        """The version of the library."""
        ...

    def measure_pattern(self, case: PatternCase, effort: Repetitions) -> list[Samples]:
        """Return what each rank saw of ``case``."""
        ...


def run(
    suite: PatternSuite,
    peers: Sequence[str] = PEERS,
    others: Sequence[PatternJob] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> PatternReport:
    """Measure all cases of ``suite``. Raises RankFailedError.

    ``others``: peers with jobs of their own, beside which a case is measured.
    """
    before, began = machine.describe(), time.monotonic()
    found: list[PatternResult] = []
    for ranks, cases in groupby(suite.cases(), lambda case: case.case.ranks):
        with Ranks(ranks, peers) as job:
            for case in cases:
                effort = suite.effort(case)
                found += results_of(case, job.measure(case, effort))
                alone = replace(effort, budget=effort.budget / len(peers))
                for other in others:
                    found += results_of(case, other.measure_pattern(case, alone))
                progress(f"{case}: {time.monotonic() - began:.0f} s so far")
    before["versions"].update({other.name: other.version for other in others})
    settings = {
        "suite": suite.name,
        "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        "seconds": round(time.monotonic() - began),
    }
    names = (*peers, *(other.name for other in others))
    return PatternReport(before, settings, names, tuple(found))
