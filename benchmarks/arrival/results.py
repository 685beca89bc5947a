"""From the samples of all ranks to the figures of a case, and the JSON file that keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aiodist.bench.measure import Samples
from aiodist.bench.peers.measured_peer import Interval
from aiodist.bench.times import combine
from benchmarks.arrival.cases import BATCH, TIGHT, WAIT, WARM_CALLS, PatternCase
from benchmarks.report_file import read_report, write_report

FORMAT = 1


@dataclass(frozen=True)
class Figures:
    """Microseconds of one call, or the share of a core in percent for the pattern ``wait``."""

    median: float
    p90: float
    p99: float
    mean: float
    calls: int


@dataclass(frozen=True)
class PatternResult:
    """What one peer did in one case."""

    case: PatternCase
    peer: str
    figures: Figures


@dataclass(frozen=True)
class PatternReport:
    """All of a run. ``peers`` in the order of the tables; ratios are to the first."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    peers: tuple[str, ...]
    results: tuple[PatternResult, ...]

    def rows(self, kind: str) -> Iterator[tuple[PatternCase, dict[str, Figures]]]:
        """Yield each case of a kind, with the figures of each peer."""
        found: dict[PatternCase, dict[str, Figures]] = {}
        for result in self.results:
            if result.case.pattern.kind == kind:
                found.setdefault(result.case, {})[result.peer] = result.figures
        yield from found.items()


def results_of(case: PatternCase, by_rank: Sequence[Samples]) -> Iterator[PatternResult]:
    """Yield the result of each peer in ``case``."""
    for peer in by_rank[0].intervals:
        values = _values(case, [samples.intervals[peer] for samples in by_rank])
        yield PatternResult(case, peer, _figures(values))


def _values(case: PatternCase, by_rank: Sequence[Sequence[Interval]]) -> list[float]:
    """Return one figure for each call.

    It is the time from the last rank in to the last rank out. For a batch it is the mean of its calls,
    for a tight loop the time of each call that does not warm up, both by `combine`. For the pattern
    ``wait`` it is a waiting rank's share of a core.
    """
    pattern, calls = case.pattern, list(zip(*by_rank, strict=True))
    repeats = pattern.repeats
    if pattern.kind == BATCH:
        batches = [
            [(each[at][0], each[at + repeats - 1][1]) for at in range(0, len(each), repeats)]
            for each in by_rank
        ]
        return [time / repeats for time in combine(case.case, batches)]
    if pattern.kind == TIGHT:
        times = combine(case.case, by_rank)
        return [time for number, time in enumerate(times) if number % repeats >= WARM_CALLS]
    if pattern.kind == WAIT:  # the late rank's time begins after it has computed
        return [max(end - start for start, end in call) / 1e7 / pattern.seconds for call in calls]
    return [(max(end for _, end in call) - max(start for start, _ in call)) / 1e3 for call in calls]


def _figures(values: Sequence[float]) -> Figures:
    array = np.asarray(values)
    median, p90, p99 = (float(each) for each in np.percentile(array, [50, 90, 99]))
    digits = 3
    return Figures(
        round(median, digits),
        round(p90, digits),
        round(p99, digits),
        round(float(array.mean()), digits),
        len(values),
    )


def save(report: PatternReport, path: Path) -> None:
    """Write the JSON file of ``report``."""
    head = {"machine": report.machine, "settings": report.settings, "peers": report.peers}
    write_report(path, FORMAT, head, {"results": map(dataclasses.asdict, report.results)})


def load(path: Path) -> PatternReport:
    """Return what `save` has written. Raises ValueError for a file of another format."""
    data = read_report(path, FORMAT)
    results = tuple(
        PatternResult(PatternCase.of(each["case"]), each["peer"], Figures(**each["figures"]))
        for each in data["results"]
    )
    return PatternReport(data["machine"], data["settings"], tuple(data["peers"]), results)
