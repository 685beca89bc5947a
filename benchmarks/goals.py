"""Which goals a run has met: each of `benchmarks.targets` beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from aiodist.bench.cases import Case
from benchmarks.results import Report
from benchmarks.steps.cases import FLOOR, OURS
from benchmarks.targets import FOUR_HOSTS, HOST, NETWORK, TARGETS, StepTarget, Target

FLOOR_AT = MappingProxyType({HOST: "floor", NETWORK: "floor-tcp", FOUR_HOSTS: "floor-tcp"})
"""The program without any library, by where a run was."""

MET, MISSED, UNMEASURED = "met", "missed", "not measured"
MET_SO_FAR = "met where measured"


@dataclass(frozen=True)
class Worst:
    """The largest ratio of a goal, and where it was measured."""

    ratio: float
    peer: str
    case: Case | None
    """None of training steps."""
    floor: float | None
    """The ratio of a program without any library in the same case; None if it has no figure."""

    def is_out_of_reach(self, limit: float) -> bool:
        """Whether the program without any library misses ``limit`` here as well."""
        return self.floor is not None and self.floor > limit


@dataclass(frozen=True)
class Goal:
    """A target, and how a run stands to it."""

    target: Target | StepTarget
    worst: Worst | None
    missing: tuple[int, ...] = ()
    """Sizes of the target which the run has no figures for, from all of its peers."""
    within_reach: Worst | None = None
    """The worst place that misses it within reach, where ``worst`` is out of reach."""

    @property
    def verdict(self) -> str:
        """MET, MISSED, UNMEASURED, or MET_SO_FAR where figures for some sizes are missing."""
        if self.worst is None:
            return UNMEASURED
        if self.worst.ratio > self.target.limit:
            return MISSED
        return MET_SO_FAR if self.missing else MET

    @property
    def out_of_reach(self) -> bool:
        """Missed by the program without any library as well, at the place that is worst."""
        worst = self.worst
        return (
            self.verdict == MISSED
            and worst is not None
            and worst.is_out_of_reach(self.target.limit)
        )


def where_of(report: Report) -> str:
    """HOST, NETWORK or FOUR_HOSTS."""
    if "namespace" not in report.settings["interface"]:
        return HOST
    return NETWORK if report.settings.get("ranks_per_host", 1) == 1 else FOUR_HOSTS


def goals(report: Report) -> Iterator[Goal]:
    """All targets for where the run was: on one host, between two or between four."""
    where = where_of(report)
    for target in TARGETS:
        if target.where == where:
            yield _step(report, target) if isinstance(target, StepTarget) else _of(report, target)


def _of(report: Report, target: Target) -> Goal:
    found: list[Worst] = []
    complete, seen = set(), []
    for case, row in report.rows(target.ranks, target.operation):
        if target.sizes is not None and case.nbytes not in target.sizes:
            continue
        seen.append(case.nbytes)
        floor = report.ratio(row, FLOOR_AT[target.where], target.against)
        ratios = {peer: report.ratio(row, peer, target.against) for peer in target.peers}
        found += [
            Worst(ratio, peer, case, floor) for peer, ratio in ratios.items() if ratio is not None
        ]
        if None not in ratios.values():
            complete.add(case.nbytes)
    missing = tuple(size for size in target.sizes or seen if size not in complete)
    found.sort(key=lambda worst: worst.ratio, reverse=True)
    if not found:
        return Goal(target, None, missing)
    limit = target.limit
    hidden = None
    if found[0].is_out_of_reach(limit):
        reach = (each for each in found if each.ratio > limit and not each.is_out_of_reach(limit))
        hidden = next(reach, None)
    return Goal(target, found[0], missing, hidden)


def _step(report: Report, target: StepTarget) -> Goal:
    for result in report.steps:
        case = result.case
        if (case.kind, case.model, case.ranks) == (target.kind, target.model, target.ranks):
            ratio = result.communication_ratio(OURS)
            if ratio is not None:
                floor = result.communication_ratio(FLOOR)
                return Goal(target, Worst(ratio, OURS, None, floor))
    return Goal(target, None)
