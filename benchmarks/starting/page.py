"""docs/performance/starting.md and its JSON, from the results alone: no figure is typed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from aiodist.bench.cases import size_text
from aiodist.launch.quantities import time_text
from benchmarks.machine import busy
from benchmarks.peers import label
from benchmarks.report_file import read_report, write_report
from benchmarks.starting.rank import ALONE, IDLE, SETTLE
from benchmarks.starting.run import StartReport, StartResult
from benchmarks.table import markdown_row

FORMAT = 2

_HEADS = (
    "ranks",
    "library",
    "first all_reduce after",
    "a rank",
    "slowest start",
    "memory",
    "private",
    "descriptors",
    "sockets",
    "threads",
    "idle, together",
)


def render(report: StartReport, data: str) -> str:
    """Return the page as Markdown. ``data``: the JSON file beside it."""
    machine, settings = report.machine, report.settings
    load = ", ".join(f"{each:.2f}" for each in machine["load_average"])
    counts = sorted({result.ranks for result in report.results})
    ranks = ",".join(str(count) for count in counts)
    warning = " The machine was busy with other work." if busy(machine) else ""
    parts = [
        "# Starting many ranks",
        f"Made by `python -m benchmarks starting --ranks {ranks} --repeats {settings['repeats']} "
        f"--page` out of [{data}]({data}) in {settings['seconds']} s.",
        "All ranks are on one host. The time is from the command to the end of the last rank's first "
        "all_reduce of one number, which is checked: `aiodist run`, `torchrun` and `mpiexec` with "
        "their programs' imports, the meeting, and the connections. Libraries take turns. "
        f'"{_words(ALONE)}" are as many that import numpy and do nothing: no launcher is '
        "quicker.",
        "Memory, descriptors and threads are those of one rank after its first all_reduce and a "
        "barrier, of the rank that has most. Memory is the proportional share of what is resident. "
        "Only Gloo's ranks import torch, because Gloo has no other interface.",
        "The column for idle ranks says how much of one core all of them together use while they "
        f"wait in a barrier for rank 0, over {IDLE:.0f} s that begin {SETTLE:.0f} s after the call.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['python']}, "
        f"commit {machine['aiodist']['commit']}, {machine['date']}, load before the run {load}."
        f"{warning}",
        "\n".join(_table(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(report: StartReport) -> Iterator[str]:
    yield markdown_row([*_HEADS, "torch"])
    yield markdown_row(["---:", "---", *["---:"] * (len(_HEADS) - 2), "---"])
    for result in report.results:
        yield markdown_row(_cells(result))


def _cells(result: StartResult) -> list[str]:
    return [
        str(result.ranks),
        _words(result.library),
        time_text(result.median * 1e6),
        time_text(result.median / result.ranks * 1e6),
        time_text(max(result.seconds) * 1e6),
        size_text(result.memory >> 20 << 20),
        size_text(result.private >> 20 << 20),
        str(result.files),
        str(result.sockets),
        str(result.threads),
        "" if result.library == ALONE else f"{result.idle:.2%}",
        "yes" if result.has_torch else "no",
    ]


def _words(library: str) -> str:
    return "processes alone" if library == ALONE else label(library)


def save(report: StartReport, path: Path) -> None:
    """Write the JSON file of ``report``."""
    head = {"machine": report.machine, "settings": report.settings}
    write_report(path, FORMAT, head, {"results": map(dataclasses.asdict, report.results)})


def load(path: Path) -> StartReport:
    """Return what `save` has written. Raises ValueError for a file of another format."""
    data = read_report(path, FORMAT)
    results = tuple(
        StartResult(**each | {"seconds": tuple(each["seconds"])}) for each in data["results"]
    )
    return StartReport(data["machine"], data["settings"], results)
