"""What is taken never overlaps, and what comes back is one piece again."""

from __future__ import annotations

import random

from aiodist.alignment import LEAD
from aiodist.shm.page_allocator import PageAllocator

PAGE = 4096


def test_whole_pages_alone_are_given_out() -> None:
    for start, end in ((PAGE - 1, 5 * PAGE + LEAD + 7), (LEAD + 1, 5 * PAGE + LEAD)):
        room = PageAllocator(start, end)
        assert room.left == room.largest == 4 * PAGE
        assert room.take(1) == PAGE + LEAD
        assert room.left == 3 * PAGE
    assert PageAllocator(0, 5 * PAGE + LEAD - 1).left == 4 * PAGE
    assert PageAllocator(10, 20).largest == 0


def test_the_smallest_hole_that_suffices_is_used() -> None:
    room = PageAllocator(0, 10 * PAGE + LEAD)
    first, between, second = room.take(3 * PAGE), room.take(PAGE), room.take(2 * PAGE)
    room.give(first, 3 * PAGE)
    room.give(second, 2 * PAGE)
    assert (room.left, room.largest) == (9 * PAGE, 6 * PAGE)
    assert room.take(2 * PAGE) == first
    assert between == 3 * PAGE + LEAD


def test_everything_comes_back_in_one_piece_whatever_the_order() -> None:
    chance = random.Random(7)
    room = PageAllocator(0, 64 * PAGE + LEAD)
    held: list[tuple[int, int]] = []
    for _ in range(2000):
        pages = chance.randint(1, 9)
        if held and (chance.random() < 0.5 or room.largest < pages * PAGE):
            room.give(*held.pop(chance.randrange(len(held))))
        else:
            held.append((room.take(pages * PAGE), pages * PAGE))
        taken = sorted(held)
        ends = [start + nbytes for start, nbytes in taken]
        assert all(end <= start for end, (start, _) in zip(ends, taken[1:], strict=False))
        assert room.left == 64 * PAGE - sum(nbytes for _, nbytes in taken)
    for one in held:
        room.give(*one)
    assert room.largest == 64 * PAGE
