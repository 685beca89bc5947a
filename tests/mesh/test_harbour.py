"""Who copies when: turns, sleep, and ends of lanes that are broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiodist.errors import ProtocolError
from aiodist.mesh.harbour import Harbour
from aiodist.mesh.lookout import Lookout

pytestmark = pytest.mark.usefixtures("steady_clock")


class FakeDock:
    """So many steps can be made, of so many that are to be made."""

    def __init__(self, can: int, must: int, *, owes: bool = True) -> None:
        self.can = can
        self.must = must
        self.owing = owes
        self.rests = 0
        self.near = 0  # how often it was asked
        self.error: BaseException | None = None
        self.lies = False
        self.on_near: Callable[[], None] | None = None

    @property
    def is_busy(self) -> bool:
        return self.must > 0

    @property
    def owes(self) -> bool:
        return self.owing and self.must > 0

    @property
    def is_near(self) -> bool:
        self.near += 1
        if self.on_near is not None:
            self.on_near()
        return True

    def step(self) -> bool:
        if self.lies:
            raise ProtocolError("lies")
        if not self.can:
            return False
        self.can -= 1
        self.must -= 1
        return True

    def rest(self) -> bool:
        self.rests += 1
        return not self.can

    def broken(self, error: BaseException) -> None:
        self.error = error


class Rank:
    def __init__(self, *, active: bool = False) -> None:
        self.soon: list[Callable[[], None]] = []
        self.lookout = Lookout(self.soon.append)
        self.lookout.active = active
        self.harbour = Harbour(None, self.lookout)

    def run_soon(self) -> int:
        calls, self.soon[:] = list(self.soon), []
        for call in calls:
            call()
        return len(calls)


def test_a_source_that_can_progress_does_so_at_once_and_is_dropped() -> None:
    rank = Rank()
    docks = [FakeDock(3, 3), FakeDock(5, 5)]
    for dock in docks:
        rank.harbour.enlist(dock)
        assert not dock.must
        assert dock.rests
    rests = [dock.rests for dock in docks]
    rank.harbour.work()
    assert [dock.rests for dock in docks] == rests
    assert not rank.soon


def test_a_dock_that_waits_sleeps_at_once_where_ranks_share_cores() -> None:
    rank = Rank()
    dock = FakeDock(2, 3)
    rank.harbour.enlist(dock)
    assert (dock.must, dock.rests, dock.near) == (1, 1, 0)
    dock.can = 1
    rank.harbour.work()
    assert not dock.must


def test_progress_spins_for_the_next_piece_where_each_rank_has_a_core() -> None:
    rank = Rank(active=True)
    dock = FakeDock(1, 2)

    def come() -> None:
        dock.can = 1

    dock.on_near = come  # while it looks
    rank.harbour.enlist(dock)
    assert not dock.must


def test_looking_ends() -> None:
    rank = Rank(active=True)
    dock = FakeDock(1, 2)
    rank.harbour.enlist(dock)
    assert dock.rests == 1
    assert dock.near > 1


def test_the_loop_gets_its_turn_in_the_middle() -> None:
    rank = Rank()
    dock = FakeDock(1 << 40, 1 << 40)
    rank.harbour.enlist(dock)
    first = dock.must
    assert dock.rests == 0
    assert rank.run_soon() == 1
    assert dock.must < first
    dock.must = dock.can = 1
    assert rank.run_soon() == 1
    assert not dock.must
    assert not rank.soon


def test_a_source_added_during_progress_makes_progress_too() -> None:
    rank = Rank()
    second = FakeDock(4, 4)

    class First(FakeDock):
        def step(self) -> bool:
            if self.can == 1:
                rank.harbour.enlist(second)
                assert second.must == 4  # not by recursion
            return super().step()

    rank.harbour.enlist(First(2, 2))
    assert not second.must


def test_a_dock_whose_other_end_lies_is_told_and_the_others_go_on() -> None:
    rank = Rank()
    bad, good = FakeDock(1, 1), FakeDock(3, 4)
    bad.lies = True
    rank.harbour.enlist(good)
    good.can = 1
    rank.harbour.enlist(bad)
    assert isinstance(bad.error, ProtocolError)
    assert not good.must


async def test_clear_waits_for_what_is_to_be_sent_and_for_nothing_else() -> None:
    rank = Rank()
    coming = FakeDock(0, 1, owes=False)
    rank.harbour.enlist(coming)
    await rank.harbour.clear(10)
    going = FakeDock(0, 1)
    rank.harbour.enlist(going)
    clearing = asyncio.ensure_future(rank.harbour.clear(10))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not clearing.done()
    going.can = 1
    rank.harbour.work()
    await clearing
    going.must = 1
    rank.harbour.enlist(going)
    await rank.harbour.clear(0.01)  # at most for so long
