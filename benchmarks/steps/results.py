"""From the samples of all ranks to what a step took, and what of it was communication."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aiodist.bench.measure import Samples
from benchmarks.stats import Summary, summarize
from benchmarks.steps.cases import ALONE, AVERAGED, FLOOR, GLOO, StepCase


@dataclass(frozen=True)
class StepResult:
    """A step's times. ``communication``: a step less the same round's silent one."""

    case: StepCase
    steps: dict[str, Summary]
    """By the names of `TURNS`: "floor" only where it could run."""
    communication: dict[str, Summary]

    def ratio(self, name: str) -> float:
        """The step's median over Gloo's."""
        return self.steps[name].median / self.steps[GLOO].median

    def communication_ratio(self, name: str) -> float | None:
        """The same of communication; None where it was not measured, or Gloo's took no time."""
        theirs = self.communication[GLOO].median
        if theirs <= 0 or name not in self.communication:
            return None
        return self.communication[name].median / theirs


def step_result(case: StepCase, by_rank: Sequence[Samples]) -> StepResult:
    """A step takes as long as its slowest rank's."""
    times = {
        name: [
            max(end - start for start, end in intervals) / 1e3
            for intervals in zip(*(samples.intervals[name] for samples in by_rank), strict=True)
        ]
        for name in by_rank[0].intervals
    }
    communication = {
        name: summarize([a - b for a, b in zip(times[name], times[ALONE], strict=True)])
        for name in AVERAGED
        if name in times
    }
    return StepResult(case, {n: summarize(each) for n, each in times.items()}, communication)


def flat(result: StepResult) -> dict[str, Any]:
    """As JSON can hold it; `result_of` is the reverse."""
    return dataclasses.asdict(result)


def result_of(entry: dict[str, Any]) -> StepResult:
    """What `flat` has made."""
    steps, communication = (
        {name: Summary(**fields) for name, fields in entry[key].items()}
        for key in ("steps", "communication")
    )
    return StepResult(StepCase.of(entry["case"]), steps, communication)


def step_rows(result: StepResult) -> Iterator[tuple[str, Summary, float | None]]:
    """What is shown: (row's name, times, ratio to Gloo's)."""
    for name in result.communication:
        ratio = None if name == GLOO else result.ratio(name)
        yield f"step, {_LABELS.get(name, name)}", result.steps[name], ratio
    yield "step without communication", result.steps[ALONE], None
    for name, summary in result.communication.items():
        ratio = None if name == GLOO else result.communication_ratio(name)
        yield f"communication, {_LABELS.get(name, name)}", summary, ratio


_LABELS = MappingProxyType({FLOOR: "no library"})
