"""Announced messages that are read in the sender's memory: in order, cancelled, cut off, refused."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world
from aiodist.links.host import own_cores, spare_cores
from aiodist.p2p import direct_receiver, shm_sender
from aiodist.p2p.matching import ANY_SOURCE, Recv
from aiodist.p2p.outbox import EAGER_BYTES, HOST_EAGER_BYTES
from aiodist.p2p.shm_progress import HelperThreads
from aiodist.p2p.shm_sender import RING_BYTES
from aiodist.shm import shared_memory
from aiodist.shm.message_ring import RingReader, RingWriter
from aiodist.shm.process_memory import ProcessMemory
from aiodist.tensors.raw_memory import address_of
from aiodist.testing.in_process import run_ranks
from aiodist.wire.frames import TENSOR
from tests.p2p.conftest import SetClock
from tests.p2p.pairs import Pair, content

TAG = (TENSOR, 9, 1)
OTHER = (TENSOR, 9, 2)
PIECE = 64 << 10
MIB = 1 << 20
READ = ProcessMemory.read
NOTE = RingReader.note_read


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, steady_clock: None) -> Iterator[Pair]:
    """Whose messages are read in pieces of 64 KiB."""
    monkeypatch.setattr(direct_receiver, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(shm_sender, "RING_BYTES", -1)  # no message goes in at once
    made = Pair(64 << 20, shared_bytes=8 * MIB)
    yield made
    made.close()


@pytest.fixture
def _short_turns(pair: Pair, set_clock: SetClock) -> None:
    """Two pieces are read before other callbacks have their turn."""
    set_clock(6e-4)


def bytes_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def half_way(pair: Pair, size: int, data: bytes | bytearray | None = None) -> Recv:
    """A receive whose message has been read in part."""
    recv = pair.b.recv(TAG, size)
    pair.a.send(TAG, bytes_of(size) if data is None else data)
    pair.a.stream.push(1 << 40)
    assert recv.into is not None
    assert bytes(recv.into[:PIECE]) == bytes_of(PIECE)
    assert not any(recv.into[-PIECE:])
    assert not recv.done
    return recv


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("posted_first", [True, False])
@pytest.mark.parametrize(
    "size",
    [
        *(HOST_EAGER_BYTES + d for d in (-1, 0, 1)),
        *(n * PIECE + d for n in (3, 4, 5) for d in (-1, 0, 1)),
        *(EAGER_BYTES + d for d in (-1, 0, 1)),
    ],
)
def test_sizes_around_every_limit(pair: Pair, size: int, posted_first: bool, helpers: int) -> None:
    pair.b.shm_progress.helpers.limit = helpers
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
        assert moved < 200, "the payload went down the stream"
        assert pair.b.peer.bytes_heard > size  # it is alive that sends through memory alone


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


@pytest.mark.usefixtures("_short_turns")
def test_small_messages_pass_a_large_one(pair: Pair) -> None:
    large = half_way(pair, 3 * MIB)
    small = pair.b.recv(OTHER, 3)
    pair.a.send(OTHER, b"now")
    pair.a.stream.push(1 << 40)
    assert content(small) == b"now"
    assert not large.done
    pair.settle()
    assert content(large) == bytes_of(3 * MIB)


@pytest.mark.usefixtures("_short_turns")
def test_a_receive_cancelled_half_way_is_not_written_and_the_next_one_gets_all(pair: Pair) -> None:
    recv = half_way(pair, MIB)
    assert recv.into is not None
    pair.b.inbox.withdraw(recv)
    recv.into[:] = bytes(MIB)
    pair.settle()
    assert not any(recv.into)
    again = pair.b.recv(TAG, MIB)
    pair.settle()
    assert content(again) == bytes_of(MIB)


@pytest.mark.usefixtures("_short_turns")
def test_a_receive_that_waits_gets_the_message_of_a_cancelled_one(pair: Pair) -> None:
    recv, waiting = half_way(pair, MIB), pair.b.recv(TAG, MIB)
    pair.b.inbox.withdraw(recv)
    pair.settle()
    assert content(waiting) == bytes_of(MIB)


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize("end", ["drop", "forget_group", "forget"])
def test_a_send_ends_when_its_message_is_dropped_half_way(pair: Pair, end: str) -> None:
    recv = pair.b.recv(TAG, MIB)
    send = pair.a.send(TAG, bytes_of(MIB))
    pair.a.stream.push(1 << 40)
    assert not recv.done
    if end == "drop":
        pair.b.inbox.drop(recv)
    elif end == "forget":
        pair.b.inbox.forget(TAG)
    else:
        pair.b.inbox.forget_group(9)
    assert recv.into is not None
    recv.into[:] = bytes(MIB)
    pair.settle()
    assert send.done
    assert not any(recv.into)
    assert not pair.b.inbox.tickets


@pytest.mark.usefixtures("_short_turns")
def test_a_message_withdrawn_half_way_is_not_delivered(pair: Pair) -> None:
    """Even if all of it is read before the receiver hears of that: its bytes may have changed."""
    data = bytearray(bytes_of(MIB))
    recv = pair.b.recv(TAG, MIB)
    send = pair.a.send(TAG, data)
    pair.a.stream.push(1 << 40)
    assert pair.a.peer.outbox.withdraw(send)
    data[:] = bytes(MIB)
    while pair.run_soon():
        pass
    assert not recv.done
    assert recv.into is not None
    assert not any(recv.into[-PIECE:]), "read to the end"
    pair.settle()
    assert not recv.done
    pair.a.send(TAG, bytes_of(MIB, 2))
    pair.settle()
    assert content(recv) == bytes_of(MIB, 2)


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize("waiting", [False, True])
def test_a_message_that_both_ends_give_up_once_it_was_read_goes_to_the_next_receive_as_it_was(
    pair: Pair, waiting: bool
) -> None:
    """Its sender is told that it has gone, and may use its memory again."""
    pair.a.spin_policy.active = True
    data = bytearray(bytes_of(MIB))
    recv, send = pair.b.recv(TAG, MIB), pair.a.send(TAG, data)
    pair.a.stream.push(1 << 40)
    other = pair.a.send(OTHER, bytes_of(MIB, 2))
    assert pair.a.peer.outbox.withdraw(other)  # so the receiver is uncertain once it has read all
    while pair.run_soon():
        pass
    assert not recv.done
    assert not pair.a.peer.outbox.withdraw(send)
    assert pair.a.spin_policy.may_spin
    data[:] = bytes(MIB)
    receives = [pair.b.recv(TAG, MIB)] if waiting else []
    pair.b.inbox.withdraw(recv)
    pair.settle()
    again = receives[0] if waiting else pair.b.recv(TAG, MIB)
    pair.settle()
    assert content(again) == bytes_of(MIB)
    assert send.done


@pytest.mark.usefixtures("_short_turns")
def test_a_message_read_while_another_is_withdrawn_is_delivered_once_that_is_known(
    pair: Pair,
) -> None:
    other = pair.a.send(OTHER, bytes_of(MIB))
    recv = half_way(pair, MIB)
    assert pair.a.peer.outbox.withdraw(other)
    while pair.run_soon():
        pass
    assert not recv.done
    pair.a.stream.push(1 << 40)
    assert content(recv) == bytes_of(MIB)


@pytest.mark.usefixtures("_short_turns")
def test_a_rank_lost_half_way_fails_both_ends(pair: Pair) -> None:
    recv = half_way(pair, MIB)
    sends = [pair.b.send(TAG, bytes_of(MIB)), pair.b.send(TAG, bytes_of(MIB))]
    pair.lose(pair.b, OSError("cut"))
    for each in (recv, *sends):
        assert each.done
        assert isinstance(each.error, ConnectionError)
    assert recv.into is not None
    recv.into[:] = bytes(MIB)
    pair.run_soon()
    assert not any(recv.into), "written after its end"
    again = pair.b.send(TAG, bytes_of(MIB))
    assert isinstance(again.error, ConnectionError)


@pytest.mark.usefixtures("_short_turns")
@pytest.mark.parametrize(
    "end", ["gives up its peer", "leaves", "closes its memory", "goes on without its loop"]
)
def test_a_message_does_not_count_if_its_sender_ends_before_all_was_read(
    pair: Pair, end: str
) -> None:
    """Its program may have used the memory again before the last piece was read."""
    recv = half_way(pair, MIB)
    memory = pair.memories[0]
    assert memory is not None
    if end == "gives up its peer":
        pair.lose(pair.a)
    elif end == "leaves":
        memory.leave()
    elif end == "goes on without its loop":
        pair.a.peer.abandon()
    else:
        memory.close()
    while pair.run_soon():
        pass
    assert not recv.done
    pair.lose(pair.b)
    assert isinstance(recv.error, ConnectionError)


@pytest.mark.usefixtures("_short_turns")
def test_a_message_does_not_count_if_its_sender_gives_up_by_a_record_that_was_cut_short(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next record would follow half of one, so the sender ends the connection, and its sends fail."""
    data = bytearray(bytes_of(MIB))
    recv = half_way(pair, MIB, data)

    def struck(*_: object) -> bool:
        raise LateError

    with monkeypatch.context() as patch:
        patch.setattr(shm_sender, "RING_BYTES", RING_BYTES)
        patch.setattr(RingWriter, "fill", struck)
        pair.a.spin_policy.active = True
        with pytest.raises(LateError):
            pair.a.send(OTHER, bytes_of(MIB))
    pair.lose(pair.a)
    data[:] = bytes(MIB)
    while pair.run_soon():
        pass
    assert not recv.done
    pair.lose(pair.b)
    assert isinstance(recv.error, ConnectionError)


