"""An eager ring: what is put in comes out, in a ring that is full now and then, and lies are told."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from aiodist.alignment import EVERY
from aiodist.errors import ProtocolError
from aiodist.shm import eager_ring as eager_rings
from aiodist.shm.eager_ring import EagerRingReader, EagerRingWriter
from aiodist.shm.shared_memory import SharedMemory

HEAD = b"a head"


class Ends:
    """Both ends of one eager ring, in segments of this process."""

    def __init__(self, shared_bytes: int = 1 << 20, ranks: int = 2) -> None:
        self.memories = [SharedMemory.create(rank, shared_bytes) for rank in range(ranks)]
        for memory in self.memories:
            memory.meet({m.rank: m.description for m in self.memories})
        out, into = self.memories[0].eager_writer_to(1), self.memories[1].eager_reader_from(0)
        assert out is not None
        assert into is not None
        self.out: EagerRingWriter = out
        self.into: EagerRingReader = into

    def put(self, data: bytes, turn: int = 0, piece: int = 1 << 20) -> bool:
        view = memoryview(data)
        if not self.out.put(turn, HEAD, view, piece):
            return False
        assert self.out.is_whole == (len(data) <= piece)
        while not self.out.is_whole:
            assert self.out.fill(view, piece) != self.out.is_whole
        return True

    def whole(self, turn: int = 0) -> memoryview | None:
        found = self.into.next_message(turn)
        return found if found is not None and self.into.there() == len(found) else None

    def take(self, turn: int = 0) -> bytes | None:
        found = self.whole(turn)
        if found is None:
            return None
        data = bytes(found)
        self.into.take(self.into.advance())
        assert data.startswith(HEAD)
        return data[len(HEAD) :]

    def close(self) -> None:
        for memory in self.memories:
            memory.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_messages_are_read_as_they_were_written(ends: Ends) -> None:
    for data in (b"", b"x", bytes(range(256)) * 40):
        assert ends.put(data)
        assert ends.into.has_next
        assert ends.take() == data
        assert not ends.into.has_next
        assert ends.take() is None


def test_a_row_of_messages_taken_one_by_one_uses_the_same_memory(ends: Ends) -> None:
    for _ in range(3 * eager_rings.DEPTH):
        assert ends.put(b"1234")
        assert ends.out._begins[(ends.out._count - 1) % eager_rings.DEPTH] == 0
        assert ends.take() == b"1234"


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_and_of_any_length(ends: Ends, seed: int) -> None:
    """What waits is never written over, and all room comes back."""
    chance = random.Random(seed)
    put = 0
    waiting: dict[int, tuple[memoryview, bytes]] = {}
    full = 0
    for _ in range(3000):
        if chance.random() < 0.5:
            length = int(2 ** (chance.random() * 16))
            data = put.to_bytes(4, "little") * (length // 4)
            if ends.put(data):
                put += 1
                found = ends.whole(0)
                assert found is not None
                waiting[ends.into.advance()] = found, HEAD + data
            else:
                full += 1
        elif waiting:
            number = chance.choice(list(waiting))
            found, data = waiting.pop(number)
            assert found == data
            ends.into.take(number)
    assert full > 20, "the ring was never full: the test has lost its point"
    for number, (found, data) in waiting.items():
        assert found == data
        ends.into.take(number)
    assert not ends.put(bytes(ends.out._nbytes - EVERY + 1))
    assert ends.put(bytes(ends.out._nbytes - EVERY))  # all of the ring


@pytest.mark.parametrize("piece", [1, 99, 100, 101])
def test_a_message_put_in_by_pieces_is_whole_in_the_end(ends: Ends, piece: int) -> None:
    for data in (b"", bytes(range(100)), bytes(range(256)) * 4):
        assert ends.put(data, piece=piece)
        assert ends.take() == data


def test_a_message_that_has_begun_is_not_there_before_its_last_byte(ends: Ends) -> None:
    data = bytes(range(200))
    ends.put(data)
    count = eager_rings._ENTRIES + 4
    ends.out._mine[count] = len(HEAD) + 199
    assert ends.whole(0) is None
    begun = ends.into.next_message(0)
    assert begun is not None
    assert begun[: ends.into.there()] == HEAD + data[:199]
    assert ends.take() is None
    ends.out._mine[count] = len(HEAD) + 200
    assert ends.take() == data


def test_the_ring_is_full_by_messages_and_by_bytes(ends: Ends) -> None:
    for _ in range(eager_rings.DEPTH):
        assert ends.put(b"x")
    assert not ends.put(b"x")
    assert ends.take() == b"x"
    assert ends.put(b"x")
    for _ in range(eager_rings.DEPTH):
        assert ends.take() == b"x"
    half = bytes(ends.out._nbytes // 2)
    assert not ends.put(bytes(ends.out._nbytes))
    assert ends.put(half)
    assert not ends.put(half)
    assert ends.take() == half
    assert ends.put(half)
    assert ends.take() == half
    assert ends.put(bytes(ends.out._nbytes - 2 * EVERY))
    assert not ends.put(bytes(EVERY + 1 - len(HEAD)))
    assert ends.put(bytes(EVERY - len(HEAD)))  # up to the very end


def test_a_message_behind_one_of_the_stream_waits_for_it(ends: Ends) -> None:
    assert ends.put(b"early", turn=1)
    assert ends.put(b"late", turn=2)
    assert ends.take(turn=0) is None
    assert ends.take(turn=1) == b"early"
    assert ends.take(turn=1) is None
    assert ends.take(turn=2) == b"late"


def test_a_sleeping_reader_is_woken_once(ends: Ends) -> None:
    ends.put(b"x")
    assert not ends.out.must_wake()
    ends.into.arm()
    ends.put(b"x")
    assert ends.out.must_wake()
    assert not ends.out.must_wake()
    ends.into.arm()
    assert ends.out.must_wake()
    ends.into.arm()
    ends.into.disarm()
    assert not ends.out.must_wake()


@pytest.mark.parametrize("taken", [2, 1 << 63])
def test_a_receiver_that_counts_nonsense_is_told(ends: Ends, taken: int) -> None:
    ends.put(b"x")
    ends.into._mine[eager_rings._TAKEN] = taken
    with pytest.raises(ProtocolError, match="rank 1 has taken"):
        ends.put(b"x")


@pytest.mark.parametrize(
    ("word", "value"),
    [(0, 7), (0, 1 << 63), (2, 1 << 40), (3, 1 << 40), (3, 0)],
    ids=["stamp", "wild stamp", "begin", "length", "nothing"],
)
def test_a_sender_that_speaks_of_other_memory_is_told(ends: Ends, word: int, value: int) -> None:
    ends.put(b"x")
    ends.out._mine[eager_rings._ENTRIES + word] = value
    with pytest.raises(ProtocolError, match="rank 0 names bytes"):
        ends.whole(0)


def test_all_boxes_of_a_rank_take_a_sixth_of_its_segment_at_most() -> None:
    ends = Ends(1 << 20, ranks=5)
    try:
        room = ends.memories[2]._room
        before = room.left
        made = [ends.memories[2].eager_writer_to(rank) for rank in (0, 1, 3, 4)]
        assert all(made)
        assert (1 << 20) // 7 < before - room.left <= (1 << 20) // 6
    finally:
        ends.close()


def test_where_there_is_no_room_there_is_no_box() -> None:
    ends = Ends()
    try:
        memory = ends.memories[1]
        while memory._room.largest:
            memory._room.take(memory._room.largest)
        assert memory.eager_writer_to(0) is None
    finally:
        ends.close()
