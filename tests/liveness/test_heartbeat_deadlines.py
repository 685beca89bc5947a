"""Silence and its limits, on a clock of the test's own."""

from __future__ import annotations

from aiodist.liveness.heartbeat_deadlines import HeartbeatDeadlines


def looks(
    deadlines: HeartbeatDeadlines, start: float, end: float, heard: int | None = None
) -> dict[int, float]:
    """When each rank was first found silent, looking once a second; ``heard`` beats each time."""
    found: dict[int, float] = {}
    now = start
    while now <= end:
        for rank in deadlines.silent(now):
            found.setdefault(rank, now)
        if heard is not None:
            deadlines.heard(heard, now)
        now += 1
    return found


def test_only_a_silent_rank_is_found_within_the_timeout() -> None:
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 0.5)
    deadlines.watch(4, 0.5)
    found = looks(deadlines, 1, 100, heard=4)
    assert found.keys() == {3}
    assert 0.5 + 9 <= found[3] <= 0.5 + 10


def test_a_watch_that_is_repeated_gives_no_more_time() -> None:
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 0)
    looks(deadlines, 1, 8)
    deadlines.watch(3, 8)
    assert looks(deadlines, 9, 20)[3] <= 10


def test_an_end_that_the_kernel_reports_shortens_the_time_and_a_beat_restores_it() -> None:
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 0)
    deadlines.shorten(3, 0.25)
    assert deadlines.silent(0.2) == []
    assert deadlines.silent(0.25) == [3]
    deadlines.heard(3, 0.3)
    assert deadlines.silent(1) == []
    deadlines.shorten(3, 100)
    assert 3 in looks(deadlines, 2, 12)


def test_a_rank_that_could_not_look_blames_no_peer() -> None:
    """Stopped for a minute: the others' beats lie in the sockets, unread."""
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 0)
    deadlines.watch(4, 0)
    looks(deadlines, 1, 5)
    assert deadlines.silent(65) == []
    deadlines.heard(3, 65)
    found = looks(deadlines, 66, 80, heard=3)
    assert found.keys() == {4}
    assert found[4] <= 65 + 10


def test_a_rank_that_is_watched_late_gets_no_more_time() -> None:
    """The table is made before the ranks meet, and some ranks may come minutes later."""
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 300)
    assert looks(deadlines, 300, 700)[3] <= 300 + 10


def test_the_released_are_not_found() -> None:
    deadlines = HeartbeatDeadlines(10, 1, 0)
    deadlines.watch(3, 0)
    deadlines.release(3)
    deadlines.release(5)
    deadlines.heard(5, 0)
    deadlines.shorten(5, 0)
    assert 3 not in deadlines
    assert looks(deadlines, 1, 50) == {}
