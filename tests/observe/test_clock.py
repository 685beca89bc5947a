"""Cristian's bound holds whatever the network does; times come to one clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodist.observe.clock import align, estimate
from aiodist.observe.rank_report import ClockSample
from tests.observe.made import NOW, SECOND, part

DELAYS = st.integers(0, 50_000_000)


@given(
    st.integers(-(1 << 62), 1 << 62), st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=12)
)
def test_the_error_of_the_estimate_is_within_its_bound(
    offset: int, ways: list[tuple[int, int]]
) -> None:
    now = 0
    delays = iter(ways)

    def clock() -> int:
        return now

    def ask() -> int:
        nonlocal now
        there, back = next(delays)
        now += there
        answer = now + offset
        now += back
        return answer

    sample = estimate(ask, clock, rounds=len(ways))
    assert abs(sample.offset - offset) <= sample.error
    assert sample.error <= (min(there + back for there, back in ways) + 1) // 2


def test_ranks_of_one_kernel_share_a_clock() -> None:
    aligned = align({0: part(0), 1: part(1)})
    assert aligned[1].common(123) == 123
    assert aligned[1].error == 0


def test_a_drifting_clock_is_followed_along_a_line() -> None:
    samples = [ClockSample(1000, 50, 3), ClockSample(2000, 70, 2)]
    first = part(0, samples=[ClockSample(0, 0, 0)])
    aligned = align({0: first, 1: part(1, samples=samples, clock=2500)})[1]
    assert [aligned.common(clock) for clock in (500, 1000, 1500, 2000, 2500)] == [
        550,
        1050,
        1560,
        2070,
        2580,
    ]
    assert aligned.error == 5  # 2, and half of both errors by which the slope may be wrong
    within = align({0: first, 1: part(1, samples=samples, clock=2000)})[1]
    assert within.error == 3


def test_without_an_estimate_the_calendar_has_to_do_and_the_error_is_unknown() -> None:
    there = part(1, host="there", clock=NOW + 7 * SECOND, wall=1002.0)
    aligned = align({0: part(0, wall=1000.0), 1: there})[1]
    assert aligned.common(there.clock) == NOW + 2 * SECOND
    assert aligned.error is None


def test_a_host_where_one_rank_has_an_estimate_lends_it_to_the_others() -> None:
    first = part(1, host="there", samples=[ClockSample(0, 99, 4)])
    aligned = align({1: first, 2: part(2, host="there")})
    assert aligned[2].common(1) == 100
    assert align({}) == {}
