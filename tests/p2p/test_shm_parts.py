"""Payloads by way of shared memory: in order, cancelled, cut off, and from ranks that lie."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import pytest

from aiodist.errors import ProtocolError
from aiodist.p2p import shm_sender
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import CHUNK_BYTES, EAGER_BYTES, HOST_EAGER_BYTES, Send
from aiodist.p2p.shm_sender import RING_WAKE
from aiodist.shm import message_ring, shared_memory
from aiodist.shm.message_ring import RECORD_BYTES, TAKEN, WRITTEN
from aiodist.wire.frames import TENSOR, FrameType
from tests.p2p.conftest import SetClock
from tests.p2p.pairs import Pair, Side, content

TAG = (TENSOR, 9, 1)
OTHER = (TENSOR, 9, 2)
PART = 64 << 10
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("steady_clock")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """With room for two parts of 64 KiB in each direction, of which one is in use."""
    monkeypatch.setattr(shm_sender, "PART_BYTES", PART)
    monkeypatch.setattr(shared_memory, "MAX_RING_BYTES", 2 * PART + 4096)
    monkeypatch.setattr(shm_sender, "RING_BYTES", -1)  # no message goes in at once
    made = Pair(64 << 20, shared_bytes=8 * MIB)
    yield made
    made.close()


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def all_room_is_free(side: Side) -> bool:
    return not side.ring.untaken


@pytest.mark.parametrize("wakeful", [False, True])
@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize(
    "size",
    [
        *(HOST_EAGER_BYTES + d for d in (-1, 0, 1)),
        *(n * PART + d for n in (3, 4, 5) for d in (-1, 0, 1)),
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
        assert send.done == (size <= HOST_EAGER_BYTES)
        recv = pair.b.recv(TAG, size)
    moved = pair.a.stream.queued()
    while pair.settle_once():
        moved += pair.a.stream.queued()
    assert send.done
    assert content(recv) == data
    if size > HOST_EAGER_BYTES:
        wakes = (size // PART + 1) * len(RING_WAKE)  # at most one a part
        assert moved < wakes + 200, "the payload went down the stream"
        assert all_room_is_free(pair.a)


def test_messages_of_all_sizes_keep_their_order_in_both_directions(pair: Pair) -> None:
    sizes = [10, 300_000, 0, 2_500_000, HOST_EAGER_BYTES, 5, MIB, 1_000_001, 70_000] * 3
    wanted: list[tuple[Recv, bytes]] = []
    for number, size in enumerate(sizes):
        for here, there in ((pair.a, pair.b), (pair.b, pair.a)):
            data = bytes_of(size, number)
            wanted.append((there.recv(TAG, size, ANY_SOURCE if number % 2 else None), data))
            here.send(TAG, data)
    pair.settle()
    for recv, data in wanted:
        assert content(recv) == data
    assert all_room_is_free(pair.a)
    assert all_room_is_free(pair.b)


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
        assert pair.settle_once()
    return recv


def _arrived(pair: Pair) -> int:
    return sum(recv.got for recv in pair.b.inbox.tickets.values())


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
def test_a_receive_cancelled_half_way_is_not_written_and_the_next_one_gets_all(
    pair: Pair, size: int
) -> None:
    recv = half_way(pair, size)
    pair.b.inbox.withdraw(recv)
    assert recv.into is not None
    before = bytes(recv.into)
    pair.settle()
    assert bytes(recv.into) == before
    assert all_room_is_free(pair.a)
    again = pair.b.recv(TAG, size)
    pair.settle()
    assert content(again) == bytes_of(size)


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
def test_a_message_dropped_half_way_releases_its_room(pair: Pair, size: int) -> None:
    recv = half_way(pair, size)
    pair.b.inbox.drop(recv)
    pair.b.inbox.forget_group(9)
    pair.settle()
    later = pair.b.recv(OTHER, size)
    pair.a.send(OTHER, bytes_of(size, 2))
    pair.settle()
    assert content(later) == bytes_of(size, 2)
    assert all_room_is_free(pair.a)


def test_a_message_withdrawn_half_way_is_not_delivered_and_frees_its_room(pair: Pair) -> None:
    size = 8 * MIB
    data = bytearray(bytes_of(size))
    recv = pair.b.recv(TAG, size)
    send = pair.a.send(TAG, data)
    while not _arrived(pair):
        assert pair.settle_once()
    assert pair.a.peer.outbox.withdraw(send)
    data[:] = bytes(size)
    pair.settle()
    assert not recv.done
    pair.a.send(TAG, bytes_of(size, 2))
    pair.settle()
    assert content(recv) == bytes_of(size, 2)
    assert all_room_is_free(pair.a)


def test_a_part_that_was_handed_over_is_copied_if_its_send_ends(pair: Pair) -> None:
    size = 3 * PART
    data = bytearray(bytes_of(size))
    recv = pair.b.recv(TAG, size)
    send = pair.a.send(TAG, data)
    pair.a.stream.push(1 << 40)
    pair.b.stream.push(1 << 40)  # the GRANT: the first part is in the ring
    assert not send.done
    assert not pair.a.peer.outbox.withdraw(send)
    data[:] = bytes(size)
    pair.settle()
    assert content(recv) == bytes_of(size)


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
def test_a_rank_lost_half_way_fails_both_ends(pair: Pair, size: int) -> None:
    recv = half_way(pair, size)
    sends = [pair.b.send(TAG, bytes_of(size)), pair.b.send(TAG, bytes_of(size))]
    pair.lose(pair.b, OSError("cut"))
    for each in (recv, *sends):
        assert each.done
        assert isinstance(each.error, ConnectionError)
    assert not pair.b.peer.shm_receiver.is_busy
    again = pair.b.send(TAG, bytes_of(size))
    assert isinstance(again.error, ConnectionError)


def test_a_sender_without_room_sleeps_until_it_is_woken(pair: Pair) -> None:
    pair.b.recv(TAG, MIB)
    pair.run_soon()
    pair.a.send(TAG, bytes_of(MIB))
    pair.a.stream.push(1 << 40)
    pair.b.stream.push(1 << 40)
    assert not _arrived(pair)
    assert pair.a.stream.queued() == len(RING_WAKE), "woken once"
    pair.a.stream.push(1 << 40)
    assert _arrived(pair) == PART
    assert pair.b.stream.queued() == len(RING_WAKE)
    while pair.run_soon():
        assert _arrived(pair) == PART
    pair.b.stream.push(1 << 40)
    assert pair.a.stream.queued() == len(RING_WAKE)
    pair.settle()


def test_a_part_waits_for_the_end_of_another_however_short(pair: Pair) -> None:
    """Else the free bytes might be enough and not in one piece: nothing would wake the sender then."""
    shm = pair.a.peer.outbox.shm
    assert shm is not None
    sent: list[BaseException | None] = []
    for _ in range(2):
        shm.send_part(1, memoryview(bytes(PART // 2)), sent.append)
    assert sent == [None]
    pair.a.ring_read.words[TAKEN] = pair.a.ring.position
    shm.woken()
    assert sent == [None, None]


def given_up(pair: Pair) -> Send:
    """Start a message whose receive is given up after its grant has gone."""
    recv = pair.b.recv(TAG, 3 * MIB)
    send = pair.a.send(TAG, bytes_of(3 * MIB))
    pair.a.stream.push(1 << 40)
    pair.b.stream.push(1 << 40)
    pair.b.inbox.drop(recv)
    pair.b.inbox.forget(TAG)
    return send


def test_parts_for_a_cancelled_receive_make_room(pair: Pair) -> None:
    """Though the receiver waits for nothing any more, and so would not look."""
    send = given_up(pair)
    pair.settle()
    assert send.done
    assert pair.a.ring.untaken < 2 * PART  # which are read with the next receive


def test_a_part_behind_the_last_message_that_is_wanted_is_looked_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no wake-up: its receiver was woken already, for that message."""
    send = given_up(pair)
    small = pair.b.recv(OTHER, 3)
    while pair.run_soon():
        pass
    pair.a.stream.push(1 << 40)  # b takes a part and sleeps; that it did is on its way to a
    assert pair.b.stream.queued()
    monkeypatch.setattr(shm_sender, "RING_BYTES", 4 * MIB)
    pair.a.send(OTHER, b"now")
    small.callback = lambda: pair.b.stream.push(1 << 40)  # a goes on while b handles its message
    pair.settle()
    assert content(small) == b"now"
    assert send.done


