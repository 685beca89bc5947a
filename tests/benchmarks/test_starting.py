"""Starting many ranks: what is measured, and the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.starting.page import load, render, save
from benchmarks.starting.rank import ALONE, ASYNC, BLOCKING, Facts
from benchmarks.starting.run import Start, StartReport, StartResult, run
from tests.benchmarks.test_arrival import MACHINE

MIB = 1 << 20


def facts(**changed: int) -> Facts:
    usual = {"end": 0, "memory": MIB, "private": 0, "files": 3, "sockets": 1, "threads": 2}
    return Facts(**usual | changed, has_torch=False)


def test_a_result_is_of_the_largest_rank_and_the_median_start() -> None:
    starts = [
        Start(3.0, (facts(memory=5 * MIB), facts(files=9))),
        Start(1.0, (facts(threads=4), facts())),
        Start(2.0, (facts(), facts())),
    ]
    result = StartResult.of(ASYNC, 2, starts)

    assert (result.median, result.memory, result.files, result.threads) == (2.0, 5 * MIB, 9, 4)


def test_idle_is_of_all_ranks_and_of_the_quietest_start() -> None:
    idle = [dataclasses.replace(facts(), idle=share) for share in (0.001, 0.002, 0.01, 0.0)]

    assert (
        StartResult.of(ASYNC, 2, [Start(1.0, (*idle[2:],)), Start(1.0, (*idle[:2],))]).idle == 0.003
    )


def test_the_page_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    result = StartResult.of(ASYNC, 4, [Start(2.0, (facts(),))])
    report = StartReport(MACHINE, {"repeats": 1, "seconds": 3}, (result,))
    save(report, tmp_path / "starting.json")
    page = render(report, "starting.json")

    assert (
        "| 4 | aiodist, async | 2.00 s | 500 ms | 2.00 s | 1 MiB | 0 B | 3 | 1 | 2 | 0.00% | no |"
        in page
    )
    assert render(load(tmp_path / "starting.json"), "starting.json") == page


@pytest.mark.slow
def test_ranks_of_numpy_import_no_torch() -> None:
    report = run([2], 1, [ASYNC, BLOCKING, ALONE])

    for result in report.results:
        assert len(result.seconds) == 1
        assert result.seconds[0] > 0
        assert result.files > 0
        assert not result.has_torch
        assert (result.idle > 0) == (result.library != ALONE)
