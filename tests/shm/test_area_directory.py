"""The list of a segment's areas: states, entries used anew, and what finds none free."""

from __future__ import annotations

from aiodist.shm.area_directory import BUCKETS, END, KEPT, MAX_ENTRIES, AreaDirectory, AreaState
from aiodist.shm.group_area import AreaShape

SHAPE = AreaShape(64 << 10, 2)


def listing() -> tuple[AreaDirectory, AreaDirectory]:
    """Its owner's, and another rank's view of the same memory."""
    head = memoryview(bytearray(8 * END)).cast("Q")
    return AreaDirectory(head), AreaDirectory(head)


def test_peers_read_the_entries_of_the_owner() -> None:
    own, other = listing()
    assert other.state(5) is None
    own.add(5, 8 * 4096, SHAPE)
    own.add(6, 0, AreaShape(0, 0))
    for state, change in (
        (AreaState.OPEN, None),
        (AreaState.CLOSED, own.close),
        (AreaState.OVER, own.end),
    ):
        if change is not None:
            change(5)
        assert other.state(5) == state
        assert other.room(5) == (8 * 4096, SHAPE)
    assert other.room(6) is None
    assert other.state(6) == AreaState.OPEN


def test_entries_that_are_over_are_used_anew_the_oldest_first() -> None:
    own, other = listing()
    for area in range(1, 10 * MAX_ENTRIES):
        assert own.add(area, 4096, SHAPE)
        own.close(area)
        own.end(area)
        assert other.state(area) == AreaState.OVER
        if area > KEPT + 1:
            assert other.state(area - KEPT) == AreaState.OVER
            assert other.state(area - KEPT - 1) is None
    assert not any(other.refuses(area) for area in range(BUCKETS))


def test_a_refused_area_stays_refused_and_others_use_freed_entries() -> None:
    own, other = listing()
    assert all(own.add(area, 4096, SHAPE) for area in range(1, MAX_ENTRIES + 1))
    refused = MAX_ENTRIES + 1
    assert not other.refuses(refused)
    assert not own.add(refused, 4096, SHAPE)
    for area in range(1, KEPT + 10):
        own.end(area)
    for area in (refused, refused + BUCKETS):
        assert other.refuses(area)
        assert not own.add(area, 4096, SHAPE), "others may have read that it is refused"
        assert other.state(area) is None
    assert not other.refuses(refused + 1)
    assert own.add(refused + 1, 4096, SHAPE)
    assert other.state(refused + 1) == AreaState.OPEN


def test_a_listed_area_stays_listed_when_its_bucket_is_shut() -> None:
    own, other = listing()
    assert all(own.add(area, 4096, SHAPE) for area in range(1, MAX_ENTRIES + 1))
    assert not own.add(7 + BUCKETS, 4096, SHAPE)
    assert other.refuses(7)
    assert other.state(7) == AreaState.OPEN
    assert other.room(7) == (4096, SHAPE)


def test_every_bucket_is_one_of_its_own() -> None:
    own, other = listing()
    assert all(own.add(BUCKETS * (area + 1), 4096, SHAPE) for area in range(MAX_ENTRIES))
    for area in range(1, BUCKETS):
        assert not other.refuses(area)
        assert not own.add(area, 4096, SHAPE)
        assert other.refuses(area)
    assert not other.refuses(0)
    assert other.state(BUCKETS) == AreaState.OPEN
