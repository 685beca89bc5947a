"""Short messages by way of memory: their order, their credit, cancelled, cut off, and from liars."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from aiodist.alignment import SHORT
from aiodist.errors import ProtocolError
from aiodist.p2p import shm_sender
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import EAGER_BYTES, HOST_EAGER_BYTES, Send, head_of
from aiodist.p2p.shm_receiver import MESSAGES_A_LOOK
from aiodist.p2p.shm_sender import PIECE_BYTES, RING_BYTES, RING_WAKE
from aiodist.shm import message_ring
from aiodist.shm.message_ring import (
    RECORD_BYTES,
    TAKEN,
    WITHDRAWALS,
    WRITTEN,
    RingReader,
    RingWriter,
)
from aiodist.shm.shared_memory import SharedMemory
from aiodist.wire.frames import COLLECTIVE, HEADER_BYTES, TENSOR, FrameType, ShortHeaders, decode
from tests.p2p.conftest import SetClock
from tests.p2p.pairs import Pair, Side, content

TAG = (TENSOR, 9, 1)
OTHER = (TENSOR, 9, 2)
WINDOW = 8 << 20
LONG = bytes(range(251)) * (RING_BYTES // 250)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(WINDOW, shared_bytes=32 << 20)
    yield made
    made.close()


def bytes_of(number: int, size: int) -> bytes:
    return (number.to_bytes(3, "little") * (size // 3 + 1))[:size]


def waiting(side: Side) -> int:
    """Bytes that this side has put in and the other has not taken."""
    return side.ring.untaken


def send_by_stream(pair: Pair, data: bytes) -> None:
    """As if the ring of side a were full."""
    shm = pair.a.peer.outbox.shm
    assert shm is not None
    put, shm.put = shm.put, lambda *_: False  # type: ignore[method-assign]
    pair.a.send(TAG, data)
    shm.put = put  # type: ignore[method-assign]


@pytest.mark.parametrize("posted_first", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4096, RING_BYTES])
def test_a_short_message_does_without_the_stream(pair: Pair, size: int, posted_first: bool) -> None:
    if posted_first:
        recv = pair.b.recv(TAG, size)
        send = pair.a.send(TAG, bytes_of(5, size))
        assert send.done
        pair.run_soon()  # as its turn of the loop comes
    else:
        send = pair.a.send(TAG, bytes_of(5, size))
        assert send.done
        recv = pair.b.recv(TAG, size)
    assert pair.a.stream.queued() == 0
    assert content(recv) == bytes_of(5, size)
    assert waiting(pair.a) == 0
    assert pair.b.peer.bytes_heard >= size


def test_longer_messages_and_collectives_take_the_stream(pair: Pair) -> None:
    for send in (lambda: pair.a.send((COLLECTIVE, 9, 1), b"x"), lambda: pair.a.send(TAG, LONG)):
        send()
        assert pair.a.stream.queued() > 0
        pair.settle()
    assert content(pair.b.recv((COLLECTIVE, 9, 1), 1)) == b"x"
    recv = pair.b.recv(TAG, len(LONG))
    pair.settle()
    assert content(recv) == LONG


def test_only_a_rank_that_has_mapped_this_memory_is_sent_anything_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as not_yet:
        not_yet.setattr(SharedMemory, "is_mapped_by", lambda *_: False)
        pair.a.send(TAG, b"x")
    assert pair.a.stream.queued() > 0
    pair.settle()
    pair.a.send(TAG, b"y")
    assert pair.a.stream.queued() == 0
    assert content(pair.b.recv(TAG, 1)) + content(pair.b.recv(TAG, 1)) == b"xy"


SIZES = [10, RING_BYTES + 1, 0, 700_000, 5, 5, 300_000, EAGER_BYTES, 1]


@pytest.mark.parametrize("posted", ["before", "between", "after"])
@pytest.mark.parametrize("anybody", [False, True])
def test_all_ways_together_keep_the_order(pair: Pair, posted: str, anybody: bool) -> None:
    data = [bytes_of(number, size) for number, size in enumerate(SIZES * 5)]
    recvs: list[Recv] = []

    def post() -> None:
        size = len(data[len(recvs)])
        recvs.append(pair.b.recv(TAG, size, ANY_SOURCE if anybody else None))

    if posted == "before":
        for _ in data:
            post()
    for each in data:
        pair.a.send(TAG, each)
        if posted == "between":
            post()
            pair.a.stream.push(50)
            pair.run_soon()
    while len(recvs) < len(data):
        post()
    pair.settle()
    assert [content(recv) for recv in recvs] == data
    assert waiting(pair.a) == 0


def test_no_message_overtakes_one_that_waits_for_credit() -> None:
    pair = Pair(4096, shared_bytes=32 << 20)
    try:
        sends = [pair.a.send(TAG, bytes(RING_BYTES + 1)) for _ in range(5)]
        after = pair.a.send(TAG, b"short")
        assert not after.done
        recvs = [pair.b.recv(TAG, len(send.data)) for send in (*sends, after)]
        pair.settle()
        assert content(recvs[-1]) == b"short"
        assert all(recv.done and recv.error is None for recv in recvs)
    finally:
        pair.close()


def test_an_unexpected_message_waits_in_the_ring_and_costs_no_credit(pair: Pair) -> None:
    credit, size = pair.a.peer.outbox.credit, RING_BYTES // 8
    for number in range(7):
        assert pair.a.send(TAG, bytes_of(number, size)).done
    assert pair.a.peer.outbox.credit == credit
    pair.b.recv(OTHER, 0)  # looks at them
    assert waiting(pair.a) >= 7 * size
    assert pair.b.inbox.matcher.arrived_bytes() == 7 * size
    pair.a.send(TAG, bytes_of(7, 2 * size))  # there is no room: the stream has it
    assert pair.a.peer.outbox.credit < credit
    pair.settle()
    for number in range(8):
        recv = pair.b.recv(TAG, size if number < 7 else 2 * size)
        pair.settle()
        assert content(recv) == bytes_of(number, size if number < 7 else 2 * size)
    assert waiting(pair.a) == 0


def test_a_closed_group_gives_the_room_back(pair: Pair) -> None:
    pair.a.send(TAG, b"one")
    pair.b.recv(OTHER, 0)
    assert waiting(pair.a) > 0
    pair.b.inbox.forget_group(9)
    assert waiting(pair.a) == 0
    pair.a.send(TAG, b"two")
    pair.b.over.add(TAG)
    pair.b.recv((TENSOR, 10, 1), 0)
    assert waiting(pair.a) == 0
    assert pair.b.late == [(TAG, 0, b"m", 3)]


def test_a_message_that_does_not_fit_its_receive_is_dropped(pair: Pair) -> None:
    pair.a.send(TAG, b"four")
    wrong = pair.b.recv(TAG, 5)
    assert isinstance(wrong.error, ValueError)
    assert waiting(pair.a) == 0


def test_a_cancelled_receive_leaves_the_message_to_the_next(pair: Pair) -> None:
    first = pair.b.recv(TAG, 3)
    pair.b.inbox.withdraw(first)
    pair.a.send(TAG, b"now")
    pair.settle()
    assert not first.done
    assert content(pair.b.recv(TAG, 3)) == b"now"


def test_a_sleeping_receiver_is_woken_once_for_several_messages(pair: Pair) -> None:
    recvs = [pair.b.recv(TAG, 1) for _ in range(4)]
    pair.run_soon()
    for plan in b"abcd":
        pair.a.send(TAG, bytes([plan]))
    assert pair.a.stream.queued() == 40
    pair.settle()
    assert b"".join(content(recv) for recv in recvs) == b"abcd"
    pair.a.send(TAG, b"e")  # no receive is posted
    assert pair.a.stream.queued() == 0


def test_bytes_that_follow_are_copied_as_they_come(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that times out on them has consumed nothing: a later receive gets the whole message."""
    data = bytes_of(7, 9000)
    head, place = head_of(TAG, b"m", len(data)), memoryview(bytearray(len(data)))
    frame, _ = decode(memoryview(head))
    shm_receiver, ring = pair.b.peer.shm_receiver, pair.a.ring
    assert ring.put(0, head, memoryview(data), 4000)
    ring.fill(memoryview(data), 4000)
    assert not shm_receiver.take(head, frame, place, None)
    assert bytes(place[:4000]) == data[:4000]
    assert bytes(place[4000:]) == bytes(5000)
    ring.fill(memoryview(data), 5000)
    assert content(pair.b.recv(TAG, len(data))) == data

    assert ring.put(0, head, memoryview(data), 4000)

    class Clock:
        """Looked at while nothing comes: that is when the sender goes on."""

        def __call__(self) -> float:
            if not ring.is_whole:
                ring.fill(memoryview(data), 2500)
            return 0.0

    monkeypatch.setattr("aiodist.p2p.shm_receiver.perf_counter", Clock())
    place[:] = bytes(len(data))
    assert shm_receiver.take(head, frame, place, None)
    assert bytes(place) == data
    assert waiting(pair.a) == 0
    assert pair.b.peer.last == frame


