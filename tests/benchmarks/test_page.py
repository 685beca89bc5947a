"""From results to table, page and figures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from aiodist.bench.cases import Case
from benchmarks.cli import (
    FOUR_HOSTS_PAGE,
    FOUR_HOSTS_RESULTS,
    NETWORK_PAGE,
    NETWORK_RESULTS,
    PAGE,
    RESULTS,
)
from benchmarks.machine import describe
from benchmarks.page import render, render_tables
from benchmarks.plots import draw
from benchmarks.results import Report, Result, in_order, load, save
from benchmarks.stats import Summary
from benchmarks.table import NOTHING, print_report, ratio_text, time_text

PEERS = ("gloo", "async", "mpich")
SMALL, LARGE, BARRIER = (
    Case("all_reduce", 2, 4),
    Case("all_reduce", 2, 1 << 20),
    Case("barrier", 2, 0),
)


@pytest.fixture
def report() -> Report:
    machine = describe()
    settings = {
        "suite": "quick",
        "effort": {"budget": 0.2, "fewest": 3, "most": 50},
        "jobs": 1,
        "seconds": 4,
        "interface": "lo",
        "pinned": False,
    }
    results = [
        Result(LARGE, "async", Summary(500.0, 450.0, 1200.0, 9, 1300.0, 600.0)),
        Result(LARGE, "gloo", Summary(1000.0, 900.0, 1100.0, 9, 1150.0, 1001.0)),
        Result(SMALL, "gloo", Summary(200.0, 150.0, 250.0, 9, 280.0, 201.0)),
        Result(SMALL, "async", Summary(50.0, 45.5, 60.0, 9, 1000.0, 70.0)),
        Result(SMALL, "mpich", None, "not here"),
        Result(BARRIER, "gloo", Summary(100.0, 90.0, 110.0, 9, 120.0, 100.0)),
    ]
    return Report(machine, settings, PEERS, in_order(results, PEERS))


def test_results_come_back_from_their_file(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    save(report, path)

    assert load(path) == report
    assert len(json.loads(path.read_text())["results"]) == len(report.results)


def test_a_file_of_another_format_is_refused(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save(report, path)
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))

    with pytest.raises(ValueError, match="measure again"):
        load(path)


def test_the_page_shows_times_ratios_and_what_is_missing(report: Report) -> None:
    page = render_tables(report)

    theirs = "200 us<br><sub>150 to 250 us, mean 201 us, p99 280 us</sub>"
    ours = "50.0 us (0.25)<br><sub>45.5 to 60.0 us, mean 70.0 us, p99 1.00 ms</sub>"
    assert f"| 4 B | {theirs} | {ours} | {NOTHING} |" in page
    assert "| 500 us (0.50)<br><sub>450 us to 1.20 ms, mean 600 us, p99 1.30 ms</sub> |" in page
    assert f"| all_reduce | 0.25 to 0.50 | {NOTHING} |" in page
    assert "MPICH: not here." in page
    assert "![Time over bytes, 2 ranks](2-ranks.svg)" in page


def test_the_page_names_the_machine_and_the_versions(report: Report) -> None:
    page = render_tables(report)

    for fact in (report.machine["cpu"], report.machine["python"], report.machine["date"]):
        assert f" {fact} " in page.replace(",", " ")
    assert f"commit {report.machine['aiodist']['commit']}" in page
    assert f"torch {report.machine['versions']['torch']}" in page


def test_the_page_says_how_often_all_cases_were_gone_over(report: Report) -> None:
    again = replace(report, settings=report.settings | {"jobs": 3})

    assert "3 passes" in render_tables(again)
    assert "passes" not in render_tables(report)
    assert "MPI needs jobs" not in render_tables(again)
    assert "MPI needs jobs" in render_tables(
        replace(again, peers=("gloo", "mpich", "mpich-aiodist"))
    )


def test_the_first_page_has_a_figure_and_the_first_numbers(report: Report) -> None:
    page = render(report)

    assert "![Time over bytes, 2 ranks](performance/2-ranks.svg)" in page
    assert "| all_reduce, 4 B | 200 us | 50.0 us (0.25) |" in page
    assert "| all_reduce, 1 MiB | 1.00 ms | 500 us (0.50) |" in page
    assert "(performance/tables.md)" in page


def test_the_terminal_shows_the_same(report: Report) -> None:
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))

    assert "50.0 us 0.25" in out.getvalue()
    assert "barrier, 2 ranks" in out.getvalue()


@pytest.mark.usefixtures("fonts")
def test_the_same_results_give_the_same_figures(report: Report, tmp_path: Path) -> None:
    (first,) = draw(report, tmp_path / "a")
    (second,) = draw(report, tmp_path / "b")

    assert first.read_bytes() == second.read_bytes()
    assert b"all_reduce, 2 ranks" in first.read_bytes()


@pytest.mark.parametrize(
    ("page", "results"),
    [(PAGE, RESULTS), (NETWORK_PAGE, NETWORK_RESULTS), (FOUR_HOSTS_PAGE, FOUR_HOSTS_RESULTS)],
    ids=["host", "network", "four hosts"],
)
def test_the_committed_page_equals_the_page_of_the_committed_results(
    page: Path, results: Path
) -> None:
    assert page.exists() == results.exists()
    if results.exists():
        text = render(load(results), results.parent.name)
        assert page.read_text(encoding="utf-8") == text
        tables = results.parent / "tables.md"
        assert tables.read_text(encoding="utf-8") == render_tables(load(results))


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (9.127, "9.13 us"),
        (9.999, "10.0 us"),
        (214.4, "214 us"),
        (999.9, "1.00 ms"),
        (2.5e6, "2.50 s"),
        (-3382.0, "-3.38 ms"),
    ],
)
def test_times_have_three_digits(microseconds: float, text: str) -> None:
    assert time_text(microseconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0004, "<0.001"),
        (0.0034, "0.003"),
        (0.0512, "0.05"),
        (1.5, "1.50"),
        (4.26, "4.3"),
        (12.4, "12"),
    ],
)
def test_ratios_read_well(ratio: float, text: str) -> None:
    assert ratio_text(ratio) == text
