"""A message ring: what is put in comes out, in a ring that is full now and then, and lies are told."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from aiodist.errors import ProtocolError
from aiodist.shm import message_ring
from aiodist.shm.message_ring import SPREAD, RingReader, RingWriter
from aiodist.shm.shared_memory import SharedMemory
from tests.shm.damage import ring_bytes
from tests.shm.test_segment import close, met

HEAD = b"a head"
RECORD = 24 + len(HEAD)


class Ends:
    """Both ends of one ring, in segments of this process."""

    def __init__(self, shared_bytes: int = 1 << 20, ranks: int = 2) -> None:
        self.memories = [SharedMemory.create(rank, shared_bytes) for rank in range(ranks)]
        for memory in self.memories:
            memory.meet({m.rank: m.description for m in self.memories})
        out, into = self.memories[0].ring_writer_to(1), self.memories[1].ring_reader_from(0)
        assert out is not None
        assert into is not None
        self.out: RingWriter = out
        self.into: RingReader = into

    def put(self, data: bytes, turn: int = 0, piece: int = 1 << 20) -> bool:
        view = memoryview(data)
        if not self.out.put(turn, HEAD, view, piece):
            return False
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
        self.into.take(*self.into.advance())
        assert data.startswith(HEAD)
        return data[len(HEAD) :]

    @property
    def record_words(self) -> memoryview:
        """The ring in words; the first record begins with the first of them."""
        return ring_bytes(self.memories[0], self.out).cast("Q")

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


def test_messages_taken_one_by_one_use_the_same_memory(ends: Ends) -> None:
    for length in [4] * 500 + [40_000] * 5:
        assert ends.put(bytes(length))
        assert ends.out.position % ends.out.nbytes <= message_ring._NEAR + 40_200
        assert ends.take() == bytes(length)


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_and_of_any_length(ends: Ends, seed: int) -> None:
    """What waits is never written over, and all room comes back."""
    chance = random.Random(seed)
    put = 0
    waiting: list[tuple[tuple[int, int], memoryview, bytes]] = []
    full = 0
    for _ in range(3000):
        if chance.random() < (0.7 if seed % 2 else 0.5):
            length = int(2 ** (chance.random() * 18))
            data = put.to_bytes(4, "little") * (length // 4)
            if ends.put(data):
                put += 1
                found = ends.whole(0)
                assert found is not None
                waiting.append((ends.into.advance(), found, HEAD + data))
            else:
                full += 1
        elif waiting:
            record, found, data = waiting.pop(chance.randrange(len(waiting)))
            assert found == data
            ends.into.take(*record)
    assert full > 20, "the ring was never full: the test has lost its point"
    for record, found, data in waiting:
        assert found == data
        ends.into.take(*record)
    assert not ends.put(bytes(ends.out.nbytes - RECORD))
    assert ends.put(bytes(ends.out.nbytes - 128))  # all of the ring
    assert not ends.put(b"")
    assert ends.take() == bytes(ends.out.nbytes - 128)


@pytest.mark.parametrize("piece", [2049, 2500, 2501])
def test_a_message_put_in_by_pieces_is_whole_in_the_end(ends: Ends, piece: int) -> None:
    for data in (b"", bytes(range(250)) * 10, bytes(range(256)) * 40):
        assert ends.put(data, piece=piece)
        assert ends.take() == data


def test_a_message_that_has_begun_is_not_there_before_its_last_byte(ends: Ends) -> None:
    data = bytes(range(250)) * 10
    assert ends.out.put(0, HEAD, memoryview(data), 2300)
    assert not ends.out.is_whole
    for done in (0, 2300):
        begun = ends.into.next_message(0)
        assert begun is not None
        assert len(begun) == len(HEAD) + len(data)
        assert ends.into.there() == len(HEAD) + done
        assert begun[: ends.into.there()] == (HEAD + data)[: len(HEAD) + done]
        assert ends.take() is None
        assert ends.out.fill(memoryview(data), 2300) == (done == 0)
    assert ends.take() == data


def test_a_full_ring_has_room_again_when_its_first_message_is_taken(ends: Ends) -> None:
    third = bytes(ends.out.nbytes // 3 - 300)
    for _ in range(3):
        assert ends.put(third)
    for _ in range(9):  # each goes where the first one was
        assert not ends.put(third)
        assert ends.take() == third
        assert ends.put(third)
    assert ends.out.untaken <= ends.out.nbytes
    for _ in range(3):
        assert ends.take() == third
    assert not ends.out.untaken


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


def test_a_sender_finds_the_notes_of_all_messages_that_are_near_each_other(ends: Ends) -> None:
    read = [id for id in range(1, 4 * SPREAD) if id % 3]
    for latest in read:
        ends.into.note_read(latest)
        if latest % 50 == 1:
            near = range(max(latest - SPREAD, 1), latest + 1)
            assert [id for id in near if ends.out.has_read(id)] == [id for id in near if id % 3]
            assert not any(ends.out.has_read(latest + ahead) for ahead in range(1, SPREAD))


def test_a_reader_sees_how_many_messages_were_taken_back(ends: Ends) -> None:
    assert ends.into.withdrawals == 0
    assert [ends.out.withdraw() for _ in range(2)] == [1, 2]
    assert ends.into.withdrawals == 2


@pytest.mark.parametrize("taken", [1000, 1 << 63])
def test_a_receiver_that_counts_nonsense_is_told(ends: Ends, taken: int) -> None:
    ends.put(b"x")
    told = ends.memories[0].ring_reader_from(1)
    assert told is not None
    told.words[message_ring.TAKEN] = taken
    with pytest.raises(ProtocolError, match="rank 1 has taken"):
        ends.put(b"x")


WORDS = {"written": [1, 1 << 40, 1 << 63], "restart": [1 << 30], "start": [1 << 40, 4]}
WORDS["nbytes"] = [0, 1 << 40, 8200]


@pytest.mark.parametrize(("word", "value"), [(w, v) for w, values in WORDS.items() for v in values])
def test_a_sender_that_speaks_of_other_memory_is_told(ends: Ends, word: str, value: int) -> None:
    ends.put(b"x")
    ends.into.words[getattr(message_ring, word.upper())] = value
    with pytest.raises(ProtocolError, match="rank 0 names"):
        ends.whole(0)


@pytest.mark.parametrize(("word", "value"), [(0, 0), (0, 1 << 63), (1, 1 << 20), (1, 1 << 63)])
def test_a_damaged_record_is_told(ends: Ends, word: int, value: int) -> None:
    ends.put(b"x")
    ends.record_words[word] = value
    with pytest.raises(ProtocolError, match="rank 0 names bytes"):
        ends.whole(0)


def test_no_words_of_a_sender_lead_outside_its_ring(ends: Ends) -> None:
    """Whatever they say: a message of the ring, nothing, or an error."""
    chance = random.Random(3)
    values = [0, 1, 7, 64, 4096, 100_000, (1 << 20) - 8, 1 << 20, 1 << 32, (1 << 64) - 1]
    found = 0
    record_words = ends.record_words
    for _ in range(2000):
        word = chance.choice([message_ring.WRITTEN, message_ring.RESTART])
        ends.into.words[word] = chance.choice(values)
        record_words[chance.randrange(3)] = chance.choice(values)
        with contextlib.suppress(ProtocolError):
            message = ends.into.next_message(0)
            if message is not None:
                assert 0 < len(message) <= ends.out.nbytes
                assert ends.into.there() <= len(message)
                ends.into.take(*ends.into.advance())
                found += 1
    assert found


def test_all_rings_of_a_rank_together_take_a_quarter_of_its_segment() -> None:
    ends = Ends(1 << 20, ranks=5)
    try:
        made = [ends.memories[2].ring_writer_to(rank) for rank in (0, 1, 3, 4)]
        assert [ring.nbytes for ring in made if ring is not None] == [64 << 10] * 4
    finally:
        ends.close()


def test_rings_and_areas_lie_apart() -> None:
    ends = Ends(2 << 20, ranks=5)
    try:
        memory = ends.memories[2]
        rings = [memory.ring_writer_to(rank) for rank in (0, 1, 3, 4)]
        taken = [(ring.start, ring.nbytes) for ring in rings if ring is not None]
        while nbytes := memory.pages.largest:
            taken.append((memory.pages.take(nbytes), nbytes))
        assert len(taken) == 5
        for (start, nbytes), (after, _) in pairwise(sorted(taken)):
            assert start + nbytes <= after
    finally:
        ends.close()


def test_a_segment_too_small_for_a_ring_to_each_rank_has_none() -> None:
    memories = met(40, 1 << 20)
    try:
        assert memories[1].ring_writer_to(0) is None
        memories[1].allocate_area(7)
        assert isinstance(memories[1].find_areas(7, [1]), list)
    finally:
        close(memories)
