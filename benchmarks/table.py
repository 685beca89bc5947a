"""Times and ratios as text, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from aiodist.bench.cases import size_text
from aiodist.launch.quantities import time_text
from benchmarks.peers import label
from benchmarks.results import Report, Result
from benchmarks.stats import Summary
from benchmarks.steps.results import StepResult, step_rows

OTHERS = "p10 to p90, mean, p99"
"""The figures beside a median."""

NOTHING = "–"  # noqa: RUF001  # an en dash: no figure here


def ratio_text(ratio: float | None) -> str:
    """``<0.001``, ``0.003``, ``0.31``, ``4.2``, ``12``."""
    if ratio is None:
        return NOTHING
    if ratio < 0.0005:
        return "<0.001"
    if ratio < 0.00995:
        return f"{ratio:.3f}"
    return f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def spread_text(result: Result | None) -> tuple[str, str]:
    """As `summary_text`; an en dash and an empty text where there is no figure."""
    if result is None or result.summary is None:
        return NOTHING, ""
    return summary_text(result.summary)


def summary_text(summary: Summary) -> tuple[str, str]:
    """(median, the other figures)."""
    low, high = time_text(summary.p10), time_text(summary.p90)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    others = f"mean {time_text(summary.mean)}, p99 {time_text(summary.p99)}"
    return time_text(summary.median), f"{low} to {high}, {others}"


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def print_report(report: Report, console: Console) -> None:
    """A table for each number of ranks and operation."""
    for ranks in report.rank_counts():
        for operation in report.operations(ranks):
            console.print(_table(report, ranks, operation))
    for step in report.steps:
        console.print(_steps(step))


def _table(report: Report, ranks: int, operation: str) -> Table:
    table = Table(
        title=f"{operation}, {ranks} ranks (median, ratio to {label(report.peers[0])}; {OTHERS})"
    )
    table.add_column("bytes", justify="right", no_wrap=True)
    peers = report.shown(ranks, operation)
    for peer in peers:
        table.add_column(label(peer), justify="right")
    for case, row in report.rows(ranks, operation):
        cells = [size_text(case.nbytes) if case.nbytes else ""]
        for peer in peers:
            median, spread = spread_text(row.get(peer))
            ratio = report.ratio(row, peer)
            if not spread:
                cells.append(median)
                continue
            colour = "" if ratio is None or peer == report.peers[0] else _colour(ratio)
            mark = f" [{colour}]{ratio_text(ratio)}[/]" if colour else ""
            cells.append(f"{median}{mark}\n[dim]{spread}[/]")
        table.add_row(*cells)
    return table


def _steps(result: StepResult) -> Table:
    table = Table(title=f"{result.case} (ratio to gloo)")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column(OTHERS, justify="right")
    table.add_column("ratio", justify="right")
    for name, summary, ratio in step_rows(result):
        colour = "" if ratio is None else _colour(ratio)
        mark = f"[{colour}]{ratio_text(ratio)}[/]" if colour else ""
        table.add_row(name, *summary_text(summary), mark)
    return table


def _colour(ratio: float) -> str:
    return "green" if ratio < 0.95 else "red" if ratio > 1.05 else "yellow"