def test_a_message_that_waits_in_the_ring_does_not_hold_parts_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the stream as soon as the ring is full, and keep their order."""
    monkeypatch.setattr(shm_sender, "RING_BYTES", 4 * MIB)
    pair.a.send(OTHER, b"unexpected")
    monkeypatch.setattr(shm_sender, "RING_BYTES", -1)
    recv = pair.b.recv(TAG, 3 * MIB)
    pair.a.send(TAG, bytes_of(3 * MIB))
    moved = 0
    while pair.settle_once():
        moved += pair.a.stream.queued()
    assert content(recv) == bytes_of(3 * MIB)
    assert moved > 2 * PART
    assert content(pair.b.recv(OTHER, 10)) == b"unexpected"
    assert all_room_is_free(pair.a)


def test_a_part_in_the_ring_waits_for_one_that_the_stream_has_begun(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_sender, "RING_BYTES", 4 * MIB)
    pair.a.send(OTHER, b"unexpected")
    monkeypatch.setattr(shm_sender, "RING_BYTES", -1)
    size = 8 * MIB
    recv = pair.b.recv(TAG, size)
    pair.a.send(TAG, bytes_of(size))
    stream = pair.a.stream
    while stream.queued() < PART:
        assert pair.settle_once()
    assert content(pair.b.recv(OTHER, 10)) == b"unexpected"  # so that parts wait for room again
    pair.b.peer.shm_receiver.woken()
    kernel, stream.queue = stream.queue, deque()
    for _, on_sent in kernel:
        if on_sent is not None:
            on_sent(None)
    assert pair.a.ring.untaken
    assert stream.queued() <= len(RING_WAKE)
    stream.queue = deque((rest, None) for rest, _ in kernel)
    stream.push(stream.queued() - 1000)
    pair.b.peer.shm_receiver.woken()
    assert pair.a.ring.untaken
    pair.settle()
    assert content(recv) == bytes_of(size)


def test_the_stream_carries_long_messages_if_the_ring_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a host of hundreds of ranks."""
    monkeypatch.setattr(shared_memory, "MAX_RING_BYTES", 8 << 10)
    pair = Pair(64 << 20, shared_bytes=MIB)
    recvs = [pair.b.recv(TAG, size) for size in (5, 3 * MIB, 5)]
    sends = [pair.a.send(TAG, bytes_of(len(recv.into))) for recv in recvs if recv.into is not None]
    moved = 0
    while pair.settle_once():
        assert pair.a.ring.untaken < 100
        moved = max(moved, pair.a.stream.queued())
    assert moved > CHUNK_BYTES
    assert [content(recv) for recv in recvs] == [bytes_of(size) for size in (5, 3 * MIB, 5)]
    assert all(send.done for send in sends)
    pair.close()


