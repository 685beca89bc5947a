"""The matrix covers what it says."""

from __future__ import annotations

from itertools import product

import pytest

from tests.operations.design import (
    DIMENSIONS,
    LENGTHS,
    MOVING,
    REDUCING,
    SIZES,
    cases,
    may_be,
    pairs_of,
    possible_pairs,
)
from tests.operations.programs import PROGRAMS


def test_every_pair_of_values_that_may_stand_together_does() -> None:
    covered = {pair for case in cases() for pair in pairs_of(case)}
    assert possible_pairs() - covered == set()


def test_pairs_are_left_out_only_where_no_case_could_have_them() -> None:
    """`possible_pairs` against the rule itself, pair by pair, for values that restrict others."""
    possible = possible_pairs()
    free = [MOVING[:1] + REDUCING[:1], SIZES[:1], ("one", "odd"), *DIMENSIONS[3:5], ("tcp",)]
    tried = map(type(cases()[0])._make, product(*free, *DIMENSIONS[6:]))
    found = {pair for case in tried if may_be(case) for pair in pairs_of(case)}
    assert found <= possible
    values = [set(values) for values in [*free, *DIMENSIONS[6:]]]
    assert {p for p in possible if p[1] in values[p[0]] and p[3] in values[p[2]]} <= found


def test_every_operation_runs_with_every_world_size_and_length() -> None:
    covered = {case[:3] for case in cases()}
    assert covered == set(product(MOVING + REDUCING, SIZES, LENGTHS))


def test_every_case_makes_sense_and_is_there_once() -> None:
    assert all(may_be(case) for case in cases())
    assert len(set(cases())) == len(cases())


@pytest.mark.parametrize("dimension", range(len(DIMENSIONS)))
def test_every_value_is_used_often(dimension: int) -> None:
    for value in DIMENSIONS[dimension]:
        assert sum(case[dimension] == value for case in cases()) >= 20, value


def test_there_is_a_program_for_every_operation() -> None:
    assert set(PROGRAMS) == set(MOVING + REDUCING)
