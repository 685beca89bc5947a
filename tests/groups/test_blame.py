"""Whom an error names, and what it says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiodist.groups.blame import unread_in_words, who_keeps_it
from aiodist.groups.fingerprint import Fingerprint, differ_in_device_alone
from aiodist.tensors import dtype_named
from aiodist.wire.frames import COLLECTIVE, POINT_TO_POINT


def test_those_that_are_not_there_with_what_they_finished_last() -> None:
    said = who_keeps_it({1: "barrier(), operation 3", 4: ""}, [])
    assert said == (
        "ranks 1, 4 did not enter it or cannot answer (last finished: rank 1 barrier(), operation 3)"
    )


def test_those_it_waits_for_where_all_are_there() -> None:
    assert who_keeps_it({}, [2]) == "all ranks are in it, still waiting for rank 2"


def test_messages_that_nobody_has_asked_for() -> None:
    arrived = [((POINT_TO_POINT, 9, tag), 1) for tag in (7, 5)]
    others = [((POINT_TO_POINT, 8, 1), 1), ((COLLECTIVE, 9, 2), 1), ((POINT_TO_POINT, 9, 3), 2)]
    assert unread_in_words(others, 9, [1]) == ""
    said = unread_in_words([*arrived, *others], 9, [1])
    assert said == ", from where messages with tag 5, 7 have come that nobody has asked for"
    many = [((POINT_TO_POINT, 9, tag), 1) for tag in range(9)]
    assert "tag 0, 1, 2, 3, 4, ... have" in unread_in_words(many, 9, [1])


def test_nobody_where_it_is_only_slow() -> None:
    assert "it needs more time" in who_keeps_it({}, [])


CPU = Fingerprint("broadcast", dtype_named("float32"), root=0, count=4)


@pytest.mark.parametrize("here", [False, True])
def test_what_is_on_another_device_and_equal_else_is_told_apart(here: bool) -> None:
    one, other = replace(CPU, elsewhere=here), replace(CPU, elsewhere=not here)
    assert differ_in_device_alone(one.encoded, other.encoded)
    assert not differ_in_device_alone(one.encoded, one.encoded)
    for changed in ({"count": 5}, {"root": 1}, {"operation": "reduce"}):
        assert not differ_in_device_alone(one.encoded, replace(other, **changed).encoded)
    assert not differ_in_device_alone(one.encoded, other.encoded[:-1])