class Steps:
    """Calls ``between`` after each piece that is copied into a ring, with the number copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.between: Callable[[int], None] = lambda _: None
        fill, pieces = RingWriter.fill, 0

        def filled(ring: RingWriter, data: memoryview, piece: int) -> bool:
            nonlocal pieces
            more = fill(ring, data, piece)
            pieces += 1
            self.between(pieces)
            pieces = pieces if more else 0
            return more

        monkeypatch.setattr(RingWriter, "fill", filled)


@pytest.fixture
def steps(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Steps:
    for side in (pair.a, pair.b):
        side.spin_policy.active = True  # so that messages go in pieces
    # A turn of the progress engine then has the same length on a busy machine as on an idle one.
    looks = itertools.count()
    monkeypatch.setattr("aiodist.p2p.shm_progress.perf_counter", lambda: next(looks) * 20e-6)
    return Steps(monkeypatch)


def asleep(pair: Pair, pieces: int) -> tuple[bytes, Recv]:
    """A message of so many pieces, and the other rank's receive for it, which sleeps."""
    data = bytes_of(3, pieces * PIECE_BYTES)
    recv = pair.b.recv(TAG, len(data))
    pair.run_soon()
    return data, recv


def test_a_sleeping_receiver_is_woken_by_the_head_of_a_long_message(
    pair: Pair, steps: Steps
) -> None:
    """And copies out what has come while more is copied in."""
    data, recv = asleep(pair, 4)
    heard: list[int] = []

    def between(pieces: int) -> None:
        if pieces != 3:
            pair.a.stream.push(1 << 40)  # the wake-up; the second is for the rest
            pair.b.shm_progress.work()
        heard.append(pair.b.peer.bytes_heard - before)
        assert not recv.done or pieces == 4

    steps.between = between
    before = pair.b.peer.bytes_heard
    pair.a.send(TAG, data)
    assert [bytes_heard // PIECE_BYTES for bytes_heard in heard] == [1, 2, 2, 4]
    assert content(recv) == data
    assert waiting(pair.a) == 0
    after = pair.b.recv(TAG, 1)
    pair.settle()
    pair.a.send(TAG, b"x")
    pair.settle()
    assert content(after) == b"x"


def test_a_receiver_that_waits_in_a_message_is_woken_at_its_end(pair: Pair, steps: Steps) -> None:
    data, recv = asleep(pair, 2)
    steps.between = lambda pieces: pieces == 1 and pair.a.stream.push(1 << 40)
    pair.a.send(TAG, data)
    assert not recv.done
    assert pair.a.stream.push(1 << 40) > 0
    assert content(recv) == data


def test_a_receiver_that_falls_asleep_in_a_message_looks_once_more(
    pair: Pair, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender may have looked whether it sleeps just before."""
    data, recv = asleep(pair, 2)
    arm = RingReader.arm
    words = pair.b.ring_read.words
    first = whole = 0

    def late(ring: RingReader) -> None:
        words[WRITTEN] = whole
        arm(ring)

    def between(pieces: int) -> None:
        nonlocal first, whole
        if pieces == 1:
            first = words[WRITTEN]
        if pieces == 2:
            whole, words[WRITTEN] = words[WRITTEN], first
            monkeypatch.setattr(RingReader, "arm", late)
            pair.a.stream.push(1 << 40)
            assert recv.done

    steps.between = between
    pair.a.send(TAG, data)
    assert content(recv) == data


def test_a_receive_cancelled_in_the_middle_of_a_message_leaves_it_to_the_next(
    pair: Pair, steps: Steps
) -> None:
    data, first = asleep(pair, 3)
    kept = b""
    second: list[Recv] = []

    def between(pieces: int) -> None:
        nonlocal kept
        if pieces == 1:
            pair.a.stream.push(1 << 40)
            pair.b.inbox.withdraw(first)
            assert first.into is not None
            kept = bytes(first.into)
        if pieces == 2:
            second.append(pair.b.recv(TAG, len(data)))

    steps.between = between
    pair.a.send(TAG, data)
    pair.settle()
    assert not first.done
    assert first.into == kept, "a cancelled receive was written to"
    assert content(second[0]) == data
    assert waiting(pair.a) == 0


def test_a_long_message_without_a_receive_is_looked_at_when_it_is_whole(
    pair: Pair, steps: Steps
) -> None:
    other = pair.b.recv(OTHER, 1)
    pair.run_soon()
    data = bytes_of(3, 3 * PIECE_BYTES)

    def between(pieces: int) -> None:
        pair.a.stream.push(1 << 40)
        assert not pair.b.inbox.matcher.arrived or pieces == 3

    steps.between = between
    pair.a.send(TAG, data)
    pair.settle()
    assert content(pair.b.recv(TAG, len(data))) == data
    pair.a.send(OTHER, b"x")
    pair.settle()
    assert content(other) == b"x"


def test_a_long_message_that_does_not_fit_its_receive_is_dropped(pair: Pair, steps: Steps) -> None:
    data = bytes_of(3, 2 * PIECE_BYTES)
    wrong, right = pair.b.recv(TAG, 5), pair.b.recv(TAG, 1)
    pair.run_soon()
    steps.between = lambda _: pair.a.stream.push(1 << 40)
    pair.a.send(TAG, data)
    pair.a.send(TAG, b"x")
    pair.settle()
    assert isinstance(wrong.error, ValueError)
    assert content(right) == b"x"
    assert waiting(pair.a) == 0


def test_after_a_long_message_the_next_ones_are_looked_at(pair: Pair, steps: Steps) -> None:
    data = bytes_of(3, 2 * PIECE_BYTES)
    recvs = [pair.b.recv(TAG, len(data)), pair.b.recv(TAG, 1), pair.b.recv(TAG, 1)]
    pair.run_soon()
    steps.between = lambda pieces: pieces == 1 and pair.a.stream.push(1 << 40)
    pair.a.send(TAG, data)
    pair.a.send(TAG, b"x")
    pair.a.stream.queue.clear()  # it looks by itself
    pair.b.shm_progress.work()
    assert content(recvs[0]) + content(recvs[1]) == data + b"x"
    pair.run_soon()
    pair.a.send(TAG, b"y")
    assert pair.a.stream.queued() > 0
    pair.settle()
    assert content(recvs[2]) == b"y"


def test_where_ranks_take_turns_on_a_core_all_of_a_message_is_there_at_once(
    pair: Pair, steps: Steps
) -> None:
    pair.a.spin_policy.active = False
    steps.between = lambda _: pytest.fail("it goes in pieces")
    data = bytes_of(3, 2 * PIECE_BYTES)
    pair.a.send(TAG, data)
    assert content(pair.b.recv(TAG, len(data))) == data


@pytest.mark.parametrize("last", ["unseen", "missing"])
def test_a_sender_lost_in_the_middle_of_a_message(pair: Pair, steps: Steps, last: str) -> None:
    """The message arrives if the sender had written all of it before it was lost."""
    data, recv = asleep(pair, 2)

    def between(pieces: int) -> None:
        if pieces == 1:
            pair.a.stream.push(1 << 40)
        if pieces == (1 if last == "missing" else 2):
            peer = pair.b.peer
            peer.error = ConnectionError("cast out")  # no stream was read
            pair.b.inbox.peer_lost(peer, peer.error)

    steps.between = between
    pair.a.send(TAG, data)
    if last == "missing":
        assert isinstance(recv.error, ConnectionError)
        assert not pair.b.peer.shm_receiver.is_busy
    else:
        assert content(recv) == data
    assert isinstance(pair.b.recv(TAG, 1).error, ConnectionError)


def test_a_later_message_over_the_stream_comes_after_one_in_the_ring(
    pair: Pair, steps: Steps
) -> None:
    data = bytes_of(3, 2 * PIECE_BYTES)
    recvs = [pair.b.recv(TAG, len(data)), pair.b.recv(TAG, 1)]
    pair.run_soon()
    order: list[int] = []
    for number, recv in enumerate(recvs):
        recv.callback = lambda number=number: order.append(number)  # type: ignore[misc]
    steps.between = lambda pieces: pieces == 1 and pair.a.stream.push(1 << 40)
    pair.a.send(TAG, data)
    pair.a.stream.queue.clear()  # drop the wake-up that is in flight
    send_by_stream(pair, b"x")
    pair.settle()
    assert order == [0, 1]
    assert content(recvs[0]) + content(recvs[1]) == data + b"x"


@pytest.mark.parametrize("lie", ["taken back", "sent on"])
def test_a_sender_that_lies_in_the_middle_of_a_message_is_cut_off(
    pair: Pair, steps: Steps, lie: str
) -> None:
    recv = pair.b.recv(TAG, 2 * PIECE_BYTES)
    pair.run_soon()

    def between(pieces: int) -> None:
        if pieces > 1:
            return
        pair.a.stream.push(1 << 40)
        if lie == "taken back":
            pair.a.ring_bytes.cast("Q")[0] -= 1
            pair.b.shm_progress.work()
            pair.run_soon()
        else:
            send_by_stream(pair, b"x")
            with pytest.raises(ProtocolError, match="in the middle of a message") as raised:
                pair.a.stream.push(1 << 40)
            pair.lose(pair.b, raised.value)

    steps.between = between
    pair.a.send(TAG, bytes(2 * PIECE_BYTES))
    assert isinstance(recv.error, ConnectionError)
    assert [type(error) for error in pair.b.lost] == [ProtocolError]


def test_a_sender_that_lies_when_its_links_have_ended_is_not_looked_at_any_more(
    pair: Pair, steps: Steps
) -> None:
    recv = pair.b.recv(TAG, 2 * PIECE_BYTES)
    pair.run_soon()

    def between(pieces: int) -> None:
        if pieces == 1:
            pair.a.stream.push(1 << 40)
            pair.b.peer.links.clear()
            pair.a.ring_bytes.cast("Q")[0] -= 1
            pair.b.shm_progress.work()

    steps.between = between
    pair.a.send(TAG, bytes(2 * PIECE_BYTES))
    pair.b.shm_progress.work()
    assert not recv.done
    pair.lose(pair.b)
    assert isinstance(recv.error, ConnectionError)
    assert not pair.b.peer.shm_receiver.is_busy


def test_messages_are_prompt_while_the_receiver_is_awake(pair: Pair) -> None:
    shm_receiver = pair.b.peer.shm_receiver
    assert not shm_receiver.is_prompt
    pair.a.send(TAG, b"x")
    pair.b.recv(TAG, 1)
    assert shm_receiver.is_prompt
    pair.b.recv(TAG, 1)
    pair.a.send(TAG, b"x")
    shm_receiver.poll()  # as a polling receiver does
    assert shm_receiver.is_prompt
    pair.b.recv(TAG, 1)
    pair.run_soon()
    pair.a.send(TAG, b"x")
    pair.settle()
    assert not shm_receiver.is_prompt


def test_a_receiver_woken_before_an_earlier_stream_message_looks_again(pair: Pair) -> None:
    """The wake-up was for the first message; the sender sends no wake-up for the last one."""
    recvs = [pair.b.recv(TAG, 1) for _ in range(3)]
    pair.run_soon()
    pair.a.send(TAG, b"1")
    send_by_stream(pair, b"2")
    pair.a.send(TAG, b"3")
    assert pair.a.stream.push(40) == 40  # the wake-up
    assert [recv.done for recv in recvs] == [True, False, False]
    pair.settle()
    assert b"".join(content(recv) for recv in recvs) == b"123"


def test_a_message_that_is_sent_on_from_within_another(pair: Pair) -> None:
    """Each receive is posted, and answered, by the end of the one before."""
    count = left = 100
    got: list[bytes] = []

    def again(recv: Recv | None = None) -> None:
        nonlocal left
        if recv is not None:
            got.append(content(recv))
        if left:
            left -= 1
            following = pair.b.recv(TAG, 1)
            following.callback = lambda: again(following)
            if following.done:
                again(following)
            pair.a.send(TAG, bytes([left]))

    again()
    pair.settle()
    assert got == [bytes([number]) for number in reversed(range(count))]


def test_taking_one_message_does_not_recurse_into_the_next(pair: Pair) -> None:
    """Else the stack would grow with each of a row."""
    done: list[bool] = []

    def again() -> None:
        if len(done) < 5:
            pair.a.send(TAG, b"x")
            following = pair.b.recv(TAG, 1)
            following.callback = again
            done.append(following.done)

    pair.b.recv(TAG, 1).callback = again
    pair.a.send(TAG, b"x")
    pair.settle()
    assert done == [False] * 5


def test_a_receiver_that_falls_asleep_looks_once_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender may have looked whether it sleeps just before."""
    arm = RingReader.arm

    def late(ring: RingReader) -> None:
        if not ring.is_asleep:
            pair.a.send(TAG, b"x")
        arm(ring)

    monkeypatch.setattr(RingReader, "arm", late)
    recv = pair.b.recv(TAG, 1)
    pair.run_soon()
    assert pair.a.stream.queued() == 0
    assert content(recv) == b"x"


def test_a_complete_message_outlives_its_sender(pair: Pair) -> None:
    pair.a.send(TAG, b"looked at")
    pair.b.recv(OTHER, 0)
    pair.a.send(TAG, b"not yet")
    pair.lose(pair.b, OSError("cut"))
    arrived = [each for queue in pair.b.inbox.matcher.arrived.values() for each in queue]
    assert [each.eager_message for each in arrived] == [None, None]
    memory = pair.memories[1]
    assert memory is not None
    memory.close()
    assert content(pair.b.recv(TAG, 9)) == b"looked at"
    assert content(pair.b.recv(TAG, 7)) == b"not yet"
    assert isinstance(pair.b.recv(TAG, 1).error, ConnectionError)


def test_a_receive_that_only_the_lost_rank_could_answer_fails(pair: Pair) -> None:
    recv = pair.b.recv(TAG, 1)
    pair.a.send(OTHER, b"x")
    pair.lose(pair.b, OSError("cut"))
    assert isinstance(recv.error, ConnectionError)
    after: Send = pair.b.send(TAG, b"x")
    assert isinstance(after.error, ConnectionError)


@pytest.mark.parametrize(
    "lie", ["length", "no frame", "another kind", "another frame", "length in the frame"]
)
def test_a_sender_that_lies_is_cut_off(pair: Pair, lie: str) -> None:
    recv = pair.b.recv(TAG, 3)
    pair.a.send(TAG, b"one")
    ring, begin = pair.a.ring_bytes, RECORD_BYTES
    if lie == "length":
        ring.cast("Q")[0] = 1 << 50
    elif lie == "no frame":
        ring[begin : begin + 8] = b"\xff" * 8
    elif lie == "another kind":
        ring[begin + 1] = COLLECTIVE
    elif lie == "another frame":
        ring[begin] = FrameType.GOODBYE
    else:
        ring[begin + HEADER_BYTES - 8 : begin + HEADER_BYTES] = bytes([1]) * 8
    pair.run_soon()
    assert isinstance(recv.error, ConnectionError)
    assert [type(error) for error in pair.b.lost] == [ProtocolError]
    pair.settle()


def test_a_receiver_that_lies_is_cut_off(pair: Pair) -> None:
    pair.a.send(TAG, b"one")
    pair.a.ring_read.words[TAKEN] = 500
    pair.a.send(TAG, b"two")
    pair.run_soon()
    assert [type(error) for error in pair.a.lost] == [ProtocolError]


def test_garbage_found_by_a_message_of_the_stream_fails_that_message_too(pair: Pair) -> None:
    """A receive from anybody is not given to it: it could still have one from another rank."""
    pair.a.send(OTHER, b"x")
    send_by_stream(pair, bytes(100_000))
    pair.a.ring_bytes[RECORD_BYTES + 1] = COLLECTIVE
    anybody = Recv(TAG, ANY_SOURCE, memoryview(bytearray(100_000)), b"m", lambda *_: None)
    pair.b.inbox.matcher.post(anybody)
    with pytest.raises(ProtocolError, match="malformed data") as raised:
        pair.a.stream.push(50_000)
    pair.lose(pair.b, raised.value)
    assert not anybody.done
    assert pair.b.inbox.matcher.withdraw(anybody)


def test_the_loop_has_its_turn_in_a_flood_of_short_messages(pair: Pair) -> None:
    recvs = [pair.b.recv(TAG, 1) for _ in range(3 * MESSAGES_A_LOOK)]
    pair.run_soon()
    for _ in recvs:
        pair.a.send(TAG, b"x")
    done = [0]
    while pair.settle_once():
        done.append(sum(recv.done for recv in recvs))
        assert done[-1] - done[-2] <= 2 * MESSAGES_A_LOOK
    assert done[-1] == len(recvs)


def test_a_short_message_is_taken_without_a_receive(pair: Pair) -> None:
    def take(key: tuple[int, int, int]) -> bytes | None:
        return pair.b.peer.shm_receiver.take_short(ShortHeaders(key))

    assert take(TAG) is None
    pair.a.send(TAG, b"1", b"")
    pair.a.send(TAG, bytes(SHORT + 1), b"")
    assert take(OTHER) is None
    assert take(TAG) == b"1"
    assert take(TAG) is None  # it is too long
    pair.b.recv(TAG, None)
    pair.a.send(TAG, b"2", b"with metadata")
    assert take(TAG) is None
    assert waiting(pair.a) > 0


def test_a_spinning_receiver_polls_the_ring(pair: Pair) -> None:
    recv = pair.b.recv(TAG, 1)
    pair.a.send(TAG, b"x")
    assert not recv.done
    for poll in pair.b.peer.polls():
        poll()
    assert content(recv) == b"x"


def test_a_long_message_is_not_posted_to_the_stream() -> None:
    pair = Pair(WINDOW)
    outbox = pair.a.peer.outbox
    for length, posted in ((HOST_EAGER_BYTES, True), (HOST_EAGER_BYTES + 1, False)):
        data = memoryview(bytes(length))
        assert outbox.post(head_of(TAG, b"m", length), data) == posted


def test_a_collectives_receive_is_not_for_the_box(pair: Pair) -> None:
    pair.b.recv((COLLECTIVE, 9, 1), 1)
    assert not pair.b.inbox.matcher.waits_for(0)
    pair.b.recv(TAG, 1)
    assert pair.b.inbox.matcher.waits_for(0)


class LateError(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("wakeful", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("settles", [False, True])
def test_a_message_whose_copy_a_signals_handler_strikes_never_arrives_torn(
    pair: Pair, wakeful: bool, nth: int, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            pair.a.send(TAG, bytes_of(1, 50_000))
    if settles:
        pair.settle()
    pair.a.send(TAG, bytes_of(2, 50_000))
    pair.settle()
    came = [content(recv) for recv in recvs if recv.done and recv.error is None]
    assert set(came) <= {bytes_of(1, 50_000), bytes_of(2, 50_000)}
    assert came or pair.a.lost


def test_a_wake_up_of_a_peer_without_shared_memory_does_nothing() -> None:
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, 3)
    pair.a.stream.send([RING_WAKE])
    pair.a.send(TAG, b"one")
    pair.settle()
    assert content(recv) == b"one"


def test_every_message_ends_whatever_the_shared_words_say(set_clock: SetClock) -> None:
    """Garbage in what rank 0 has written: rank 1 takes what fits, or cuts it off."""
    set_clock(3e-4)  # a turn ends after few pieces, so that there is a time to lie between them
    cut = 0
    large, data = RING_BYTES + 1, bytes(RING_BYTES + 1)
    for seed in range(40):
        chance = random.Random(seed)
        pair = Pair(64 << 20, shared_bytes=32 << 20)
        recvs = [pair.b.recv(TAG, large), pair.b.recv(OTHER, 200_000)]
        sends = [pair.a.send(TAG, data), pair.a.send(OTHER, data[:200_000])]
        shared = [pair.b.ring_read.words, pair.a.ring_bytes.cast("Q")]
        for _ in range(6):
            pair.a.stream.push(1 << 40)
            value = chance.choice([0, 1, 2, 5, 70_000, 2**32, 2**63, 2**64 - 1])
            chance.choice(shared)[chance.choice([0, 1, 2, 3, WITHDRAWALS])] = value
            pair.b.stream.push(1 << 40)
        pair.settle()
        errors = pair.b.lost + pair.a.lost
        assert all(isinstance(error, ProtocolError) for error in errors)
        cut += bool(errors)
        pair.lose(pair.a)
        pair.lose(pair.b)
        assert all(each.done for each in (*recvs, *sends))
        pair.close()
    assert cut
