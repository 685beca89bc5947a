"""Receives and sends that are cancelled, refused or cut off, one state at a time."""

from __future__ import annotations

import tracemalloc
from copy import copy

import pytest

from aiodist.errors import ProtocolError
from aiodist.links.rank_info import RankInfo
from aiodist.p2p.matching import ANY_SOURCE, Arrival
from aiodist.p2p.outbox import CHUNK_BYTES, EAGER_BYTES, MESSAGE_COST, MOST_WANTED
from aiodist.p2p.peer import Peer
from aiodist.wire.frames import (
    ANY_KEY,
    COLLECTIVE,
    HEADER_BYTES,
    TENSOR,
    Frame,
    FrameType,
    Key,
    encode,
    request_meta,
)
from tests.p2p.pairs import Pair, content

TAG = (TENSOR, 9, 1)
OTHER = (TENSOR, 9, 2)
STEP = (COLLECTIVE, 9, 5)

SMALL = bytes(range(200)) * 50
LARGE = bytes(range(256)) * ((3 * CHUNK_BYTES + 256) // 256)


def waiting(pair: Pair) -> list[Arrival]:
    return [one for queue in pair.b.inbox.matcher.arrived.values() for one in queue]


@pytest.mark.parametrize(
    "size",
    [0, 1, EAGER_BYTES - 1, EAGER_BYTES, EAGER_BYTES + 1]
    + [n * CHUNK_BYTES + d for n in (2, 3) for d in (-1, 0, 1)],
)
@pytest.mark.parametrize("posted_first", [True, False])
def test_sizes_around_the_protocols_limits(size: int, posted_first: bool) -> None:
    pair = Pair(64 << 20)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    if posted_first:
        recv = pair.b.recv(TAG, size)
        send = pair.a.send(TAG, data)
    else:
        send = pair.a.send(TAG, data)
        pair.settle()
        assert send.done == (size <= EAGER_BYTES)
        recv = pair.b.recv(TAG, size)
    pair.settle()
    assert send.done
    assert content(recv) == data


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["eager", "rendezvous"])
@pytest.mark.parametrize("into_place", [True, False])
def test_a_receive_cancelled_half_way_is_not_written_and_the_next_one_gets_all(
    data: bytes, into_place: bool
) -> None:
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, len(data) if into_place else None)
    send = pair.a.send(TAG, data)
    for side in (pair.a, pair.b):
        side.stream.push(41 + 1 if data is SMALL else 1 << 20)
    pair.a.stream.push(len(data) // 2)
    assert recv.into is not None
    before = bytes(recv.into)
    assert before[:100] == data[:100]
    assert before[-1] != data[-1]
    pair.b.inbox.withdraw(recv)
    pair.settle()
    assert bytes(recv.into) == before
    assert not recv.done
    assert send.done
    assert content_of_next(pair, len(data)) == data


def content_of_next(pair: Pair, size: int) -> bytes:
    recv = pair.b.recv(TAG, size)
    pair.settle()
    return content(recv)


def test_a_receive_posted_while_its_message_arrives_can_be_cancelled() -> None:
    """It is neither among the posted nor is anything read into it."""
    pair = Pair(64 << 20)
    pair.a.send(TAG, SMALL)
    pair.a.stream.push(1000)
    recv = pair.b.recv(TAG, len(SMALL))
    pair.b.inbox.withdraw(recv)
    second = pair.b.recv(TAG, len(SMALL))
    third = pair.b.recv(TAG, len(SMALL))
    pair.settle()
    assert not recv.done
    assert recv.into is not None
    assert bytes(recv.into) == bytes(len(SMALL))
    assert content(second) == SMALL
    assert not third.done


def test_a_watcher_sees_unexpected_messages() -> None:
    pair, seen = Pair(64 << 20), []

    def send(key: Key, data: bytes) -> None:
        pair.a.send(key, data, b"m" if key == STEP else b"other")
        pair.settle()

    send(STEP, SMALL)
    send(OTHER, SMALL)
    pair.b.inbox.watch(STEP, lambda *said: seen.append(said))
    assert seen == [(0, b"m")], "it was there before"
    send(OTHER, LARGE)
    send(STEP, LARGE)  # announced
    assert seen == [(0, b"m")] * 2
    for data in (SMALL, LARGE):
        recv = pair.b.recv(STEP, len(data))
        pair.settle()
        assert content(recv) == data
    pair.b.recv(STEP, len(SMALL))
    send(STEP, SMALL)  # asked for
    pair.b.inbox.forget(STEP)
    send(STEP, SMALL)
    assert len(seen) == 2


def test_messages_of_cancelled_receives_keep_their_order() -> None:
    pair = Pair(64 << 20)
    receives = [pair.b.recv(TAG, len(LARGE)) for _ in range(3)]
    messages = [bytes([n]) * len(LARGE) for n in range(3)]
    for data in messages:
        pair.a.send(TAG, data)
    pair.a.stream.push(1 << 20)  # the announcements
    pair.b.stream.push(1 << 20)  # the grants
    for one in receives:
        pair.b.inbox.withdraw(one)
    again = [pair.b.recv(TAG, len(LARGE)) for _ in range(3)]
    pair.settle()
    assert [content(one)[0] for one in again] == [0, 1, 2]


def test_a_granted_message_that_is_withdrawn_leaves_its_receive_to_one_that_came_meanwhile() -> (
    None
):
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, None)
    first = pair.a.send(TAG, LARGE)
    pair.a.stream.push(1 << 20)
    pair.a.send(TAG, SMALL)
    pair.a.stream.push(1 << 20)
    assert pair.a.peer.outbox.withdraw(first)
    pair.settle()
    assert content(recv) == SMALL
    assert not pair.b.inbox.tickets


