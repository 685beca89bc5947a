"""Room of a segment that comes back: of groups that all have left."""

from __future__ import annotations

import errno
import os

import pytest

from aiodist.shm import area_directory
from aiodist.shm.area_directory import MAX_ENTRIES
from aiodist.shm.group_area import GroupArea
from aiodist.shm.message_ring import MAX_BYTES as MAX_RING_BYTES
from aiodist.shm.shared_memory import DEFAULT_BYTES, MIN_BYTES, SharedMemory
from tests.shm.peers import peer_of
from tests.shm.test_segment import close, met

MIB = 1 << 20
BOTH = [0, 1]


def share(memories: list[SharedMemory], area: int) -> list[list[GroupArea]]:
    """Each one's view of the areas of all, which find room."""
    ranks = range(len(memories))
    for memory in memories:
        memory.allocate_area(area)
    found = []
    for memory in memories:
        areas = memory.find_areas(area, ranks)
        assert isinstance(areas, list), areas
        found.append(areas)
    return found


def test_ranks_of_high_numbers_share_memory() -> None:
    """As those of one host do in a job of thousands."""
    ranks = [4094, 4095]
    memories = {rank: SharedMemory.create(rank, MIB) for rank in ranks}
    told = {rank: memory.description for rank, memory in memories.items()}
    for memory in memories.values():
        memory.meet(told)
        memory.allocate_area(7)
    for memory in memories.values():
        assert memory.could_share(ranks)
        assert isinstance(memory.find_areas(7, ranks), list)
    close(list(memories.values()))


@pytest.mark.parametrize("pipes", [0, 1])
def test_memory_for_which_descriptors_are_missing_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, pipes: int
) -> None:
    """The segment and ``pipes`` doorbells find some."""
    left, make = [None] * pipes, os.pipe2

    def pipe2(flags: int) -> tuple[int, int]:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        left.pop()
        return make(flags)

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pipe2", pipe2)
    with pytest.raises(OSError, match="Too many open files"):
        SharedMemory.create(0, MIB)
    assert before.issuperset(os.listdir("/proc/self/fd"))  # the collector may close one of others


def test_the_room_of_more_groups_than_fit_and_than_can_be_listed_comes_back() -> None:
    memories = met(2, 2 * MIB)
    for number in range(1, MAX_ENTRIES + 100):
        share(memories, number)
        for memory in memories:
            memory.release_area(number, BOTH, all_listed=True)
    close(memories)


def test_sharing_comes_back_after_more_groups_at_once_than_can_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = 2 * area_directory.KEPT
    monkeypatch.setattr(area_directory, "MAX_ENTRIES", entries)
    memories = met(2, 2 * MIB)
    before = memories[0].pages.left
    many = range(1, entries + 50)
    for number in many:
        memories[0].allocate_area(number)
    for number in (1, *many[:0:-1]):  # in another order: each rank refuses others
        memories[1].allocate_area(number)
    told = [[memory.find_areas(number, BOTH) for memory in memories] for number in many]
    assert all(isinstance(first, str) == isinstance(second, str) for first, second in told)
    for order in (BOTH, BOTH[::-1]):
        why = [memories[0].find_areas(number, order) for number in many]
        assert f"rank {order[0]} had too many groups at once" in why
    assert isinstance(told[0][0], list)
    for memory in memories:
        for number, (first, _) in zip(many, told, strict=True):
            if isinstance(first, str):
                memory.never_shared(number)
            memory.release_area(number, BOTH, all_listed=isinstance(first, list))
    for number in range(many[-1] + 1, 5 * entries):
        share(memories, number)
        for memory in memories:
            memory.release_area(number, BOTH, all_listed=True)
    for memory in memories:
        memory.reclaim()
        assert memory.pages.left == before
    close(memories)


def test_no_area_is_freed_while_a_member_may_read_it() -> None:
    memories = met(2)
    before = memories[0].pages.left
    share(memories, 1)
    memories[0].release_area(1, BOTH, all_listed=True)
    memories[0].allocate_area(2)
    memories[0].allocate_area(3)
    kept = memories[0].pages.left
    assert isinstance(memories[1].find_areas(1, BOTH), list), (
        "a member that comes later still finds it"
    )
    memories[1].release_area(1, BOTH, all_listed=True)
    for number in (2, 3):
        memories[1].allocate_area(number)
        for memory in memories:
            memory.release_area(number, BOTH, all_listed=True)
    for memory in memories:
        memory.allocate_area(4)
        memory.release_area(4, BOTH, all_listed=False)
        memory.reclaim()
    memories[0].reclaim()
    assert kept < before
    assert memories[0].pages.left == memories[1].pages.left == before
    close(memories)


def test_groups_leave_room_for_rings() -> None:
    memories = met(3, DEFAULT_BYTES)
    memory, areas = memories[0], 0
    memory.allocate_area(areas)
    while isinstance(memory.find_areas(areas, [0]), list):
        areas += 1
        memory.allocate_area(areas)
    assert areas > 10
    rings = [memory.ring_writer_to(rank) for rank in (1, 2)]
    assert [ring.nbytes for ring in rings if ring is not None] == [MAX_RING_BYTES] * 2
    close(memories)


