"""The list of a segment's areas: states, entries used anew, and an end that stays one."""

from __future__ import annotations

from aiodist.shared.area import Shape
from aiodist.shared.listing import END, KEPT, MAX_ENTRIES, Listing, State

SHAPE = Shape(64 << 10, 2)


def listing() -> tuple[Listing, Listing]:
    """Its owner's, and another rank's view of the same memory."""
    head = memoryview(bytearray(8 * END)).cast("Q")
    return Listing(head), Listing(head)


def test_what_the_owner_says_is_what_others_read() -> None:
    own, other = listing()
    assert other.state(5) is None
    own.add(5, 8 * 4096, SHAPE)
    own.add(6, 0, Shape(0, 0))
    for state, change in ((State.OPEN, None), (State.CLOSED, own.close), (State.OVER, own.end)):
        if change is not None:
            change(5)
        assert other.state(5) == state
        assert other.room(5) == (8 * 4096, SHAPE)
    assert other.room(6) is None
    assert other.state(6) == State.OPEN


def test_entries_that_are_over_are_used_anew_the_oldest_first() -> None:
    own, other = listing()
    for area in range(1, 10 * MAX_ENTRIES):
        assert own.add(area, 4096, SHAPE)
        own.close(area)
        own.end(area)
        assert other.state(area) == State.OVER
        if area > KEPT + 1:
            assert other.state(area - KEPT) == State.OVER
            assert other.state(area - KEPT - 1) is None
    assert not own.is_full


def test_a_list_that_was_full_once_takes_nothing_more() -> None:
    own, other = listing()
    assert all(own.add(area, 4096, SHAPE) for area in range(1, MAX_ENTRIES + 1))
    assert not other.is_full
    assert not own.add(MAX_ENTRIES + 1, 4096, SHAPE)
    assert other.is_full
    for area in range(1, KEPT + 10):
        own.end(area)
    assert not own.add(MAX_ENTRIES + 2, 4096, SHAPE), "others may have read that it is full"
