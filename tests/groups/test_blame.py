"""Whom an error about a timeout names."""

from __future__ import annotations

from aiodist.groups.blame import who_keeps_it


def test_those_that_are_not_there_with_what_they_finished_last() -> None:
    said = who_keeps_it({1: "barrier(), operation 3", 4: ""}, [])
    assert said == (
        "ranks 1, 4 did not enter it or cannot answer (last finished: rank 1 barrier(), operation 3)"
    )


def test_those_it_waits_for_where_all_are_there() -> None:
    assert who_keeps_it({}, [2]) == "all ranks are in it, still waiting for rank 2"


def test_nobody_where_it_is_only_slow() -> None:
    assert "it needs more time" in who_keeps_it({}, [])
