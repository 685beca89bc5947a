"""docs/performance/arrival.md, from the results alone: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.bench.cases import size_text
from aiodist.launch.quantities import time_text
from benchmarks.arrival.cases import BATCH, LATE, TIGHT, TIMED, TRAINING, WAIT, PatternCase
from benchmarks.arrival.goals import OWN_MEDIAN, PatternTarget, Standing, standings
from benchmarks.arrival.results import Figures, PatternReport
from benchmarks.arrival.wakeup import WakeUp
from benchmarks.machine import busy
from benchmarks.peers import label
from benchmarks.table import NOTHING, markdown_row, ratio_text

_WORDS = {
    LATE: (
        "A rank that is late",
        "The ranks meet at a barrier. One of them computes for the time in the first column, and the "
        "others call at once. Times are from the last rank in to the last rank out, on one clock. The "
        "ranks are late by turns.",
    ),
    TRAINING: (
        "Computation between calls",
        "Every rank computes for the time in the first column before each call, as in a training step. "
        "Times are from the last rank in to the last rank out.",
    ),
    BATCH: (
        "Calls in a row",
        "As the OSU benchmarks measure: several calls without a barrier between them. Times are the "
        "slowest rank's, divided by the number of calls; for send_recv, which is a ping-pong, half of "
        "that.",
    ),
    TIGHT: (
        "A tight loop",
        "Rows of 110 calls, each of which is timed. The first ten of a row warm up and do not count: the "
        "patterns above have such calls. Times are the slowest rank's.",
    ),
}


_GOALS = (
    "A goal is a ratio of medians where nothing else is said, and what counts is the worst of its sizes, "
    'operations and APIs. "No library" is the same ratio of a program that only does the work; it polls '
    "and never sleeps, and no operation of it fails. Where it misses a goal, too, the goal is out of the "
    "reach of a library here. If the goal is missed within reach elsewhere, a second row shows the worst "
    "such place."
)


def render(report: PatternReport, data: str) -> str:
    """Return the page as Markdown. ``data``: the JSON file beside it."""
    machine, seconds = report.machine, report.settings["seconds"]
    load = ", ".join(f"{each:.2f}" for each in machine["load_average"])
    warning = ""
    if report.settings["real_time"]:
        warning = "The processes had real-time priority, so that other work counts little."
    elif busy(machine):
        warning = "The machine was busy with other work, so only ratios within a row count."
    suite = " --quick" if report.settings["suite"] == "quick" else ""
    mpi = " --with-mpi" if "openmpi" in report.peers else ""
    first = "chrt --fifo 10 " if report.settings["real_time"] else ""
    parts = [
        "# Late ranks, computation between calls, calls in a row",
        f"Made by `{first}python -m benchmarks arrival{suite}{mpi} --page` out of [{data}]({data}) in "
        f"{seconds} s.",
        "A tight loop of calls shows a library at its best. Real jobs compute between calls, and their "
        "ranks arrive at different times. The slowest call of a step decides, so each row has the 90th "
        "and 99th percentile and the mean beside the median.",
        "Peers take turns in the same processes, several calls a turn; the first call of a turn does "
        'not count. Every result is checked. "One wake-up" is a rank that sleeps in a read of a pipe, '
        "and is woken by a byte: no library whose waiting rank sleeps is faster.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['python']}, "
        f"torch {machine['versions']['torch']}, commit {machine['aiodist']['commit']}, "
        f"{machine['date']}, load before the run {load}. {warning}".rstrip(),
    ]
    if goals := list(standings(report)):
        parts += ["## Goals", _GOALS, "\n".join(_goals(goals))]
    for kind, (title, words) in _WORDS.items():
        if rows := list(report.rows(kind)):
            parts += [f"## {title}", words, "\n".join(_table(report, kind, rows))]
    if rows := list(report.rows(WAIT)):
        parts += ["## A rank that waits", *_waits(report, rows)]
    return "\n\n".join(parts) + "\n"


def _goals(standings: Sequence[Standing]) -> Iterator[str]:
    heads = ["goal", "relative to", "at most", "measured", "where", "no library", ""]
    yield markdown_row(heads)
    yield markdown_row(["---", "---", "---:", "---:", "---", "---:", "---"])
    for each in standings:
        call = each.case.case
        api = label(each.peer).removeprefix("aiodist, ")
        yield markdown_row(
            [
                each.target.words,
                _against(each.target),
                f"{each.target.limit:g}",
                ratio_text(each.worst),
                f"{call.operation}, {size_text(call.nbytes)}, {api}",
                ratio_text(each.floor),
                each.verdict,
            ]
        )


def _against(target: PatternTarget) -> str:
    if target.against in ("", OWN_MEDIAN):
        return target.against or NOTHING
    return label(target.against)


def _table(
    report: PatternReport, kind: str, rows: Sequence[tuple[PatternCase, dict[str, Figures]]]
) -> Iterator[str]:
    first, wakes = report.peers[0], kind in TIMED
    heads = ["bytes", "time before"] if wakes else ["operation", "ranks", "bytes"]
    heads += ["library"]
    heads += ["median", "p90", "p99", "mean", f"to {label(first)}"]
    heads += ["wake-ups"] if wakes else []
    yield markdown_row(heads)
    words = ("operation", "library")
    yield markdown_row(["---" if head in words else "---:" for head in heads])
    for case, by_peer in rows:
        for peer in report.peers:
            if (figures := by_peer.get(peer)) is None:
                continue
            size = size_text(case.case.nbytes)
            before = time_text(case.pattern.seconds * 1e6) if case.pattern.seconds else "0"
            cells = [size, before] if wakes else [case.case.operation, str(case.case.ranks), size]
            cells.append(label(peer))
            cells += [
                time_text(each) for each in (figures.median, figures.p90, figures.p99, figures.mean)
            ]
            cells.append(_ratio(figures, by_peer.get(first)))
            cells += [_ratio(figures, by_peer.get(WakeUp.name))] if wakes else []
            yield markdown_row(cells)


def _waits(
    report: PatternReport, rows: Sequence[tuple[PatternCase, dict[str, Figures]]]
) -> Iterator[str]:
    for case, by_peer in rows:
        yield (
            f"One rank is late by {time_text(case.pattern.seconds * 1e6)}. A waiting rank uses this "
            "share of a core, all its threads together:"
        )
        lines = [markdown_row(["library", "share of a core"]), markdown_row(["---", "---:"])]
        lines += [
            markdown_row([label(peer), f"{by_peer[peer].median:.2f} %"])
            for peer in report.peers
            if peer in by_peer
        ]
        yield "\n".join(lines)


def _ratio(figures: Figures, against: Figures | None) -> str:
    return NOTHING if against is None else ratio_text(figures.median / against.median)
