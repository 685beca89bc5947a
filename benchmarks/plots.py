"""Time over bytes, both logarithmic: a figure for each number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers import label
from benchmarks.results import Report

COLOURS = {
    "gloo": "#7f7f7f",
    "async": "#1f77b4",
    "blocking": "#d62728",
    "async-tcp": "#7fb3dc",
    "blocking-tcp": "#f09d9d",
    "floor": "#000000",
    "floor-shared": "#8c564b",
    "openmpi": "#2ca02c",
    "mpich": "#9467bd",
    "openmpi-aiodist": "#bcbd22",
    "mpich-aiodist": "#ff7f0e",
}
_COLUMNS = 3


def figure_name(ranks: int) -> str:
    """The file of the figure for so many ranks."""
    return f"{ranks}-ranks.svg"


def draw(report: Report, folder: Path) -> list[Path]:
    """Write the figures as SVG into ``folder``. The same report gives the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aiodist"
    folder.mkdir(parents=True, exist_ok=True)
    return [_figure(report, ranks, folder / figure_name(ranks)) for ranks in plotted(report)]


def plotted(report: Report) -> list[int]:
    """Rank counts with something to draw: an operation that has sizes."""
    return [ranks for ranks in report.rank_counts() if _sized(report, ranks)]


def _figure(report: Report, ranks: int, path: Path) -> Path:
    from matplotlib.figure import Figure

    operations = _sized(report, ranks)
    rows = -(-len(operations) // _COLUMNS)
    figure = Figure(
        figsize=(4.2 * min(_COLUMNS, len(operations)), 3.4 * rows), layout="constrained"
    )
    grid = figure.subplots(rows, min(_COLUMNS, len(operations)), squeeze=False)
    places = list(grid.flat)
    for axes, operation in zip(places, operations, strict=False):
        _lines(axes, report, ranks, operation)
    for axes in places[len(operations) :]:
        axes.set_axis_off()
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _lines(axes: Any, report: Report, ranks: int, operation: str) -> None:
    rows = report.rows(ranks, operation)
    for peer in report.peers:
        points = [
            (case.nbytes, result.summary)
            for case, row in rows
            if (result := row.get(peer)) is not None and result.summary is not None
        ]
        if not points:
            continue
        sizes = [nbytes for nbytes, _ in points]
        colour = COLOURS.get(peer)
        (line,) = axes.plot(
            sizes,
            [summary.median for _, summary in points],
            marker="o",
            markersize=3,
            linewidth=1.2,
            color=colour,
            label=label(peer),
        )
        axes.fill_between(
            sizes,
            [summary.p10 for _, summary in points],
            [summary.p90 for _, summary in points],
            color=line.get_color(),
            alpha=0.12,
            linewidth=0,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(f"{operation}, {ranks} ranks", fontsize=10)
    axes.set_xlabel("bytes")
    axes.set_ylabel("time in us (median, 10th to 90th percentile)", fontsize=7)
    axes.grid(True, which="major", alpha=0.3)


def _sized(report: Report, ranks: int) -> list[str]:
    return [
        operation
        for operation in report.operations(ranks)
        if any(case.nbytes for case, _ in report.rows(ranks, operation))
    ]
