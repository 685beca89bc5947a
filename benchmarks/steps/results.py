"""From the samples of all ranks to what a step took, and what of it was communication."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Samples
from benchmarks.stats import Summary, summarize
from benchmarks.steps.cases import ALONE, BACKENDS, GLOO, StepCase


@dataclass(frozen=True)
class StepResult:
    """A step's times. ``communication`` per backend: step less the same round's silent one."""

    case: StepCase
    steps: dict[str, Summary]
    """For each backend, and "alone" for the step whose gradients go nowhere."""
    communication: dict[str, Summary]

    def ratio(self, backend: str) -> float:
        """The step's median over Gloo's."""
        return self.steps[backend].median / self.steps[GLOO].median

    def communication_ratio(self, backend: str) -> float | None:
        """The same of communication; None where Gloo's has no time to speak of."""
        theirs = self.communication[GLOO].median
        return self.communication[backend].median / theirs if theirs > 0 else None


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
        for name in BACKENDS
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
    for backend in BACKENDS:
        ratio = None if backend == GLOO else result.ratio(backend)
        yield f"step, {backend}", result.steps[backend], ratio
    yield "step without communication", result.steps[ALONE], None
    for backend in BACKENDS:
        ratio = None if backend == GLOO else result.communication_ratio(backend)
        yield f"communication, {backend}", result.communication[backend], ratio
