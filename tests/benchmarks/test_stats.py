"""From samples to figures."""

from __future__ import annotations

import pytest

from aiodist.bench.cases import Case
from aiodist.bench.times import WrongOrderError, clock_name, combine
from benchmarks.stats import Summary, summarize

CASE = Case("all_reduce", 2, 4)


def test_a_repetition_takes_as_long_as_its_slowest_rank() -> None:
    first, second = [(0, 3000), (10_000, 12_000)], [(1000, 3000), (9000, 14_000)]

    assert combine(CASE, [first, second]) == [3.0, 5.0]


def test_a_message_takes_half_of_the_round_trip_that_rank_0_sees() -> None:
    assert combine(Case("send_recv", 2, 4), [[(0, 8000)], [(0, 99_000)]]) == [4.0]


def test_ranks_with_different_numbers_of_repetitions_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers"):
        combine(CASE, [[(0, 1)], []])


def test_a_rank_may_not_leave_a_barrier_before_another_comes() -> None:
    case = Case("barrier", 2, 0)

    assert combine(case, [[(0, 2000)], [(1000, 3000)]]) == [2.0]
    with pytest.raises(WrongOrderError, match="repetition 1"):
        combine(case, [[(0, 2000), (10, 20)], [(1000, 3000), (21, 30)]])


def test_barriers_of_hosts_with_other_clocks_are_checked_within_each_host() -> None:
    case = Case("barrier", 3, 0)
    here, there = [(0, 2000)], [(9_000_000, 9_003_000)]
    assert combine(case, [here, here, there], ["a", "a", "b"]) == [3.0]
    with pytest.raises(WrongOrderError, match="repetition 0"):
        combine(case, [here, [(2001, 4000)], there], ["a", "a", "b"])
    assert clock_name() == clock_name() != ""


def test_a_summary_has_median_and_percentiles() -> None:
    times = [float(time) for time in range(100)] + [10_100.0]

    assert summarize(times[::-1]) == Summary(
        median=50.0, p10=10.0, p90=90.0, p99=99.0, mean=149.01, repetitions=101
    )


def test_one_time_is_its_own_summary() -> None:
    assert summarize([2.5]) == Summary(2.5, 2.5, 2.5, 1, 2.5, 2.5)


def test_no_time_has_no_summary() -> None:
    with pytest.raises(ValueError, match="no times"):
        summarize([])
