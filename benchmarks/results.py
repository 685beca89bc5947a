"""What a run found, and the JSON file that keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodist.bench.cases import OPERATIONS, Case
from benchmarks.peers import FLOORS
from benchmarks.report_file import read_report, write_report
from benchmarks.stats import Summary
from benchmarks.steps.results import StepResult, flat, result_of

FORMAT = 1


@dataclass(frozen=True)
class Result:
    """One peer in one case: its times, or why it has none."""

    case: Case
    peer: str
    summary: Summary | None
    unsupported: str = ""


@dataclass(frozen=True)
class Report:
    """All of a run. ``peers`` in the order in which tables show them; ratios are to the first."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    peers: tuple[str, ...]
    results: tuple[Result, ...]
    steps: tuple[StepResult, ...] = ()

    def rank_counts(self) -> list[int]:
        """How many ranks were used, ascending."""
        return sorted({result.case.ranks for result in self.results})

    def operations(self, ranks: int) -> list[str]:
        """The operations measured with so many ranks."""
        found = {result.case.operation for result in self.results if result.case.ranks == ranks}
        return [name for name in OPERATIONS if name in found]

    def rows(self, ranks: int, operation: str) -> list[tuple[Case, dict[str, Result]]]:
        """By size: the case, and what each peer did."""
        rows: dict[Case, dict[str, Result]] = {}
        for result in self.results:
            if result.case.ranks == ranks and result.case.operation == operation:
                rows.setdefault(result.case, {})[result.peer] = result
        return sorted(rows.items(), key=lambda row: row[0].nbytes)

    def shown(self, ranks: int, *operations: str) -> list[str]:
        """Peers to show for these operations: all, but for no library's without a figure."""
        measured = {
            result.peer
            for result in self.results
            if result.case.ranks == ranks and result.case.operation in operations and result.summary
        }
        return [peer for peer in self.peers if peer in measured or peer not in FLOORS]

    def ratio(self, row: dict[str, Result], peer: str, against: str = "") -> float | None:
        """The peer's median over that of ``against``; None where one of them is missing.

        ``against``: the first peer where it is not given.
        """
        mine, first = row.get(peer), row.get(against or self.peers[0])
        if mine is None or first is None or mine.summary is None or first.summary is None:
            return None
        return mine.summary.median / first.summary.median if first.summary.median else None


def save(report: Report, path: Path) -> None:
    """Write the JSON file of ``report``."""
    head = {"machine": report.machine, "settings": report.settings, "peers": report.peers}
    entries = {"results": map(_flat, report.results), "steps": map(flat, report.steps)}
    write_report(path, FORMAT, head, entries)


def load(path: Path) -> Report:
    """What `save` has written. ValueError for a file of another format."""
    data = read_report(path, FORMAT)
    results = tuple(_result(entry) for entry in data["results"])
    steps = tuple(result_of(entry) for entry in data.get("steps", ()))
    return Report(data["machine"], data["settings"], tuple(data["peers"]), results, steps)


def in_order(results: Iterable[Result], peers: Sequence[str]) -> tuple[Result, ...]:
    """By ranks, operation, size, peer."""

    def place(result: Result) -> tuple[int, int, int, int]:
        case = result.case
        return (
            case.ranks,
            OPERATIONS.index(case.operation),
            case.nbytes,
            peers.index(result.peer),
        )

    return tuple(sorted(results, key=place))


def _flat(result: Result) -> dict[str, Any]:
    flat = {**dataclasses.asdict(result.case), "peer": result.peer}
    if result.summary is None:
        return {**flat, "unsupported": result.unsupported}
    return {**flat, **dataclasses.asdict(result.summary)}


def _result(entry: dict[str, Any]) -> Result:
    case = Case(entry["operation"], entry["ranks"], entry["nbytes"])
    if "median" not in entry:
        return Result(case, entry["peer"], None, entry["unsupported"])
    fields = {field.name: entry[field.name] for field in dataclasses.fields(Summary)}
    return Result(case, entry["peer"], Summary(**fields))
