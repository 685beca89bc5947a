"""The page's section about goals: what is asked, what was measured, what the machine can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from aiodist.bench.cases import size_text
from benchmarks.goals import (
    FLOOR_AT,
    MET,
    MET_SO_FAR,
    MISSED,
    UNMEASURED,
    Goal,
    Worst,
    goals,
    where_of,
)
from benchmarks.peers import label
from benchmarks.results import Report
from benchmarks.table import NOTHING, markdown_row, ratio_text
from benchmarks.targets import FOUR_HOSTS, HOST, NETWORK, StepTarget

_PROGRAMS = MappingProxyType(
    {
        HOST: "Python processes, rings of chunks in memory that all of them map, numpy's copy and add, "
        "flags that are polled; no check of arguments, no event loop, no failure handled",
        NETWORK: "Python processes, one TCP connection, from the tensors' memory and into it, numpy's "
        "add as parts come in; no check of arguments, no event loop, no header, no failure handled",
        FOUR_HOSTS: "Python processes, a TCP connection between any two of different hosts, memory that "
        "the two of a host map; the rest as between two hosts",
    }
)
"""What is called no library, by where a run was."""


FLOOR_SHARED = "floor-shared"


def goal_words(report: Report) -> str:
    """How to read the table, and its sum."""
    found = list(goals(report))
    counts = Counter(goal.verdict for goal in found)
    total = ", ".join(
        f"{counts[verdict]} {verdict}"
        for verdict in (MET, MET_SO_FAR, MISSED, UNMEASURED)
        if counts[verdict]
    )
    text = (
        "A goal is a ratio of medians in this run, and what counts is the worst of its sizes and "
        f"APIs. Of {len(found)} goals: {total}."
    )
    where = where_of(report)
    floor = FLOOR_AT[where]
    if where == HOST:
        text += " Those between hosts are measured by `make bench-network`."
    if floor in report.peers:
        beyond = sum(goal.out_of_reach for goal in found)
        text += (
            f' "{label(floor).capitalize()}" is the same ratio, in the same case, of a program '
            f"that only does the work: {_PROGRAMS[where]}. "
            "Its results are checked like all others. Where it misses a "
            "goal too, the goal is out of the reach of a library in Python on this machine, by "
            f"this experiment: {beyond or 'none'} of those missed. If such a goal is missed within "
            "reach elsewhere, a second row shows the worst such place."
        )
    if FLOOR_SHARED in report.peers:
        text += (
            f' "{label(FLOOR_SHARED).capitalize()}" adds half and copies half of tensors that lie '
            "in shared memory beforehand, which a caller's do not."
        )
    return text


def goal_rows(report: Report) -> Iterator[str]:
    """The table, a row for each goal."""
    head = [
        "goal",
        "relative to",
        "at most",
        "measured",
        "where",
        label(FLOOR_AT[where_of(report)]),
        "",
    ]
    yield markdown_row(head)
    yield markdown_row(["---", "---", "---:", "---:", "---", "---:", "---"])
    for goal in goals(report):
        yield _row(goal, goal.worst, _verdict(goal))
        if goal.within_reach is not None:
            yield _row(goal, goal.within_reach, MISSED)


def _row(goal: Goal, worst: Worst | None, verdict: str) -> str:
    target = goal.target
    return markdown_row(
        [
            _what(goal),
            label(target.against),
            f"{target.limit:g}",
            ratio_text(worst.ratio) if worst else NOTHING,
            _where(worst) if worst else NOTHING,
            ratio_text(worst.floor) if worst else NOTHING,
            verdict,
        ]
    )


def _what(goal: Goal) -> str:
    target = goal.target
    if isinstance(target, StepTarget):
        return f"communication of {target.kind}, {target.ranks} ranks, {target.model.name}"
    apis = " and ".join(label(peer).removeprefix("aiodist, ") for peer in target.peers)
    parts = [target.operation, f"{target.ranks} ranks"]
    if target.sizes is None:
        parts += [] if target.operation == "barrier" else ["every size"]
    elif len(target.sizes) > 2:
        parts.append(f"{size_text(target.sizes[0])} to {size_text(target.sizes[-1])}")
    else:
        parts.append(" and ".join(map(size_text, target.sizes)))
    return f"{', '.join(parts)} ({apis})"


def _where(worst: Worst) -> str:
    if worst.case is None:
        return NOTHING
    size = [size_text(worst.case.nbytes)] if worst.case.nbytes else []
    return ", ".join([*size, label(worst.peer).removeprefix("aiodist, ")])


def _verdict(goal: Goal) -> str:
    if goal.out_of_reach:
        return f"{MISSED}; out of reach here"
    if goal.worst is not None and goal.missing:
        return f"{goal.verdict}; figures are missing at {', '.join(map(size_text, goal.missing))}"
    return goal.verdict
