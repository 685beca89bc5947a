"""Pieces: in which order they are worked at, what overlaps, and whose memory is used again."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.collectives.pipeline import ReusedScratch, in_pieces
from aiodist.completion import Driver, Pending


class Run:
    """A pipeline whose exchanges end when they are told to; ``log`` has what was done."""

    def __init__(self, count: int, crosses: bool = True) -> None:
        self.log: list[str] = []
        self.travels: list[Pending[None]] = [Pending() for _ in range(count)]
        self.ended: list[BaseException | None] = []
        across = self.across if crosses else None
        body = in_pieces(count, self.before, across, self.after)
        Driver(body, lambda _, error: self.ended.append(error)).start()

    async def before(self, number: int) -> None:
        self.log.append(f"before {number}")

    async def across(self, number: int) -> None:
        self.log.append(f"across {number}")
        await self.travels[number]

    async def after(self, number: int) -> None:
        self.log.append(f"after {number}")

    def intra_host(self) -> list[str]:
        return [entry for entry in self.log if not entry.startswith("across")]


INSIDE = ["before 0", "before 1", "after 0", "before 2", "after 1", "after 2"]


def test_the_next_piece_is_worked_at_while_one_travels() -> None:
    run = Run(3)
    assert run.log == ["before 0", "across 0", "before 1"]
    run.travels[0].complete(None)
    assert run.log[3:] == ["across 1", "after 0", "before 2"], "what travels goes first"
    run.travels[1].complete(None)
    assert not run.ended
    run.travels[2].complete(None)
    assert run.intra_host() == INSIDE
    assert run.ended == [None]


def test_a_rank_that_does_not_cross_works_in_the_same_order() -> None:
    run = Run(3, crosses=False)
    assert run.log == INSIDE
    assert run.ended == [None]


def test_one_piece_goes_step_by_step() -> None:
    run = Run(1)
    assert run.log == ["before 0", "across 0"]
    run.travels[0].complete(None)
    assert run.log == ["before 0", "across 0", "after 0"]


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_between_the_hosts_ends_both_coroutines(count: int) -> None:
    run = Run(count)
    error = ValueError("lost")
    run.travels[0].fail(error)
    assert run.ended == [error]
    assert "after 0" not in run.log


def test_memory_is_used_for_one_piece_after_the_other() -> None:
    given: list[int] = []

    def scratch(nbytes: int) -> memoryview:
        given.append(nbytes)
        return memoryview(bytearray(nbytes))

    again = ReusedScratch(scratch)
    seen: list[Any] = []
    for lengths in ((10, 20), (9, 20), (9, 21, 5)):
        again.next_piece()
        views = [again(length) for length in lengths]
        assert [len(view) for view in views] == list(lengths)
        views[0][:2] = b"ab"
        assert bytes(views[1][:2]) != b"ab", "memory of one piece is separate"
        seen.append(views)
    assert given == [10, 20, 21, 5]
    assert seen[0][0].obj is seen[2][0].obj