def test_the_smallest_segment_has_room_for_an_area_and_rings() -> None:
    memories = met(5, MIN_BYTES)
    share(memories, 1)
    assert memories[0].ring_writer_to(4) is not None
    close(memories)


def test_an_area_is_not_another_groups_while_one_of_its_members_reads() -> None:
    memories = met(2, 2 * MIB)
    (mine, _), (theirs, _) = share(memories, 1)
    mine.slots[0][:3] = b"one"
    memories[0].release_area(1, BOTH, all_listed=True)
    for number in range(2, 20):
        memories[0].allocate_area(number)
    for areas in (memories[0].find_areas(number, [0]) for number in range(2, 20)):
        for area in areas if isinstance(areas, list) else ():
            area.slots[0][:3] = b"new"
    assert theirs.slots[0][:3] == b"one"
    close(memories)


def test_room_that_comes_back_has_no_old_flags() -> None:
    memories = met(2)
    (mine, _), _ = share(memories, 1)
    mine.words[:] = memoryview(bytes([255]) * len(mine.words) * 8).cast("Q")
    for memory in memories:
        memory.release_area(1, BOTH, all_listed=True)
    memories[0].reclaim()
    (again, _), (seen, _) = share(memories, 2)
    again.slots[0][:1] = mine.slots[0][:1] = b"x"
    assert not any(again.words)
    assert not any(seen.words)
    again.words[0] = 9
    assert mine.words[0] == 9, "it is the same room"
    close(memories)


def test_a_group_that_never_shared_gives_its_room_back_at_once_and_says_why() -> None:
    memories = met(3)
    ranks = [0, 1, 2]
    before = memories[0].pages.left
    memories[1].pages.take(memories[1].pages.largest)
    for memory in memories[:2]:
        memory.allocate_area(1)
    assert "rank 1 has no room" in str(memories[0].find_areas(1, ranks))
    memories[0].never_shared(1)
    memories[0].release_area(1, ranks, all_listed=False)
    assert memories[0].pages.left == before
    memories[2].allocate_area(1)
    assert "rank 1 has no room" in str(memories[2].find_areas(1, ranks)), "who asks later"
    close(memories)


@pytest.mark.parametrize("first", BOTH)
def test_a_member_that_leaves_an_unused_group_keeps_no_room_of_the_others(first: int) -> None:
    memories = met(2, 2 * MIB)
    before = memories[0].pages.left
    for number in range(1, MAX_ENTRIES + 100):
        memories[0].allocate_area(number)
        for rank in (first, 1 - first):
            memories[rank].release_area(number, BOTH, all_listed=False)
    for memory in memories:
        memory.reclaim()
        assert memory.pages.left == before
    share(memories, number + 1)
    close(memories)


def test_a_member_that_leaves_an_unused_group_is_missed_by_the_others() -> None:
    """If it answered, they would go on by streams, and none would see that it has left."""
    memories = met(2)
    memories[0].allocate_area(1)
    memories[1].release_area(1, BOTH, all_listed=False)
    assert memories[0].find_areas(1, BOTH) is None
    assert memories[0].without_answer(1, BOTH) == [1]
    close(memories)


def test_groups_that_no_member_used_fill_no_directory() -> None:
    memories = met(2, 2 * MIB)
    for number in range(1, MAX_ENTRIES + 100):
        for memory in memories:
            memory.release_area(number, BOTH, all_listed=False)
    share(memories, number + 1)
    close(memories)


def test_patience_waits_for_room_that_is_about_to_come_back() -> None:
    memories = met(2, 2 * MIB)
    number = 0
    while memories[0].pages.largest > MIB // 2:
        number += 1
        share(memories, number)
    for closed in range(1, number + 1):
        memories[0].release_area(closed, BOTH, all_listed=True)
    memories[0].allocate_area(99, patient=True)
    assert memories[0].without_answer(99, BOTH) == BOTH
    for closed in range(1, number + 1):
        memories[1].release_area(closed, BOTH, all_listed=True)
    memories[0].allocate_area(99, patient=True)
    assert isinstance(memories[0].find_areas(99, [0]), list)
    close(memories)


def test_a_dead_peer_holds_no_area() -> None:
    memory = SharedMemory.create(0, 2 * MIB)
    program = """
mine.allocate_area(1)
print("listed", flush=True)
input()
"""
    with peer_of(memory, 2 * MIB, program) as other:
        before = memory.pages.left
        assert other.said() == "listed"
        memory.allocate_area(1)
        assert isinstance(memory.find_areas(1, BOTH), list)
        memory.release_area(1, BOTH, all_listed=True)
        assert memory.pages.left < before
        other.process.kill()
        other.process.wait()
        memory.reclaim()
        assert memory.pages.left == before
    memory.close()