def test_receives_whose_messages_are_withdrawn_keep_their_order() -> None:
    pair = Pair(64 << 20)
    receives = [pair.b.recv(TAG, None) for _ in range(2)]
    sends = [pair.a.send(TAG, LARGE) for _ in range(2)]
    pair.a.stream.push(1 << 20)
    for one in sends:
        assert pair.a.peer.outbox.withdraw(one)
    pair.settle()
    pair.a.send(TAG, b"first")
    pair.a.send(TAG, b"second")
    pair.settle()
    assert [content(one) for one in receives] == [b"first", b"second"]


def test_another_ranks_withdrawal_under_the_same_number_leaves_a_message_alone() -> None:
    pair = Pair(64 << 20)
    other = Peer(RankInfo(2, "host", "id", 1, ()), 1 << 20, pair.b.inbox, pair.b.shm_progress)
    pair.b.inbox.add_source(other)
    recv = pair.b.recv(TAG, len(LARGE))
    pair.a.send(TAG, LARGE)
    pair.a.stream.push(1 << 20)
    pair.b.inbox.withdrawn(other, recv.send_id, 0)
    pair.settle()
    assert content(recv) == LARGE


@pytest.mark.parametrize("next_one_waits", [True, False])
def test_cancelled_on_both_sides_a_message_is_gone(next_one_waits: bool) -> None:
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, len(LARGE))
    send = pair.a.send(TAG, LARGE)
    pair.a.stream.push(1 << 20)
    pair.b.stream.push(1 << 20)
    pair.a.stream.push(CHUNK_BYTES // 2)
    pair.b.inbox.withdraw(recv)
    # Of another length than the message that will not come.
    following = pair.b.recv(TAG, 6) if next_one_waits else None
    assert pair.a.peer.outbox.withdraw(send)
    pair.settle()
    assert waiting(pair) == []
    assert not pair.b.inbox.tickets
    following = following or pair.b.recv(TAG, 6)
    pair.a.send(TAG, b"sooner")
    pair.settle()
    assert content(following) == b"sooner"


@pytest.mark.parametrize(
    "state", ["held", "requested", "granted", "half", "last part", "eager", "done"]
)
def test_a_send_is_cancelled_in_each_state(state: str) -> None:
    pair = Pair(4 * MESSAGE_COST if state == "held" else 64 << 20)
    recv = None
    if state == "held":
        while not pair.a.peer.outbox.held:
            pair.a.send(OTHER, b"fill")
    data = SMALL if state in ("eager", "done") else LARGE
    if state in ("granted", "half", "last part", "done"):
        recv = pair.b.recv(TAG, None)
    message = pair.a.send(TAG, data)
    if state in ("granted", "half", "last part"):
        pair.a.stream.push(1000)
        pair.b.stream.push(1000)
    if state == "half":
        pair.a.stream.push(CHUNK_BYTES // 2)
    elif state == "last part":
        while pair.a.peer.outbox.bulk:
            pair.a.stream.push(CHUNK_BYTES)
            pair.run_soon()
    elif state == "done":
        pair.settle()
    on_its_way = state in ("last part", "eager", "done")
    assert pair.a.peer.outbox.withdraw(message) is not on_its_way
    pair.settle()
    following = pair.a.send(TAG, b"following")
    if recv is None:
        recv = pair.b.recv(TAG, None)
    pair.settle()
    assert content(recv) == (data if on_its_way else b"following")
    assert following.done


def test_waiting_for_a_flooded_rank_lets_in_no_more_than_the_window() -> None:
    """Receives that were posted and cancelled while the sender had no credit do not pile up."""
    window = 32 * MESSAGE_COST
    pair = Pair(window)
    for _ in range(100):
        pair.a.send(OTHER, bytes(MESSAGE_COST))
    pair.settle()
    assert pair.b.peer.stall
    for _ in range(100):
        pair.b.inbox.withdraw(pair.b.recv(TAG, 50_000))
    pair.settle()
    sends = [pair.a.send(TAG, bytes([n]) * 50_000) for n in range(100)]
    pair.settle()
    assert pair.b.inbox.matcher.arrived_bytes() <= window
    for n in range(100):
        assert content_of_next(pair, 50_000)[0] == n
    assert all(send.done for send in sends)


def stalled_pair() -> Pair:
    """A pair whose first side has no credit left, and holds a message back."""
    pair = Pair(8 * MESSAGE_COST)
    for _ in range(20):
        pair.a.send(OTHER, b"flood")
    pair.settle()
    assert pair.b.peer.stall
    return pair


def test_requests_for_ever_new_keys_take_a_bounded_memory() -> None:
    pair = stalled_pair()
    frames = [encode(FrameType.WANT, (1, 99, tag), id=1) for tag in range(1000, 31_000)]
    tracemalloc.start()
    try:
        for frame in frames:
            pair.b.stream.send([frame])
            pair.b.stream.push(len(frame))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", [1, -1])
def test_more_receives_than_a_stalled_sender_remembers_get_their_messages(order: int) -> None:
    pair = stalled_pair()
    tags = range(1000, 1000 + MOST_WANTED + 50)
    receives = {tag: pair.b.recv((1, 99, tag), 8) for tag in tags}
    pair.settle()
    for tag in tags[::order]:
        pair.a.send((1, 99, tag), tag.to_bytes(8, "little"))
    pair.settle()
    assert [content(one) for one in receives.values()] == [n.to_bytes(8, "little") for n in tags]
    flood = pair.b.recv(OTHER, 5)
    pair.settle()
    assert content(flood) == b"flood"


def test_a_sender_ignores_what_was_asked_before_it_asked_anew() -> None:
    pair = stalled_pair()
    outbox = pair.a.peer.outbox
    pair.b.recv(OTHER, 5)
    pair.settle()
    for tag in range(1000, 1000 + MOST_WANTED + 1):  # the sender can remember no other key
        pair.b.recv((1, 99, tag), 8)
    pair.settle()
    send = pair.a.send(TAG, bytes(8))  # it asks for TAG alone
    outbox.wanted(TAG, 1)
    assert send in outbox.held
    outbox.wanted(TAG, 2)
    assert send not in outbox.held


def test_a_request_that_crosses_the_second_question_for_its_key_counts_once() -> None:
    """Else the sender goes beyond its credit once more than the receiver has counted."""
    pair = stalled_pair()
    tags = list(range(1000, 1000 + MOST_WANTED))
    others = [pair.b.recv((1, 99, tag), 8) for tag in tags]
    forgotten = pair.b.recv(TAG, 8)
    pair.settle()
    pair.a.send((1, 99, tags.pop()), bytes(8))
    pair.settle()  # the sender has room for one more key
    crossing = pair.b.recv(TAG, 8)
    for _ in range(3):
        pair.a.send(TAG, bytes(8))
    pair.settle()
    for tag in tags:
        pair.a.send((1, 99, tag), bytes(8))
    pair.settle()
    assert [content(recv) for recv in (forgotten, crossing, *others)] == [bytes(8)] * (
        2 + MOST_WANTED
    )
    assert pair.b.lost == []


def test_a_sender_that_forgets_ever_more_keys_asks_for_all_of_them_again() -> None:
    pair = stalled_pair()
    for tag in range(MOST_WANTED + 1):
        pair.b.recv((1, 98, tag), 8)
    pair.settle()
    tags = range(1000, 1000 + 3 * MOST_WANTED)
    receives = []
    for tag in tags:
        pair.a.send((1, 99, tag), tag.to_bytes(8, "little"))
        receives.append(pair.b.recv((1, 99, tag), 8))
    said = b"".join(view for view, _ in pair.a.stream.queue)
    assert encode(FrameType.STALLED, ANY_KEY, id=MOST_WANTED + 2) in said
    pair.settle()
    assert [content(one) for one in receives] == [n.to_bytes(8, "little") for n in tags]
    assert pair.b.lost == []


def test_asking_again_lets_in_no_more_than_what_was_asked_for() -> None:
    pair = stalled_pair()
    for tag in range(1000, 1000 + MOST_WANTED):  # the sender can remember no other key
        pair.b.recv((1, 99, tag), 8)
    receives = [pair.b.recv(TAG, 8) for _ in range(3)]
    pair.settle()
    before = len(waiting(pair))
    sends = [pair.a.send(TAG, bytes(8)) for _ in range(20)]
    pair.settle()
    assert [content(one) for one in receives] == [bytes(8)] * 3
    assert [send.done for send in sends] == [True] * 3 + [False] * 17
    assert len(waiting(pair)) == before


def test_a_receive_from_anybody_asks_a_sender_without_credit() -> None:
    pair = Pair(8 * MESSAGE_COST)
    for _ in range(20):
        pair.a.send(OTHER, b"flood")
    pair.settle()
    pair.a.send(TAG, b"wanted")
    recv = pair.b.recv(TAG, 6, ANY_SOURCE)
    pair.settle()
    assert content(recv) == b"wanted"


def test_a_peer_without_any_window_is_still_served() -> None:
    pair = Pair(0)
    sends = [pair.a.send(TAG, data) for data in (b"", b"small", LARGE)]
    pair.settle()
    assert not any(send.done for send in sends)
    receives = [pair.b.recv(TAG, None) for _ in range(3)]
    pair.settle()
    assert [content(one) for one in receives] == [b"", b"small", LARGE]


def test_a_message_of_the_wrong_length_fails_its_receive_and_is_dropped() -> None:
    pair = Pair(64 << 20)
    for data in (SMALL, LARGE):
        recv = pair.b.recv(TAG, 7)
        send = pair.a.send(TAG, data)
        pair.settle()
        assert isinstance(recv.error, ValueError)
        assert send.done  # its memory is free: no receive will read it
        assert waiting(pair) == []
    pair.a.send(TAG, b"1234567")
    assert content_of_next(pair, 7) == b"1234567"


# Collectives: their messages are dropped, never handed on.


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["eager", "rendezvous"])
@pytest.mark.parametrize("posted_first", [True, False])
def test_a_failed_collective_writes_no_memory_any_more(data: bytes, posted_first: bool) -> None:
    pair = Pair(64 << 20)
    if posted_first:
        recv = pair.b.recv(STEP, len(data))
    pair.a.send(STEP, data)
    pair.a.stream.push(100)
    if not posted_first:
        recv = pair.b.recv(STEP, len(data))
    pair.b.stream.push(1000)
    pair.a.stream.push(2000)
    assert recv.into is not None
    before = bytes(recv.into)
    pair.b.inbox.drop(recv)
    pair.b.inbox.forget(STEP)
    pair.b.over.add(STEP)
    pair.settle()
    assert bytes(recv.into) == before
    assert not recv.done
    assert waiting(pair) == []
    assert not pair.b.inbox.tickets
    assert pair.a.peer.outbox.credit + pair.b.peer.owed == 64 << 20


def test_late_messages_are_dropped_reported_and_paid_back() -> None:
    pair = Pair(64 << 20)
    pair.b.over.add(STEP)
    sends = [pair.a.send(STEP, data) for data in (b"", SMALL, LARGE)]
    pair.settle()
    assert [what[0] for what in pair.b.late] == [STEP] * 3
    assert all(send.done for send in sends)
    assert pair.b.inbox.matcher.arrived_bytes() == 0
    assert pair.a.peer.outbox.credit + pair.b.peer.owed == 64 << 20


def test_a_closed_group_keeps_nothing() -> None:
    pair = Pair(64 << 20)
    sends = [pair.a.send(key, data) for key in (TAG, OTHER, STEP) for data in (SMALL, LARGE)]
    elsewhere = (TENSOR, 10, 1)
    pair.a.send(elsewhere, b"stays")
    pair.settle()
    pair.b.inbox.forget_group(9)
    pair.settle()
    assert all(send.done for send in sends)
    assert [one.key for one in waiting(pair)] == [elsewhere]


# The peer is gone.


def test_a_lost_peer_fails_waiting_messages_in_every_state() -> None:
    pair = Pair(64 << 20)
    pair.a.send(OTHER, b"whole")
    half = pair.b.recv((1, 9, 3), len(LARGE))
    pair.a.send((1, 9, 3), LARGE)
    pair.a.stream.push(1000)
    pair.b.stream.push(1000)
    pair.a.stream.push(1000)
    posted = pair.b.recv(TAG, 5)
    anybodys = pair.b.recv(TAG, 5, ANY_SOURCE)
    send = pair.b.send(TAG, LARGE)
    pair.lose(pair.b, OSError("cut"))
    for one in (half, posted, send):
        assert isinstance(one.error, ConnectionError)
    assert not anybodys.done
    assert content(pair.b.recv(OTHER, 5)) == b"whole"
    assert isinstance(pair.b.recv(TAG, 5).error, ConnectionError)
    assert isinstance(pair.b.send(TAG, b"x").error, ConnectionError)


def test_a_receive_that_failed_with_its_sender_is_not_written_any_more() -> None:
    """A rank that the others gave up fails all its receives, and goes on to read its streams."""
    pair = Pair(64 << 20)
    recv = pair.b.recv(TAG, len(LARGE))
    pair.a.send(TAG, LARGE)
    pair.a.stream.push(1000)
    pair.b.stream.push(1000)
    pair.a.stream.push(CHUNK_BYTES // 2)
    assert recv.reader is not None
    pair.b.peer.error = ConnectionError("given up")
    pair.b.inbox.peer_lost(pair.b.peer, pair.b.peer.error)
    assert recv.error is pair.b.peer.error
    assert recv.into is not None
    recv.into[:] = bytes(len(LARGE))  # the caller uses it again
    pair.settle()
    assert recv.into == bytes(len(LARGE))


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["eager", "rendezvous"])
def test_no_receive_waits_for_the_rest_of_a_message_of_a_lost_peer(data: bytes) -> None:
    pair = Pair(64 << 20)
    others = [pair.b.recv(TAG, len(data)) for _ in range(2)]
    for _ in others:
        pair.a.send(TAG, data)
    pair.a.stream.push(1000)
    pair.b.stream.push(1000)
    pair.a.stream.push(1000)
    # The failure of one ends the operation of the other one, which is cancelled in between.
    others[0].callback = lambda: pair.b.inbox.withdraw(others[1])
    pair.b.peer.error = ConnectionError("given up")
    pair.b.inbox.peer_lost(pair.b.peer, pair.b.peer.error)
    for other in others:
        pair.b.inbox.withdraw(other)
    assert pair.b.recv(TAG, len(data)).error is pair.b.peer.error


def test_an_answer_to_a_lost_rank_does_not_go_to_its_replacement() -> None:
    """The streams of a lost rank are read for a moment, and its replacement numbers its requests alike."""
    pair, rejoined = Pair(64 << 20), Pair(64 << 20)
    pair.a.send(TAG, LARGE)
    pair.b.peer.error = ConnectionError("its heartbeats have ended")
    pair.b.inbox.peer_lost(pair.b.peer, pair.b.peer.error)
    pair.settle()
    send = rejoined.a.send(OTHER, LARGE)
    rejoined.settle()
    pair.b.inbox.add_source(rejoined.b.peer)
    pair.b.inbox.forget_group(TAG[1])
    rejoined.settle()
    assert not send.done  # it was told that the receiver drops the message
    recv = rejoined.b.recv(OTHER, len(LARGE))
    rejoined.settle()
    assert content(recv) == LARGE


def test_the_messages_of_a_lost_rank_give_its_replacement_no_credit() -> None:
    pair, rejoined = Pair(64 << 10), Pair(64 << 10)
    for _ in range(3):
        pair.a.send(TAG, SMALL)
    pair.settle()
    pair.b.peer.error = ConnectionError("its heartbeats have ended")
    pair.b.inbox.peer_lost(pair.b.peer, pair.b.peer.error)
    credit = rejoined.a.peer.outbox.credit
    pair.b.inbox.add_source(rejoined.b.peer)
    assert content(pair.b.recv(TAG, len(SMALL))) == SMALL
    pair.b.inbox.forget_group(TAG[1])
    rejoined.settle()
    assert rejoined.b.peer.owed == rejoined.b.peer.charged == 0
    assert rejoined.a.peer.outbox.credit == credit


def test_a_receive_attached_to_a_message_that_is_cut_off_fails() -> None:
    pair = Pair(64 << 20)
    pair.a.send(TAG, SMALL)
    pair.a.stream.push(1000)
    recv = pair.b.recv(TAG, len(SMALL))
    pair.lose(pair.b)
    assert isinstance(recv.error, ConnectionError)


def test_a_failure_that_ends_the_operation_of_others_is_survived() -> None:
    """The first of two promised receives fails, and its callback forgets the second."""
    pair = Pair(64 << 20)
    receives = [pair.b.recv(STEP, len(LARGE)) for _ in range(2)]
    for _ in range(2):
        pair.a.send(STEP, LARGE)
    pair.a.stream.push(1000)
    receives[0].callback = lambda: pair.b.inbox.forget(STEP) and None
    pair.lose(pair.b)
    assert pair.b.lost
    assert receives[0].error is not None
    assert not pair.b.inbox.tickets


# What only a broken or hostile peer sends.


@pytest.mark.parametrize(
    "frame",
    [
        encode(FrameType.EAGER, TAG, length=EAGER_BYTES + 1),
        encode(FrameType.HELLO, meta=b"again"),
        encode(FrameType.GRANT, length=5),
        encode(FrameType.GRANT, (0, 0, -1), id=1),
        encode(FrameType.ABORT, length=(1 << 20) + 1),
        encode(FrameType.ABORT),
        encode(FrameType.REQUEST, TAG, id=1, length=5, meta=b"short"),
    ],
    ids=[
        "eager-too-long",
        "hello",
        "grant-with-payload",
        "grant-of-nothing",
        "abort-too-long",
        "abort-empty",
        "request-without-address",
    ],
)
def test_frames_out_of_place_end_the_connection(frame: bytes) -> None:
    pair = Pair()
    pair.a.stream.send([frame])
    with pytest.raises(ProtocolError):
        pair.settle()


def test_answers_to_nothing_are_ignored() -> None:
    pair = Pair()
    for type in (FrameType.GRANT, FrameType.RELEASE, FrameType.WITHDRAW, FrameType.WANT):
        pair.a.stream.send([encode(type, TAG, id=77)])
    pair.a.stream.send([encode(FrameType.DATA, id=5, length=3), b"abc"])
    pair.settle()
    pair.a.send(TAG, b"fine")
    assert content_of_next(pair, 4) == b"fine"


def test_a_part_that_runs_over_its_message_ends_the_connection() -> None:
    pair = Pair()
    pair.b.recv(TAG, 100)
    pair.a.stream.send(
        [encode(FrameType.REQUEST, TAG, id=1, length=100, meta=request_meta(0, b"m"))]
    )
    pair.settle()
    pair.a.stream.send([encode(FrameType.DATA, id=1, length=101), bytes(101)])
    with pytest.raises(ProtocolError, match="extends beyond"):
        pair.settle()


@pytest.mark.parametrize("culprit", ["another rank", "another link"])
def test_only_one_link_of_the_sender_writes_into_a_receive(culprit: str) -> None:
    pair = Pair()
    recv = pair.b.recv(TAG, 100)
    pair.a.stream.send(
        [encode(FrameType.REQUEST, TAG, id=1, length=100, meta=request_meta(0, b"m"))]
    )
    pair.settle()
    source, part = pair.b.peer, Frame(FrameType.DATA, 0, 0, 0, recv.ticket, 100, b"")
    if culprit == "another rank":
        source = copy(source)
        source.rank = 5
    else:
        pair.a.stream.send([encode(FrameType.DATA, id=1, length=100), bytes(100)])
        pair.a.stream.push(HEADER_BYTES + 10)
    with pytest.raises(ProtocolError, match="not asked of it"):
        pair.b.inbox.part(source, part, pair.b.link)
    if culprit == "another rank":
        pair.a.stream.send([encode(FrameType.DATA, id=1, length=100), b"x" * 100])
    pair.settle()
    assert content(recv) in (b"x" * 100, bytes(100))