def test_a_message_goes_over_the_stream_at_once_if_the_ring_is_too_small_for_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory, "MAX_RING_BYTES", 8 << 10)
    pair = Pair(64 << 20, shared_bytes=MIB)
    send = pair.a.send(TAG, bytes_of(EAGER_BYTES))
    pair.settle()
    assert send.done  # no receive has granted it
    assert content(pair.b.recv(TAG, EAGER_BYTES)) == bytes_of(EAGER_BYTES)
    pair.close()


def test_without_a_ring_messages_use_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MIN_RING_BYTES", MIB)
    pair = Pair(64 << 20, shared_bytes=MIB)
    recv = pair.b.recv(TAG, 3 * MIB)
    pair.a.send(TAG, bytes_of(3 * MIB))
    pair.settle()
    assert content(recv) == bytes_of(3 * MIB)
    assert pair.a.peer.outbox.shm is not None
    assert pair.a.peer.outbox.shm.ring is None
    pair.close()


def begun(pair: Pair) -> Recv:
    """A receive of which the first parts are in the ring, unread."""
    recv = pair.b.recv(TAG, 200_000)
    pair.a.send(TAG, bytes_of(200_000))
    pair.a.stream.push(1 << 40)
    pair.b.stream.push(1 << 40)
    return recv


