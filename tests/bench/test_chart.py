"""Times as a table with bars."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from aiodist.bench.cases import Case
from aiodist.bench.chart import BAR, Row, bar, draw, table
from aiodist.bench.times import Timing, timing


def row(nbytes: int, peer: str, median: float) -> Row:
    return Row(Case("all_reduce", 2, nbytes), peer, Timing(median, median * 1.5, median * 9, 40))


def test_a_table_has_ratios_to_the_other_library_and_bars_to_one_scale() -> None:
    rows = [row(4, "gloo", 100.0), row(4, "async", 50.0), row(1 << 20, "gloo", 3000.0)]
    title, head, first, second, third, _ = table(rows, "gloo", blocks=False)
    assert title == "all_reduce, 2 ranks"
    assert head.split() == ["bytes", "library", "median", "mean", "p99", "to", "Gloo"]
    assert first.split()[:3] == ["4", "B", "Gloo"]
    assert first.endswith(f"1.00  {'#' * BAR}")
    assert second.split() == [
        "aiodist,", "async", "50.0", "us", "75.0", "us", "450", "us", "0.50", "#" * (BAR // 2),
    ]  # fmt: skip
    assert third.split()[:5] == ["1", "MiB", "Gloo", "3.00", "ms"]
    alone = list(table(rows, None, blocks=True))
    assert "Gloo  " not in alone[1]
    assert alone[2].endswith("█" * BAR)


@pytest.mark.parametrize("against", ["gloo", None])
@pytest.mark.parametrize("columns", [200, 80, 60])
def test_bars_are_as_long_as_the_terminal_has_room_for_them(
    columns: int, against: str | None
) -> None:
    head, line = list(table([row(4, "gloo", 100.0)], against, blocks=False, columns=columns))[1:3]
    assert line.count("#") == max(0, min(BAR, columns - len(head) - 2))
    assert len(line) <= max(columns, len(head))


@pytest.mark.parametrize(("share", "text"), [(1.0, "████"), (0.5, "██"), (0.53, "██▏"), (0.0, "▏")])
def test_a_bar_has_eighths_of_a_character(share: float, text: str) -> None:
    assert bar(share, blocks=True, width=4) == text


def test_a_figure_is_an_svg_whatever_its_file_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = MagicMock()  # matplotlib itself takes a second to import
    monkeypatch.setitem(sys.modules, "matplotlib", drawing)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", drawing)
    draw([row(4, "gloo", 100.0)], Path("figure.txt"), "here")
    drawing.Figure.return_value.savefig.assert_called_once_with(Path("figure.txt"), format="svg")


def test_a_timing_has_median_mean_and_p99() -> None:
    found = timing([1.0] * 98 + [2.0, 101.0])
    assert (found.median, found.mean, found.calls) == (1.0, 2.01, 100)
    assert 2.0 < found.p99 < 101.0
