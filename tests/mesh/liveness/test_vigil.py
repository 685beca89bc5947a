"""Silence and its limits, on a clock of the test's own."""

from __future__ import annotations

from aiodist.mesh.liveness.vigil import Vigil


def looks(vigil: Vigil, start: float, end: float, heard: int | None = None) -> dict[int, float]:
    """When each rank was first found silent, looking once a second; ``heard`` beats each time."""
    found: dict[int, float] = {}
    now = start
    while now <= end:
        for rank in vigil.silent(now):
            found.setdefault(rank, now)
        if heard is not None:
            vigil.heard(heard, now)
        now += 1
    return found


def test_only_a_silent_rank_is_found_within_the_timeout() -> None:
    vigil = Vigil(10, 1, 0)
    vigil.watch(3, 0.5)
    vigil.watch(4, 0.5)
    found = looks(vigil, 1, 100, heard=4)
    assert found.keys() == {3}
    assert 0.5 + 9 <= found[3] <= 0.5 + 10


def test_a_watch_that_is_repeated_gives_no_more_time() -> None:
    vigil = Vigil(10, 1, 0)
    vigil.watch(3, 0)
    looks(vigil, 1, 8)
    vigil.watch(3, 8)
    assert looks(vigil, 9, 20)[3] <= 10


def test_an_end_that_the_kernel_reports_shortens_the_time_and_a_beat_restores_it() -> None:
    vigil = Vigil(10, 1, 0)
    vigil.watch(3, 0)
    vigil.hurry(3, 0.25)
    assert vigil.silent(0.2) == []
    assert vigil.silent(0.25) == [3]
    vigil.heard(3, 0.3)
    assert vigil.silent(1) == []
    vigil.hurry(3, 100)
    assert 3 in looks(vigil, 2, 12)


def test_a_rank_that_could_not_look_blames_no_peer() -> None:
    """Stopped for a minute: the others' beats lie in the sockets, unread."""
    vigil = Vigil(10, 1, 0)
    vigil.watch(3, 0)
    vigil.watch(4, 0)
    looks(vigil, 1, 5)
    assert vigil.silent(65) == []
    vigil.heard(3, 65)
    found = looks(vigil, 66, 80, heard=3)
    assert found.keys() == {4}
    assert found[4] <= 65 + 10


def test_the_released_are_not_found() -> None:
    vigil = Vigil(10, 1, 0)
    vigil.watch(3, 0)
    vigil.release(3)
    vigil.release(5)
    vigil.heard(5, 0)
    vigil.hurry(5, 0)
    assert 3 not in vigil
    assert looks(vigil, 1, 50) == {}