@pytest.mark.parametrize("error", [PermissionError(), OSError(errno.ENOSYS, "no such call")])
@pytest.mark.parametrize("pieces", [0, 1, 3])
@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_the_stream_carries_what_the_system_does_not_let_a_rank_read(
    pair: Pair, pieces: int, helpers: int, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.b.shm_progress.helpers.limit = helpers
    lock, asked = threading.Lock(), 0

    def limited(memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        nonlocal asked
        with lock:
            asked += 1
            if asked > pieces:
                raise error
        READ(memory, there, here, nbytes)

    monkeypatch.setattr(ProcessMemory, "read", limited)
    recv = pair.b.recv(TAG, MIB)
    send = pair.a.send(TAG, bytes_of(MIB))
    pair.settle()
    assert content(recv) == bytes_of(MIB)
    assert send.done
    refused = asked
    recv = pair.b.recv(TAG, MIB)
    pair.a.send(TAG, bytes_of(MIB, 2))
    pair.settle()
    assert content(recv) == bytes_of(MIB, 2)
    assert asked == refused, "asked again"


def test_a_message_in_memory_that_cannot_be_read_goes_over_the_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a device is, which a process maps. Later messages are read."""
    recv = pair.b.recv(TAG, MIB)
    with monkeypatch.context() as patch:
        patch.setattr(shm_sender, "address_of", lambda data: 8)
        pair.a.send(TAG, bytes_of(MIB))
    pair.settle()
    assert content(recv) == bytes_of(MIB)
    heard = pair.b.peer.direct_receiver.bytes_taken
    recv = pair.b.recv(TAG, MIB)
    pair.a.send(TAG, bytes_of(MIB, 2))
    pair.settle()
    assert content(recv) == bytes_of(MIB, 2)
    assert pair.b.peer.direct_receiver.bytes_taken == heard + MIB


class LateError(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("begun", [False, True])
def test_a_message_whose_copy_a_signals_handler_strikes_arrives_whole(
    pair: Pair, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strikes = iter((False, True))

    def struck(memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        strikes_now = next(strikes, False)
        if begun or not strikes_now:
            READ(memory, there, here, nbytes)
        if strikes_now:
            raise LateError

    recv = pair.b.recv(TAG, 4 * PIECE)
    pair.a.send(TAG, bytes_of(4 * PIECE))
    monkeypatch.setattr(ProcessMemory, "read", struck)
    with pytest.raises(LateError):
        pair.a.stream.push(1 << 40)
    pair.settle()
    assert content(recv) == bytes_of(4 * PIECE)


@pytest.mark.usefixtures("_short_turns")
def test_a_message_that_was_noted_when_a_signals_handler_strikes_completes_its_receive(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recv = half_way(pair, MIB)

    def struck(ring: RingReader, id: int) -> None:
        NOTE(ring, id)
        raise LateError

    with monkeypatch.context() as patch:
        patch.setattr(RingReader, "note_read", struck)
        with pytest.raises(LateError):
            pair.settle()
    pair.settle()
    assert content(recv) == bytes_of(MIB)


def test_a_receive_from_a_process_that_has_ended_waits_for_the_end_of_its_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    monkeypatch.setattr(shared_memory.SharedMemory, "pid_of", lambda self, rank: process.pid)
    recv = pair.b.recv(TAG, MIB)
    pair.a.send(TAG, bytes_of(MIB))
    pair.settle()
    assert not recv.done
    pair.lose(pair.b)
    assert isinstance(recv.error, ConnectionError)


class Helper:
    """Holds the helper up in its first piece, and the receiver's own thread until then."""

    def __init__(self, into: memoryview) -> None:
        self.base = address_of(into)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.first: list[int] = []
        self.second: list[int] = []

    def read(self, memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        piece = (here - self.base) // PIECE
        if threading.current_thread() is threading.main_thread():
            assert self.begun.wait(20)
            READ(memory, there, here, nbytes)
            self.first.append(piece)
            return
        self.begun.set()
        assert self.go_on.wait(20)
        READ(memory, there, here, nbytes)
        self.second.append(piece)


def with_helper(pair: Pair, pieces: int) -> tuple[Recv, Helper]:
    """A posted receive of so many pieces, of which one helper is to read some."""
    pair.b.shm_progress.helpers.limit = 1
    recv = pair.b.recv(TAG, pieces * PIECE)
    assert recv.into is not None
    return recv, Helper(recv.into)


def test_a_helper_reads_from_the_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    recv, helper = with_helper(pair, 4)
    monkeypatch.setattr(ProcessMemory, "read", lambda *where: helper.read(*where))
    timer = threading.Timer(0.05, helper.go_on.set)
    timer.start()
    pair.a.send(TAG, bytes_of(4 * PIECE))
    pair.settle()
    timer.join()
    assert content(recv) == bytes_of(4 * PIECE)
    assert (helper.first, helper.second) == ([0, 1, 2], [3])


@pytest.mark.usefixtures("_short_turns")
def test_a_cancelled_receive_returns_when_its_helper_writes_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recv, helper = with_helper(pair, 9)
    monkeypatch.setattr(ProcessMemory, "read", lambda *where: helper.read(*where))
    pair.a.send(TAG, bytes_of(9 * PIECE))
    pair.a.stream.push(1 << 40)
    assert helper.second == []
    timer = threading.Timer(0.05, helper.go_on.set)
    timer.start()
    pair.b.inbox.withdraw(recv)
    assert helper.second == [8]
    timer.join()


@pytest.mark.usefixtures("_short_turns")
def test_a_cancellation_that_a_signals_handler_strikes_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recv, helper = with_helper(pair, 9)
    with monkeypatch.context() as patch:
        patch.setattr(ProcessMemory, "read", lambda *where: helper.read(*where))
        send = pair.a.send(TAG, bytes_of(9 * PIECE))
        pair.a.stream.push(1 << 40)

        def strike(*_: object) -> None:
            threading.Timer(0.05, helper.go_on.set).start()
            raise LateError

        before = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(LateError):
                pair.b.inbox.withdraw(recv)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert helper.second == [8], "the helper still writes"
    pair.b.inbox.withdraw(recv)
    again = pair.b.recv(TAG, 9 * PIECE)
    pair.settle()
    assert content(again) == bytes_of(9 * PIECE)
    assert send.done


def test_a_receive_that_a_signals_handler_strikes_as_its_helper_begins_can_be_cancelled(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recv, helper = with_helper(pair, 4)
    do = HelperThreads.do

    def struck(helpers: HelperThreads, jobs: Sequence[Callable[[], None]]) -> None:
        do(helpers, jobs)
        raise LateError

    with monkeypatch.context() as patch:
        patch.setattr(ProcessMemory, "read", lambda *where: helper.read(*where))
        patch.setattr(HelperThreads, "do", struck)
        pair.a.send(TAG, bytes_of(4 * PIECE))
        with pytest.raises(LateError):
            pair.a.stream.push(1 << 40)
        assert helper.begun.wait(20)
        timer = threading.Timer(0.05, helper.go_on.set)
        timer.start()
        pair.b.inbox.withdraw(recv)
        assert helper.second == [3], "the helper still writes"
        timer.join()
    again = pair.b.recv(TAG, 4 * PIECE)
    pair.settle()
    assert content(again) == bytes_of(4 * PIECE)


def test_a_helper_without_memory_helps_with_the_next_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    recv, helper = with_helper(pair, 4)

    def starved(memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            helper.begun.set()
            raise MemoryError
        helper.read(memory, there, here, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessMemory, "read", starved)
        pair.a.send(TAG, bytes_of(4 * PIECE))
        pair.settle()
    assert content(recv) == bytes_of(4 * PIECE)
    recv, helper = with_helper(pair, 4)
    helper.go_on.set()
    monkeypatch.setattr(ProcessMemory, "read", lambda *where: helper.read(*where))
    pair.a.send(TAG, bytes_of(4 * PIECE, 2))
    pair.settle()
    assert content(recv) == bytes_of(4 * PIECE, 2)
    assert helper.second


def test_a_rank_that_gets_no_more_threads_reads_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.b.shm_progress.helpers.limit = 3

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    recv = pair.b.recv(TAG, MIB)
    pair.a.send(TAG, bytes_of(MIB))
    pair.settle()
    assert content(recv) == bytes_of(MIB)


def test_waiting_for_the_reader_of_a_message_takes_no_core(pair: Pair) -> None:
    """The reader's second thread may use it."""
    pair.a.spin_policy.active = True
    send, _ = pair.a.send(TAG, bytes_of(MIB)), pair.a.send(OTHER, bytes_of(MIB))
    assert not pair.a.spin_policy.may_spin
    pair.b.recv(TAG, MIB)
    pair.settle()
    assert send.done
    assert not pair.a.spin_policy.may_spin
    pair.lose(pair.a)
    assert pair.a.spin_policy.may_spin


def test_messages_far_behind_one_that_waits_go_over_the_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their notes could overwrite its note."""
    monkeypatch.setattr(shm_sender, "SPREAD", 3)
    pair.a.send(OTHER, bytes_of(MIB, 9))
    taken = []
    for number in range(5):
        recv = pair.b.recv(TAG, MIB)
        pair.a.send(TAG, bytes_of(MIB, number))
        pair.settle()
        assert content(recv) == bytes_of(MIB, number)
        taken.append(pair.b.peer.direct_receiver.bytes_taken // MIB)
        # The core is lent for the one that waits alone, whose announcement may still be answered.
        assert pair.a.spin_policy.lent == 1
    assert taken == [1, 2, 3, 3, 3]
    assert content(pair.b.recv(OTHER, MIB)) == bytes_of(MIB, 9)
    pair.settle()
    assert not pair.a.spin_policy.lent


async def test_ranks_read_large_messages_directly_with_the_cores_that_are_free() -> None:
    size = 2 * RING_BYTES

    async def on_rank(rank: int) -> None:
        endpoint = current_world().endpoint
        own = own_cores()
        assert endpoint.shm_progress.helpers.limit == spare_cores([own, own], own)
        data = np.full(size, 7, np.uint8) if rank == 0 else np.zeros(size, np.uint8)
        if rank == 0:
            await dist.send(data, 1)
            assert not endpoint.spin_policy.lent
        else:
            await dist.recv(data, 0)
            assert (data == 7).all()
            assert endpoint.peer(0).direct_receiver.bytes_taken == size
        await dist.barrier()

    await run_ranks(2, on_rank, "shm", timeout=60)


@pytest.mark.parametrize("is_another", [False, True])
def test_a_rank_lets_other_processes_of_its_host_read_its_memory(
    is_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []
    monkeypatch.setattr(shared_memory, "allow_readers", lambda: allowed.append(True))
    memory = shared_memory.SharedMemory.create(0, MIB)
    other = f"{os.getpid() + is_another}:0:00"
    memory.meet({0: memory.description, 1: other})
    memory.close()
    assert bool(allowed) is is_another


def test_without_a_ring_messages_use_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MIN_RING_BYTES", MIB)
    pair = Pair(64 << 20, shared_bytes=MIB)
    send = pair.a.send(TAG, bytes_of(EAGER_BYTES))
    pair.settle()
    assert send.done  # no receive has granted it
    recvs = [pair.b.recv(TAG, EAGER_BYTES), pair.b.recv(TAG, 3 * MIB)]
    pair.a.send(TAG, bytes_of(3 * MIB))
    pair.settle()
    assert [content(recv) for recv in recvs] == [bytes_of(EAGER_BYTES), bytes_of(3 * MIB)]
    assert pair.b.peer.direct_receiver.bytes_taken == 0
    pair.close()
