"""Payloads by way of shared memory: in order, cancelled, cut off, and from ranks that lie."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from aiodist.errors import ProtocolError
from aiodist.p2p import shm_eager_sender
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import CHUNK_BYTES, EAGER_BYTES
from aiodist.p2p.shm_bulk_sender import BULK_RING_BYTES
from aiodist.shm import bulk_ring as bulk_rings
from aiodist.wire.frames import TENSOR, FrameType, encode
from tests.p2p.conftest import SetClock
from tests.p2p.pairs import Pair, Side

TAG = (TENSOR, 9, 1)
OTHER = (TENSOR, 9, 2)
CHUNK = 64 << 10
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("steady_clock")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """With room for four chunks of 64 KiB in each direction."""
    monkeypatch.setattr(bulk_rings, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(
        shm_eager_sender, "EAGER_RING_BYTES", -1
    )  # what an eager ring could take goes by the bulk ring, too
    made = Pair(64 << 20, shared_bytes=8 * MIB)
    yield made
    made.close()


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def content(recv: Recv) -> bytes:
    assert recv.done
    assert recv.error is None
    assert recv.into is not None
    return bytes(recv.into)


def all_chunks_are_free(side: Side) -> bool:
    bulk_ring = side.peer.outbox.bulk_ring
    assert bulk_ring is not None
    assert bulk_ring._out is not None
    return bulk_ring._out.free() == bulk_ring._out._depth


@pytest.mark.parametrize("wakeful", [False, True])
@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize(
    "size",
    [
        *(BULK_RING_BYTES + d for d in (-1, 0, 1)),
        *(n * CHUNK + d for n in (3, 4, 5) for d in (-1, 0, 1)),
        *(EAGER_BYTES + d for d in (-1, 0, 1)),
        *(3 * CHUNK_BYTES + d for d in (-1, 0, 1)),
    ],
)
def test_sizes_around_every_limit(pair: Pair, size: int, posted_first: bool, wakeful: bool) -> None:
    pair.a.spin_policy.active = pair.b.spin_policy.active = wakeful
    data = bytes_of(size)
    if posted_first:
        recv = pair.b.recv(TAG, size)
        send = pair.a.send(TAG, data)
    else:
        send = pair.a.send(TAG, data)
        pair.settle()
        assert send.done == (size <= EAGER_BYTES)
        recv = pair.b.recv(TAG, size)
    moved = pair.a.stream.queued()
    while pair.settle_once():
        moved += pair.a.stream.queued()
    assert send.done
    assert content(recv) == data
    if size >= BULK_RING_BYTES:
        assert moved < 2000, "the payload went down the stream"
        assert all_chunks_are_free(pair.a)


def test_messages_of_all_sizes_keep_their_order_in_both_directions(pair: Pair) -> None:
    sizes = [10, 300_000, 0, 2_500_000, BULK_RING_BYTES, 5, MIB, 1_000_001, 70_000] * 3
    wanted: list[tuple[Recv, bytes]] = []
    for number, size in enumerate(sizes):
        for here, there in ((pair.a, pair.b), (pair.b, pair.a)):
            data = bytes_of(size, number)
            wanted.append((there.recv(TAG, size, ANY_SOURCE if number % 2 else None), data))
            here.send(TAG, data)
    pair.settle()
    for recv, data in wanted:
        assert content(recv) == data
    assert all_chunks_are_free(pair.a)
    assert all_chunks_are_free(pair.b)


def test_small_messages_pass_a_large_one(pair: Pair) -> None:
    large = pair.b.recv(TAG, 3 * MIB)
    pair.a.send(TAG, bytes_of(3 * MIB))
    small = pair.b.recv(OTHER, 3)
    pair.a.stream.push(1 << 40)
    pair.b.stream.push(1 << 40)  # the GRANT: chunks are filled
    pair.a.send(OTHER, b"now")
    pair.a.stream.push(1 << 40)
    assert content(small) == b"now"
    assert not large.done
    pair.settle()
    assert content(large) == bytes_of(3 * MIB)
    assert pair.b.peer.bytes_heard > 3 * MIB  # it is alive that sends through memory alone


def half_way(pair: Pair, size: int) -> Recv:
    """A receive whose message has arrived in part."""
    recv = pair.b.recv(TAG, size)
    pair.a.send(TAG, bytes_of(size))
    while not 0 < _arrived(pair) < size:
        assert pair.a.stream.push(1 << 40) or pair.b.stream.push(1 << 40)
    return recv


def _arrived(pair: Pair) -> int:
    placed = pair.b.peer.bulk_receiver._placed
    parts = [recv.got for recv in pair.b.inbox._tickets.values()]
    return placed[0].got if placed else sum(parts)


@pytest.mark.parametrize("size", [EAGER_BYTES, 3 * MIB], ids=["eager", "rendezvous"])
def test_a_receive_cancelled_half_way_is_not_written_and_the_next_one_gets_all(
    pair: Pair, size: int
) -> None:
    recv = half_way(pair, size)
    pair.b.inbox.withdraw(recv)
    assert recv.into is not None
    before = bytes(recv.into)
    pair.settle()
    assert bytes(recv.into) == before
    assert all_chunks_are_free(pair.a)
    again = pair.b.recv(TAG, size)
    pair.settle()
    assert content(again) == bytes_of(size)


@pytest.mark.parametrize("size", [EAGER_BYTES, 3 * MIB], ids=["eager", "rendezvous"])
def test_a_message_dropped_half_way_releases_its_chunks(pair: Pair, size: int) -> None:
    recv = half_way(pair, size)
    pair.b.inbox.drop(recv)
    pair.b.inbox.forget_group(9)
    pair.settle()
    assert all_chunks_are_free(pair.a)
    later = pair.b.recv(OTHER, size)
    pair.a.send(OTHER, bytes_of(size, 2))
    pair.settle()
    assert content(later) == bytes_of(size, 2)


def test_a_message_withdrawn_half_way_is_not_delivered_and_frees_its_chunks(pair: Pair) -> None:
    size = 8 * MIB
    data = bytearray(bytes_of(size))
    recv = pair.b.recv(TAG, size)
    send = pair.a.send(TAG, data)
    while not _arrived(pair):
        assert pair.a.stream.push(1 << 40) or pair.b.stream.push(1 << 40)
    assert pair.a.peer.outbox.withdraw(send)
    data[:] = bytes(size)
    pair.settle()
    assert not recv.done
    pair.a.send(TAG, bytes_of(size, 2))
    pair.settle()
    assert content(recv) == bytes_of(size, 2)
    assert all_chunks_are_free(pair.a)


def test_the_memory_of_an_eager_message_is_the_callers_again_when_it_gives_up(pair: Pair) -> None:
    data = bytearray(bytes_of(EAGER_BYTES))
    send = pair.a.send(TAG, data)
    assert not send.done  # there are four chunks of it
    assert not pair.a.peer.outbox.withdraw(send)
    data[:] = bytes(EAGER_BYTES)
    pair.settle()
    recv = pair.b.recv(TAG, EAGER_BYTES)
    assert content(recv) == bytes_of(EAGER_BYTES)


@pytest.mark.parametrize("size", [EAGER_BYTES, 3 * MIB], ids=["eager", "rendezvous"])
def test_a_rank_lost_half_way_fails_both_ends(pair: Pair, size: int) -> None:
    recv = half_way(pair, size)
    sends = [pair.b.send(TAG, bytes_of(size)), pair.b.send(TAG, bytes_of(size))]
    pair.lose(pair.b, OSError("cut"))
    for each in (recv, *sends):
        assert each.done
        assert isinstance(each.error, ConnectionError)
    assert not pair.b.peer.bulk_receiver.is_busy
    again = pair.b.send(TAG, bytes_of(size))
    assert isinstance(again.error, ConnectionError)


def test_a_sender_without_a_free_chunk_sleeps_until_it_is_woken(pair: Pair) -> None:
    pair.b.recv(TAG, EAGER_BYTES)
    pair.run_soon()  # so that it would be woken for a short message, too
    pair.a.send(TAG, bytes_of(EAGER_BYTES))
    pair.a.stream.push(1 << 40)
    assert _arrived(pair) == 4 * CHUNK
    assert pair.b.stream.queued() == len(encode(FrameType.BULK_EMPTIED))
    assert not pair.run_soon()
    pair.b.stream.push(1 << 40)
    assert pair.a.stream.queued() == len(encode(FrameType.BULK_FILLED))
    pair.settle()


def test_without_room_for_a_bulk_ring_messages_use_the_stream() -> None:
    pair = Pair(64 << 20, shared_bytes=MIB)
    memory = pair.memories[0]
    assert memory is not None
    while (nbytes := memory._room.largest) > 0:
        memory._room.take(nbytes)
    recv = pair.b.recv(TAG, 3 * MIB)
    pair.a.send(TAG, bytes_of(3 * MIB))
    pair.settle()
    assert content(recv) == bytes_of(3 * MIB)
    assert pair.a.peer.outbox.bulk_ring is not None
    assert not pair.a.peer.outbox.bulk_ring.is_open
    pair.close()


PLACED = encode(FrameType.PLACED, TAG, length=200_000, meta=b"m")


def _lie(pair: Pair, word: int, value: int) -> None:
    bulk_ring = pair.a.peer.outbox.bulk_ring
    assert bulk_ring is not None
    assert bulk_ring._out is not None
    bulk_ring._out._mine[word] = value


@pytest.mark.parametrize("receives", [True, False])
@pytest.mark.parametrize(
    ("word", "value"), [(8, 9), (16, 8 * MIB), (17, 2**63), (17, 200_001)], ids=str
)
def test_a_sender_that_lies_is_cut_off(pair: Pair, word: int, value: int, receives: bool) -> None:
    """The counter; then offset and length of a piece in a message of 200,000 bytes."""
    recv = pair.b.recv(TAG, 200_000) if receives else None
    pair.a.send(TAG, bytes_of(200_000))
    _lie(pair, word, value)
    pair.a.stream.push(1 << 40)
    assert isinstance(pair.b.lost[0], ProtocolError)
    if recv is not None:
        assert recv.error is not None
        assert recv.into is not None


def test_a_piece_beyond_a_large_message_is_refused(pair: Pair) -> None:
    recv = pair.b.recv(TAG, 3 * MIB)
    pair.a.send(TAG, bytes_of(3 * MIB))
    pair.a.stream.push(1 << 40)
    recv.got = 3 * MIB - 10  # as if so much had come
    pair.b.stream.push(1 << 40)
    pair.a.stream.push(1 << 40)
    assert isinstance(pair.b.lost[0], ProtocolError)
    assert "extends beyond the end" in str(pair.b.lost[0])


def test_a_receiver_that_lies_is_cut_off(pair: Pair) -> None:
    pair.a.send(TAG, bytes_of(EAGER_BYTES))
    pair.a.stream.push(1 << 40)
    into = pair.b.peer.bulk_receiver._bulk_ring
    assert into is not None
    into._mine[0] = 1000
    pair.b.stream.push(1 << 40)
    assert isinstance(pair.a.lost[0], ProtocolError)
    assert "rank 1 has taken 1000 pieces" in str(pair.a.lost[0])


@pytest.mark.parametrize("frame", [PLACED, encode(FrameType.BULK_FILLED)])
def test_a_peer_without_shared_memory_may_not_name_it(frame: bytes) -> None:
    pair = Pair(64 << 20)
    pair.b.recv(TAG, 200_000)
    pair.a.stream.send([frame])
    with pytest.raises(ProtocolError, match="does not share"):
        pair.a.stream.push(1 << 40)


@pytest.mark.parametrize("length", [0, EAGER_BYTES + 1])
def test_a_placed_message_is_an_eager_message(pair: Pair, length: int) -> None:
    pair.a.stream.send([encode(FrameType.PLACED, TAG, length=length, meta=b"m")])
    with pytest.raises(ProtocolError, match="an eager message of"):
        pair.a.stream.push(1 << 40)


@pytest.mark.usefixtures("pair")
def test_every_message_ends_whatever_the_shared_words_say(set_clock: SetClock) -> None:
    """Garbage in what rank 0 has written: rank 1 takes what fits, or cuts it off."""
    set_clock(3e-4)  # a turn ends after few pieces, so that there is a time to lie between them
    cut = 0
    large, data = EAGER_BYTES + 1, bytes(EAGER_BYTES + 1)
    for seed in range(40):
        chance = random.Random(seed)
        pair = Pair(64 << 20, shared_bytes=8 * MIB)
        recvs = [pair.b.recv(TAG, large), pair.b.recv(OTHER, 200_000)]
        sends = [pair.a.send(TAG, data), pair.a.send(OTHER, data[:200_000])]
        for _ in range(6):
            pair.a.stream.push(1 << 40)
            value = chance.choice([0, 1, 2, 5, 70_000, 2**32, 2**63, 2**64 - 1])
            _lie(pair, chance.choice([0, 1, 8, 9, 16, 17, 18, 20, 21, 22]), value)
            pair.b.stream.push(1 << 40)
        pair.settle()
        errors = pair.b.lost + pair.a.lost
        assert all(isinstance(error, ProtocolError) for error in errors)
        if errors:
            cut += 1
            pair.lose(pair.a)
            pair.lose(pair.b)
            assert all(each.done for each in (*recvs, *sends))
        pair.close()
    assert cut
