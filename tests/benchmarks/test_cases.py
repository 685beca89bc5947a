"""Cases as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiodist.bench.cases import ITEMSIZE, MIB, OPERATIONS, SPLIT, size_text
from aiodist.bench.measure import MOST_CALLS, Repetitions
from benchmarks.cases import FULL, QUICK, STANDARD, Suite
from benchmarks.placement import cores_of


@pytest.mark.parametrize("suite", [QUICK, STANDARD, FULL], ids=lambda suite: suite.name)
def test_every_case_is_whole_elements_and_whole_parts(suite: Suite) -> None:
    cases = [case for _, _, block in suite.blocks() for case in block]

    assert len(set(cases)) == len(cases)
    for case in cases:
        assert case.nbytes == case.count * ITEMSIZE
        assert (case.nbytes == 0) == (case.operation == "barrier")
        assert case.operation not in SPLIT or case.count % case.ranks == 0


def test_the_standard_suite_covers_all_operations_ranks_and_sizes() -> None:
    cases = {case for _, _, block in STANDARD.blocks() for case in block}

    assert {case.operation for case in cases} == set(OPERATIONS)
    assert {case.ranks for case in cases} == {2, 4, 8}
    sizes = {case.nbytes for case in cases if case.operation == "all_reduce"}
    assert {min(sizes), max(sizes)} == {4, 256 * MIB}


def test_messages_between_two_ranks_are_measured_with_two() -> None:
    suite = replace(QUICK, operations=("send_recv",))

    assert {ranks for ranks, _, _ in suite.blocks()} == {2}


def test_effort_bounds_calls_and_rounds() -> None:
    effort = Repetitions(budget=1.0, fewest=3, most=50)

    assert [effort.rounds(seconds) for seconds in (0.0, 0.1, 10.0)] == [50, 10, 3]
    assert [effort.calls(seconds) for seconds in (0.0, 0.001, 10.0)] == [MOST_CALLS, 4, 1]


def test_ranks_share_the_cores_where_there_are_enough() -> None:
    assert [cores_of(rank, 2, [0, 1, 4, 5, 6]) for rank in range(2)] == [[0, 1], [4, 5]]
    assert [cores_of(rank, 4, [0, 1]) for rank in range(4)] == [[0], [0], [1], [1]]
    assert [cores_of(rank, 3, [0, 1]) for rank in range(3)] == [[0], [0], [1]]


def test_sizes_read_well() -> None:
    assert [size_text(n) for n in (4, 1000, 1024, 100 * MIB)] == [
        "4 B",
        "1000 B",
        "1 KiB",
        "100 MiB",
    ]
