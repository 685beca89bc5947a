"""Bulk rings between two segments: what is written is read, and no count or offset is trusted."""

from __future__ import annotations

import pytest

from aiodist.errors import ProtocolError
from aiodist.shm.bulk_ring import (
    CHUNK_BYTES,
    DEPTH,
    MIN_CHUNK_BYTES,
    BulkRingReader,
    BulkRingWriter,
    layout_for,
)
from aiodist.shm.shared_memory import SharedMemory
from tests.shm.peers import peer_of
from tests.shm.test_segment import close, mappings, met

MIB = 1 << 20


def bulk_ring(memories: list[SharedMemory]) -> tuple[BulkRingWriter, BulkRingReader]:
    """From rank 0 to rank 1."""
    out, into = memories[0].bulk_writer_to(1), memories[1].bulk_reader_from(0)
    assert out is not None
    assert into is not None
    return out, into


def test_chunks_become_smaller_and_fewer_before_there_are_none() -> None:
    ring = layout_for(32 * MIB)
    assert ring is not None
    assert (ring.chunk_bytes, ring.depth) == (CHUNK_BYTES, DEPTH)
    for room in range(2 * MIN_CHUNK_BYTES, DEPTH * CHUNK_BYTES, MIN_CHUNK_BYTES):
        ring = layout_for(room)
        assert ring is not None
        assert ring.nbytes <= room
        assert ring.chunk_bytes >= MIN_CHUNK_BYTES
    assert layout_for(2 * MIN_CHUNK_BYTES - 1) is None


def test_pieces_come_out_in_order_and_make_room() -> None:
    memories = met(2, 16 * MIB)
    out, into = bulk_ring(memories)
    assert into.next() is None
    for turn in range(5):
        pieces = [bytes([turn * DEPTH + i]) * (1000 + i) for i in range(DEPTH)]
        for number, piece in enumerate(pieces):
            assert out.free() == DEPTH - number
            out.fill(memoryview(piece), 7 + number)
        assert out.free() == 0
        for number, piece in enumerate(pieces):
            found = into.next()
            assert found is not None
            assert found[0] == 7 + number
            assert found[1] == piece
            into.taken()
            del found
    assert into.next() is None
    close(memories)


def test_a_napping_reader_is_woken_once() -> None:
    memories = met(2, 16 * MIB)
    out, into = bulk_ring(memories)
    one = memoryview(b"1")
    assert out.fill(one, 1)  # a reader that has never looked is asleep
    assert not out.fill(one, 1)
    into.disarm()
    assert out.is_watched
    for _ in range(2):
        into.next()
        assert not into.taken()  # no writer waits for it
    assert not out.fill(one, 1)  # a polling reader needs no wake-up
    into.taken()
    into.arm()
    assert not out.is_watched
    out.will_wake()  # by another frame
    assert not out.fill(one, 1)
    into.disarm()
    into.taken()
    for _ in range(DEPTH):
        out.fill(one, 1)
    out.arm()
    wakes = [into.taken() for _ in range(DEPTH)]
    assert wakes == [False, True, False, False]
    close(memories)


def test_bulk_rings_leave_a_quarter_of_the_segment_to_groups() -> None:
    memories = met(12, 2 * MIB)
    made = []
    for rank in range(1, 12):
        made.append(bulk_ring := memories[0].bulk_writer_to(rank))
        if bulk_ring is not None:
            bulk_ring.users = 1
    assert made[0] is not None
    assert made[-1] is None
    for number in range(1, 4):
        for memory in memories[:2]:
            memory.lay_out(number)
    assert isinstance(memories[0].look(1, [0, 1]), list)
    close(memories)


def test_none_without_room_or_without_a_mapping() -> None:
    memories = [SharedMemory.create(rank, MIB) for rank in range(3)]
    descriptions = {memory.rank: memory.description for memory in memories}
    memories[0].meet(descriptions)
    memories[1].meet(descriptions | {0: "1:1:00"})
    assert memories[0].bulk_writer_to(1) is None, "rank 1 cannot read it"
    assert memories[0].bulk_writer_to(2) is None, "rank 2 has not said that it can"
    memories[2].meet(descriptions)
    assert memories[0].bulk_writer_to(2) is not None
    assert memories[1].bulk_reader_from(0) is None
    memories[0].forget(2)
    assert memories[0].bulk_writer_to(2) is None
    assert memories[0].bulk_reader_from(2) is None
    close(memories)


@pytest.mark.parametrize(
    ("start", "length", "filled"),
    [
        (0, 16 * MIB + 1, 1),
        (16 * MIB - 1, 2, 1),
        (2**64 - 1, 1, 1),
        (0, 2**64 - 1, 1),
        (70000, 0, 1),
        (70000, 10, DEPTH + 1),
        (70000, 10, 2**64 - 1),
    ],
)
def test_a_sender_that_lies_is_not_believed(start: int, length: int, filled: int) -> None:
    memories = met(2, 16 * MIB)
    out, into = bulk_ring(memories)
    out.fill(memoryview(b"x"), 1)
    words = out._mine
    words[16], words[17], words[8] = start, length, filled
    with pytest.raises(ProtocolError, match="rank 0 names bytes"):
        into.next()
    close(memories)


@pytest.mark.parametrize("emptied", [2, 2**64 - 1])
def test_a_receiver_that_lies_is_not_believed(emptied: int) -> None:
    memories = met(2, 16 * MIB)
    out, into = bulk_ring(memories)
    out.fill(memoryview(b"x"), 1)
    into._mine[0] = emptied
    with pytest.raises(ProtocolError, match="rank 1 has taken"):
        out.free()
    close(memories)


def test_nothing_stays_mapped() -> None:
    before = mappings()
    memories = met(2, 16 * MIB)
    out, into = bulk_ring(memories)
    out.fill(memoryview(b"x"), 1)
    close(memories)
    close(memories)
    assert out.is_closed
    assert into.is_closed
    assert mappings() == before


def test_another_process_reads_the_written_bytes() -> None:
    memory = SharedMemory.create(0, 4 * MIB)
    program = """
print("met", flush=True)
bulk_ring = mine.bulk_reader_from(0)
bulk_ring.disarm()
for number in range(40):
    while (found := bulk_ring.next()) is None:
        pass
    assert found[0] == number, found
    assert found[1] == bytes([number]) * 50_000
    bulk_ring.taken()
print("done", flush=True)
input()
"""
    with peer_of(memory, 4 * MIB, program) as other:
        assert other.said() == "met"
        out = memory.bulk_writer_to(1)
        assert out is not None
        for number in range(40):
            while not out.free():
                pass
            out.fill(memoryview(bytes([number]) * 50_000), number)
        assert other.said() == "done"
        other.process.communicate("\n")
        assert other.process.returncode == 0
    memory.close()
