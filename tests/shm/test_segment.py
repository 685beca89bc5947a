"""Memory of two processes: what is mapped is what was meant, and nothing of it stays behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aiodist.shm.group_area import (
    CONTROL_BYTES,
    LARGEST_SLOT_BYTES,
    SLOT_BYTES,
    AreaShape,
    GroupArea,
    shape_for,
)
from aiodist.shm.segment import Segment
from aiodist.shm.shared_memory import SharedMemory

MIB = 1 << 20


def mappings() -> int:
    """How many segments this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:aiodist")


def test_another_process_sees_and_writes_the_same_bytes() -> None:
    before = mappings()
    segment = Segment.create(MIB)
    segment.view[5000:5005] = b"hello"
    script = (
        "import sys; from aiodist.shm.segment import Segment; s = Segment.open(sys.argv[1]);"
        "assert s.view[5000:5005] == b'hello'; s.view[6000:6003] = b'you'; s.close()"
    )
    subprocess.run([sys.executable, "-c", script, segment.description], check=True)
    assert segment.view[6000:6003] == b"you"
    assert mappings() == before + 1
    segment.close()
    segment.close()
    assert mappings() == before


def test_the_memory_stays_mapped_while_a_view_of_it_exists() -> None:
    before = mappings()
    segment = Segment.create(MIB)
    part = segment.view[100:200]
    segment.close()
    part[:] = bytes(100)
    assert mappings() == before + 1
    del part
    assert mappings() == before


def test_a_segment_cannot_be_cut_short() -> None:
    segment = Segment.create(MIB)
    pid, fd, _ = segment.description.split(":")
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/{pid}/fd/{fd}", 0)
    segment.close()


@pytest.mark.parametrize("wrong", ["", "1:2", "x:1:00", "-1:-1:00"])
def test_a_malformed_segment_description_is_refused(wrong: str) -> None:
    with pytest.raises(OSError, match=r"."):
        Segment.open(wrong)


def test_another_segment_or_file_under_the_number_is_refused() -> None:
    segment = Segment.create(MIB)
    pid, fd, nonce = segment.description.split(":")
    with pytest.raises(OSError, match="not the segment"):
        Segment.open(f"{pid}:{fd}:{'0' * len(nonce)}")
    with tempfile.TemporaryFile() as file:
        file.write(bytes(MIB))
        with pytest.raises(OSError, match="no segment of aiodist's"):
            Segment.open(f"{pid}:{file.fileno()}:{nonce}")
    segment.close()


def test_shapes_fit_into_their_room() -> None:
    smallest = CONTROL_BYTES + 2 * SLOT_BYTES + 2 * (64 << 10)
    assert shape_for(smallest - 1) is None
    assert shape_for(smallest) == AreaShape(64 << 10, 2)
    largest = CONTROL_BYTES + 2 * LARGEST_SLOT_BYTES + 4 * (512 << 10)
    assert shape_for(largest - 1) == AreaShape(512 << 10, 4)
    assert shape_for(largest) == AreaShape(512 << 10, 4, LARGEST_SLOT_BYTES)
    longer = AreaShape(1 << 20, 4, LARGEST_SLOT_BYTES)
    assert shape_for(longer.nbytes, 1 << 20) == longer
    assert shape_for(longer.nbytes - 1, 1 << 20) == shape_for(largest)
    assert shape_for(largest - 1, 1 << 20) == AreaShape(512 << 10, 4)
    for room in range(smallest, largest + 50_000, 50_000):
        shape = shape_for(room)
        assert shape is not None
        assert shape.nbytes <= room
    area = GroupArea(memoryview(bytearray(smallest)), AreaShape(64 << 10, 2))
    assert [len(chunk) for chunk in area.chunks] == [64 << 10] * 2
    area = GroupArea(memoryview(bytearray(largest)), AreaShape(512 << 10, 4, LARGEST_SLOT_BYTES))
    assert [len(slot) for slot in area.slots] == [LARGEST_SLOT_BYTES] * 2
    assert [len(chunk) for chunk in area.chunks] == [512 << 10] * 4


def test_ranks_use_what_all_have_room_for() -> None:
    shapes = AreaShape(512 << 10, 2), AreaShape(64 << 10, 4, LARGEST_SLOT_BYTES)
    assert shapes[0].common(shapes[1]) == AreaShape(64 << 10, 2, SLOT_BYTES)


def met(count: int, nbytes: int = 4 * MIB) -> list[SharedMemory]:
    memories = [SharedMemory.create(rank, nbytes) for rank in range(count)]
    descriptions = {memory.rank: memory.description for memory in memories}
    for memory in memories:
        memory.meet(descriptions)
    return memories


def close(memories: list[SharedMemory]) -> None:
    for memory in memories:
        memory.close()


def test_members_find_each_others_areas_when_all_have_laid_them_out() -> None:
    memories = met(3)
    for memory in memories[:2]:
        memory.allocate_area(7)
        assert memory.find_areas(7, [0, 1, 2]) is None
    memories[2].allocate_area(7)
    found = [memory.find_areas(7, [0, 1, 2]) for memory in memories]
    areas = []
    for each in found:
        assert isinstance(each, list)
        areas.append(each)
    areas[0][1].words[3] = 5
    assert areas[2][1].words[3] == 5
    assert areas[2][0].words[3] == 0
    close(memories)


def test_one_without_room_is_one_too_few_for_all() -> None:
    memories = met(2)
    number = 0
    while True:
        number += 1
        memories[1].allocate_area(number)
        memories[0].allocate_area(number)
        answers = [memory.find_areas(number, [0, 1]) for memory in memories]
        if isinstance(answers[0], str):
            break
    assert number > 2
    assert "has no room left" in str(answers[0])
    assert answers[0] == answers[1]
    close(memories)


def test_a_peer_that_cannot_be_mapped_is_left_out_by_all() -> None:
    memories = [SharedMemory.create(rank, MIB) for rank in range(3)]
    descriptions = {memory.rank: memory.description for memory in memories}
    wrong = dict(descriptions)
    wrong[2] = "1:1:00"
    memories[0].meet(wrong)
    memories[1].meet(descriptions)
    memories[2].meet(descriptions)
    assert not memories[0].could_share([0, 2])
    assert memories[0].could_share([0, 1])
    assert memories[1].find_areas(1, [0, 1, 2]) == "rank 0 cannot map the memory of rank 2"
    assert memories[2].find_areas(1, [0, 1, 2]) == "rank 0 cannot map the memory of rank 2"
    close(memories)


def test_a_rank_that_was_replaced_shares_no_more() -> None:
    memories = met(2)
    memories[0].forget(1)
    assert not memories[0].could_share([0, 1])
    assert memories[1].find_areas(1, [0, 1]) == "rank 0 cannot map the memory of rank 1"
    close(memories)


def test_an_orderly_departure_is_seen_by_ranks_without_a_stream() -> None:
    memories = met(2)
    assert not memories[0].has_left(1)
    memories[1].leave()
    memories[1].close()
    assert memories[0].has_left(1)
    close(memories)