@pytest.mark.parametrize("wakeful", [False, True])
def test_a_part_whose_sender_was_stopped_in_the_middle_is_taken_when_it_is_whole(
    pair: Pair, wakeful: bool
) -> None:
    recv = begun(pair)
    pair.b.spin_policy.active = wakeful
    words = pair.b.ring_read.words
    written = words[WRITTEN]
    words[WRITTEN] = written - 1000
    pair.settle()
    assert recv.got == 0
    assert recv.into is not None
    assert bytes(recv.into[:2000]) == bytes_of(200_000)[:2000], "copied while it arrives"
    words[WRITTEN] = written
    pair.a.stream.send([RING_WAKE])  # as the sender does for a receiver that sleeps
    pair.settle()
    assert content(recv) == bytes_of(200_000)
    assert all_room_is_free(pair.a)


class LateError(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("wakeful", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("settles", [False, True])
def test_a_message_whose_copy_a_signals_handler_strikes_never_arrives_torn(
    pair: Pair, wakeful: bool, nth: int, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_sender, "RING_BYTES", MIB)
    monkeypatch.setattr(shm_sender, "PIECE_BYTES", 4096)
    copies = 0

    def struck(into: memoryview, data: memoryview) -> None:
        nonlocal copies
        copies += 1
        if copies == nth:
            raise LateError
        into[:] = data

    pair.a.spin_policy.active = wakeful
    recvs = [pair.b.recv(TAG, 50_000), pair.b.recv(TAG, 50_000)]
    with monkeypatch.context() as patch:
        patch.setattr(message_ring, "copy", struck)
        with suppress(LateError):
            pair.a.send(TAG, bytes_of(50_000, 1))
    if settles:
        pair.settle()
    pair.a.send(TAG, bytes_of(50_000, 2))
    pair.settle()
    came = [content(recv) for recv in recvs if recv.done and recv.error is None]
    assert set(came) <= {bytes_of(50_000, 1), bytes_of(50_000, 2)}
    assert came or pair.a.lost


@pytest.mark.parametrize("word", ["written", "length", "frame", "beyond"])
def test_a_sender_that_lies_is_cut_off(pair: Pair, word: str) -> None:
    recv = begun(pair)
    ring = pair.a.ring_bytes
    words = ring.cast("Q")
    if word == "written":
        pair.b.ring_read.words[WRITTEN] = 1 << 40
    elif word == "length":
        words[0] = 1 << 40
    elif word == "frame":
        ring[RECORD_BYTES + words[1]] = FrameType.GRANT
    else:
        recv.got = 199_000  # as if so much had come
    pair.settle()
    assert [type(error) for error in pair.b.lost] == [ProtocolError]
    assert recv.error is not None


def test_a_receiver_that_lies_is_cut_off(pair: Pair) -> None:
    pair.a.send(OTHER, bytes_of(200_000))
    pair.b.recv(OTHER, 200_000)
    pair.a.stream.push(1 << 40)
    pair.a.ring_read.words[TAKEN] = 1 << 40
    pair.b.stream.push(1 << 40)
    assert isinstance(pair.a.lost[0], ProtocolError)
    assert "rank 1 has taken" in str(pair.a.lost[0])


def test_a_wake_up_of_a_peer_without_shared_memory_does_nothing() -> None:
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, 3)
    pair.a.stream.send([RING_WAKE])
    pair.a.send(TAG, b"one")
    pair.settle()
    assert content(recv) == b"one"


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
        shared = [pair.b.ring_read.words, pair.a.ring_bytes.cast("Q")]
        for _ in range(6):
            pair.a.stream.push(1 << 40)
            value = chance.choice([0, 1, 2, 5, 70_000, 2**32, 2**63, 2**64 - 1])
            chance.choice(shared)[chance.choice([0, 1, 2, 3, 4])] = value
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
