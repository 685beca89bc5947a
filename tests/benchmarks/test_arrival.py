"""Calls with a late rank, between computations and in batches: what is measured, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.bench.cases import Case
from aiodist.bench.measure import Samples
from aiodist.bench.pattern import WrongResultError, in_usual_pages
from benchmarks.arrival.calls import PatternCall
from benchmarks.arrival.cases import (
    BATCH,
    KINDS,
    LATE,
    QUICK,
    TIGHT,
    WAIT,
    WARM_CALLS,
    Block,
    Pattern,
    PatternCase,
)
from benchmarks.arrival.goals import standings
from benchmarks.arrival.page import render
from benchmarks.arrival.results import PatternReport, PatternResult, load, results_of, save
from benchmarks.arrival.run import run

LATE_RANK = PatternCase(Case("all_reduce", 2, 4), Pattern(LATE, 500e-6))
MACHINE = {
    "cpu": "a processor",
    "cores": 2,
    "system": "a system",
    "python": "a Python",
    "date": "a day",
    "load_average": [0.0, 0.0, 0.0],
    "versions": {"torch": "2"},
    "aiodist": {"commit": "a commit"},
}


def result_of(case: PatternCase, *by_rank: list[tuple[int, int]]) -> float:
    samples = [Samples({"gloo": intervals}) for intervals in by_rank]
    (found,) = results_of(case, samples)
    return found.figures.median


def test_the_time_of_a_late_rank_is_from_the_last_in_to_the_last_out() -> None:
    assert result_of(LATE_RANK, [(0, 530_000)], [(500_000, 520_000)]) == 30.0


def test_the_time_of_a_batch_is_the_slowest_ranks_for_one_call() -> None:
    case = replace(LATE_RANK, pattern=Pattern(BATCH, repeats=2))

    assert result_of(case, [(0, 10_000), (10_000, 40_000)], [(0, 30_000), (30_000, 35_000)]) == 20.0


def test_a_tight_loop_counts_each_call_that_does_not_warm_up() -> None:
    case = replace(LATE_RANK, pattern=Pattern(TIGHT, repeats=WARM_CALLS + 2))
    row = [*[(0, 900_000)] * WARM_CALLS, (900_000, 905_000), (905_000, 912_000)]
    (found,) = results_of(case, [Samples({"gloo": row * 2})] * 2)

    assert (found.figures.calls, found.figures.median, found.figures.mean) == (4, 6.0, 6.0)


def test_the_share_of_a_core_is_that_of_the_rank_that_waited() -> None:
    case = replace(LATE_RANK, pattern=Pattern(WAIT, seconds=1.0))

    assert result_of(case, [(1_000_000_000, 1_000_100_000)], [(0, 20_000_000)]) == 2.0


def test_a_batch_that_left_out_a_call_is_a_wrong_result() -> None:
    case = replace(LATE_RANK, pattern=Pattern(BATCH, repeats=3))
    call = PatternCall(case, 0, lambda count: (array := in_usual_pages(count), array))
    other = PatternCall(case, 1, lambda count: (array := in_usual_pages(count), array))
    for each in (call, other):
        each.write(0)
    call.target += other.target
    call.target *= 4  # the second and the third call
    call.check(0, "three calls")

    call.target *= 2
    with pytest.raises(WrongResultError, match="two ranks, or four calls"):
        call.check(0, "two ranks, or four calls")


def test_the_page_has_a_row_for_each_library_and_is_the_same_after_a_round_trip(
    tmp_path: Path,
) -> None:
    samples = Samples({"gloo": [(0, 400_000)], "wake-up": [(0, 50_000)]})
    found = tuple(results_of(LATE_RANK, [samples, samples]))
    report = PatternReport(
        MACHINE,
        {"suite": "quick", "seconds": 3, "real_time": False},
        ("gloo", "wake-up"),
        found,
    )
    save(report, tmp_path / "arrival.json")
    page = render(report, "arrival.json")

    assert "| 4 B | 500 us | Gloo | 400 us | 400 us | 400 us | 400 us | 1.00 | 8.0 |" in page
    assert render(load(tmp_path / "arrival.json"), "arrival.json") == page


def test_a_goal_is_met_by_the_worst_figure_or_missed_or_out_of_reach() -> None:
    def verdicts(ours: int, floor: int) -> list[str]:
        times = {"gloo": 1_000_000, "wake-up": 150_000, "async": 100_000}
        times |= {"blocking": ours, "floor": floor}
        samples = Samples({peer: [(0, time)] for peer, time in times.items()})
        found = tuple(results_of(LATE_RANK, [samples, samples]))
        report = PatternReport(MACHINE, {}, ("gloo", "wake-up"), found)
        return [each.verdict for each in standings(report)]

    assert verdicts(200_000, 50_000) == ["met", "met"]
    assert verdicts(210_000, 50_000) == ["missed", "met"]
    assert verdicts(240_000, 210_000) == ["missed; out of reach here", "missed"]


def test_a_miss_out_of_reach_hides_no_other_and_is_not_hidden() -> None:
    found: list[PatternResult] = []
    for nbytes, ours, floor in ((4, 300_000, 50_000), (65536, 400_000, 250_000)):
        case = replace(LATE_RANK, case=Case("all_reduce", 2, nbytes))
        times = {"gloo": 1_000_000, "async": ours, "floor": floor}
        samples = Samples({peer: [(0, time)] for peer, time in times.items()})
        found += results_of(case, [samples, samples])
    report = PatternReport(MACHINE, {}, ("gloo",), tuple(found))

    rows = [(each.worst, each.case.case.nbytes, each.verdict) for each in standings(report)]

    assert rows == [(0.4, 65536, "missed; out of reach here"), (0.3, 4, "missed")]


def test_the_goals_of_a_tight_loop_have_a_time_that_is_short_enough_and_tails() -> None:
    case = replace(LATE_RANK, pattern=Pattern(TIGHT, repeats=WARM_CALLS + 99))
    warm = [(0, 900_000)] * WARM_CALLS

    def verdicts(*calls: int) -> list[str]:
        row = [*warm, *((0, call) for call in calls)]
        samples = Samples({"gloo": row, "async": row, "openmpi": [*warm, *[(0, 1_000)] * 99]})
        report = PatternReport(MACHINE, {}, ("gloo",), tuple(results_of(case, [samples, samples])))
        return [each.verdict for each in standings(report)]

    assert verdicts(*[6_000] * 99) == ["met", "met", "met"]
    assert verdicts(*[6_001] * 99) == ["missed", "met", "met"]
    assert verdicts(*[5_000] * 95, *[16_000] * 4) == ["met", "missed", "met"]
    assert verdicts(*[5_000] * 98, 200_000) == ["met", "met", "missed"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ranks")
def test_a_run_measures_every_pattern() -> None:
    seconds = {LATE: (50e-6,), WAIT: (0.01,)}
    blocks = tuple(Block(kind, (4,)) for kind in KINDS)
    suite = replace(QUICK, blocks=blocks, seconds=seconds, budget=0.0, fewest=2)
    report = run(suite, ["floor", "wake-up"])

    kinds = {(each.case.pattern.kind, each.peer) for each in report.results}
    assert kinds == {(kind, "floor") for kind in KINDS} | {
        (LATE, "wake-up"),
        ("training", "wake-up"),
    }
