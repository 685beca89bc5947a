"""A figure of the recipes: images per second of those that train."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plots import COLOURS
from benchmarks.recipes.plan import ALONE, EVALUATION, GLOO, OURS

FIGURE = "recipes.svg"


def draw(report: dict[str, Any], folder: Path) -> None:
    """Write `FIGURE` into ``folder``. The same report gives the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aiodist"
    from matplotlib.figure import Figure

    counts = report["settings"]["ranks"]
    figure = Figure(figsize=(9, 2.9 * len(counts)), layout="constrained")
    grid = figure.subplots(len(counts), 1, squeeze=False)
    alone = [row["images_per_second"] for row in report["rows"] if row["recipe"] == ALONE]
    for (axes,), ranks in zip(grid, counts, strict=True):
        rows = [
            row
            for row in report["rows"]
            if row["ranks"] == ranks and row["recipe"] != EVALUATION and row["images_per_second"]
        ]
        names = list(dict.fromkeys(row["recipe"] for row in rows))
        for offset, backend, colour in (
            (-0.2, OURS, COLOURS["async"]),
            (0.2, GLOO, COLOURS["gloo"]),
        ):
            rates = {
                place + offset: median(found)
                for place, name in enumerate(names)
                if (found := _rates(rows, name, backend))
            }
            if rates:
                axes.bar(list(rates), list(rates.values()), 0.38, color=colour, label=backend)
        if alone:
            axes.axhline(median(alone), color="black", linewidth=0.8, label="one process")
        labels = [name.replace(".py", "") for name in names]
        axes.set_xticks(range(len(names)), labels, fontsize=7, rotation=20, ha="right")
        axes.set_ylabel("images per second")
        axes.set_title(
            f"{ranks} {'rank' if ranks == 1 else 'ranks'} (median of passes)", fontsize=10
        )
    handles, labels = grid[-1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(folder / FIGURE, metadata={"Date": None, "Creator": None})


def _rates(rows: list[dict[str, Any]], name: str, backend: str) -> list[float]:
    return [
        row["images_per_second"]
        for row in rows
        if (row["recipe"], row["backend"]) == (name, backend)
    ]
