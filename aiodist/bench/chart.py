"""Times of a call as a table with bars, for a terminal or a file, and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiodist.bench.cases import Case, size_text
from aiodist.bench.peers import LABELS
from aiodist.bench.times import Timing
from aiodist.launch.quantities import time_text

BAR = 24
"""Characters of the longest bar; bars of one size are to one scale."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLOURS = MappingProxyType(
    {
        "gloo": "#7f7f7f",
        "async": "#1f77b4",
        "blocking": "#d62728",
        "async-tcp": "#7fb3dc",
        "blocking-tcp": "#f09d9d",
    }
)


@dataclass(frozen=True)
class Row:
    """What one library did in one case."""

    case: Case
    peer: str
    timing: Timing


def table(
    rows: Sequence[Row], against: str | None, *, blocks: bool, columns: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table for each operation.

    ``against``: the library that ratios are to, or None. ``blocks``: draw bars of block characters,
    else of ``#``. ``columns``: the width of the terminal, which limits the bars; None for a file.
    """
    for operation in dict.fromkeys(row.case.operation for row in rows):
        mine = [row for row in rows if row.case.operation == operation]
        ratio = f"{'to ' + LABELS[against]:>8}" if against else ""
        yield f"{operation}, {mine[0].case.ranks} ranks"
        head = f"{'bytes':>10}  {'library':<22}  {'median':>8}  {'mean':>8}  {'p99':>8}  {ratio}"
        room = BAR if columns is None else min(BAR, columns - len(f"{head}  "))
        yield head
        for case in dict.fromkeys(row.case for row in mine):
            yield from _of_case([row for row in mine if row.case == case], against, blocks, room)
        yield ""


def _of_case(rows: Sequence[Row], against: str | None, blocks: bool, room: int) -> Iterator[str]:
    longest = max(row.timing.median for row in rows)
    base = next((row.timing.median for row in rows if row.peer == against), None)
    size = size_text(rows[0].case.nbytes) if rows[0].case.nbytes else ""
    for number, row in enumerate(rows):
        times = row.timing.median, row.timing.mean, row.timing.p99
        ratio = f"{row.timing.median / base:>8.2f}" if base else " " * 8 * bool(against)
        figures = "  ".join(f"{time_text(time):>8}" for time in times)
        drawn = bar(row.timing.median / longest, blocks=blocks, width=room) if room > 0 else ""
        first = size if number == 0 else ""
        yield f"{first:>10}  {LABELS[row.peer]:<22}  {figures}  {ratio}  {drawn}".rstrip()


def bar(share: float, *, blocks: bool, width: int = BAR) -> str:
    """Return a bar of ``share`` of ``width`` characters; a share above 0 shows."""
    if not blocks:
        return "#" * max(1, round(share * width))
    eighths = max(1, round(share * width * 8))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write a figure for each operation that has sizes, as SVG: time over bytes. Needs matplotlib."""
    from matplotlib.figure import Figure

    sized: Mapping[str, list[Row]] = {
        name: [row for row in rows if row.case.operation == name]
        for name in dict.fromkeys(row.case.operation for row in rows if row.case.nbytes)
    }
    figure = Figure(figsize=(5.2 * max(1, len(sized)), 4.2), layout="constrained")
    grid: Any = figure.subplots(1, max(1, len(sized)), squeeze=False)
    for axes, (name, mine) in zip(grid[0], sized.items(), strict=False):
        for peer in dict.fromkeys(row.peer for row in mine):
            points = [(row.case.nbytes, row.timing) for row in mine if row.peer == peer]
            sizes = [nbytes for nbytes, _ in points]
            medians = [timing.median for _, timing in points]
            colour = _COLOURS[peer]
            axes.plot(sizes, medians, marker="o", markersize=4, color=colour, label=LABELS[peer])
            axes.fill_between(
                sizes, medians, [timing.p99 for _, timing in points], color=colour, alpha=0.12
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"{name}, {mine[0].case.ranks} ranks", fontsize=10)
        axes.set_xlabel("bytes")
        axes.set_ylabel("time of a call in us (median, and up to the 99th percentile)", fontsize=8)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, format="svg")
