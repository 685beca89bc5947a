"""Messages between two ranks over MPI: those with tags, and those of aiodist's own algorithms.

MPI delivers bytes under an int. aiodist's messages have metadata, 64-bit keys, and receivers that
do not know the length. A message therefore begins with a head, which carries metadata and, if it is
short, the payload. A long payload follows directly from and into the tensors' memory, under a tag
that the head names. One communicator has a range of MPI tags for heads of each kind of message, and
one for long payloads.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.poller import Request
from aiodist.completion import Pending, T
from aiodist.copying import copy
from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.p2p.matching import ANY_SOURCE, Arrival, Recv
from aiodist.p2p.outbox import Send
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.tensors import scratch
from aiodist.wire.frames import COLLECTIVE, PART, Key

SHORT = 4096
"""Bytes of payload that travel with the head: a copy costs less than a second message."""

_HEAD = struct.Struct("<QIH")  # payload bytes, tag of a long payload, metadata bytes
_MOST_META = 1024
_LONG = 5
"""The kind of tags of long payloads, beside the kinds of keys, which are 0 to 4."""
_KINDS = 6


class _Posted:
    """A receive that waits for its head."""

    __slots__ = ("head", "recv", "request")

    def __init__(self, recv: Recv) -> None:
        self.recv: Recv | None = recv  # None: taken back
        self.head = bytearray(_HEAD.size + _MOST_META + SHORT)
        self.request: Request | None = None  # None: the communicator is not there yet


class MpiMessenger:
    """A `groups.messenger.Messenger` on one communicator, and its `inbox` in one."""

    def __init__(self, ranks: Sequence[int], gate: Gate, spin_policy: SpinPolicy) -> None:
        """``ranks[i]``: the global rank of rank i of the communicator, which ``gate`` will bring."""
        self._ranks = ranks
        self._numbers = {rank: number for number, rank in enumerate(ranks)}
        self._gate = gate
        self.spin_policy = spin_policy
        self._posted: dict[Recv, _Posted] = {}
        self._arriving: dict[Recv, tuple[Request, Recv]] = {}
        """By receive: the request of its long payload, and the receive into whose memory that comes."""
        self._came = 0  # heads
        # Turn, MPI tag, source of each message without a receive, and what gives it to one.
        self._unclaimed: list[tuple[int, int, int, Callable[[Recv], None]]] = []
        self._next_long = 0

    @property
    def inbox(self) -> MpiMessenger:
        return self

    def check_tag(self, tag: int) -> None:
        """Raise InvalidUsageError for a tag that this MPI cannot carry."""
        most = self._gate.most_tag // _KINDS
        if not 0 <= tag < most:
            raise InvalidUsageError(
                f"tag {tag} does not travel over this MPI: its tags go from 0 to {most - 1}"
            )

    # -- Messenger

    def send(self, dst: int, key: Key, data: memoryview, meta: bytes) -> Send:
        message = Send(key, data, meta)
        self._gate.run(lambda: self._send(dst, message), message.fail)
        return message

    def recv(self, recv: Recv) -> Recv:
        posted = _Posted(recv)
        self._posted[recv] = posted
        self._gate.run(lambda: self._recv(posted), lambda error: self._refuse(recv, error))
        return recv

    def withdraw_send(self, dst: int, message: Send) -> bool:
        return False  # MPI has no way to

    def polls(self, ranks: Sequence[int]) -> Sequence[Callable[[], None]]:
        return (self._gate.poller.poll,) if self._gate.is_open else ()

    # -- RecvControl

    def watch(self, key: Key, unasked: Callable[[int, bytes], None]) -> None:
        """Do nothing: unexpected messages stay in MPI, and cannot be inspected."""

    def drop(self, recv: Recv) -> None:
        recv.callback = None
        self._arriving.pop(recv, None)
        self.withdraw(recv)

    def withdraw(self, recv: Recv) -> None:
        posted = self._posted.pop(recv, None)
        if posted is None:
            # It has its message, or the head of it: a long payload comes in any case. In memory of our
            # own it is for the next receive. The caller's tensor may change before it has come.
            arriving = self._arriving.pop(recv, None)
            if arriving is not None and recv.allocate is not None:
                source = self._numbers[arriving[1].source]
                give = partial(self._await, arriving=arriving)
                self._hand_on(recv.turn, self._tag_of(recv.key), source, give)
            return
        posted.recv = None
        if posted.request is not None and posted.request.request:  # else it has just ended
            posted.request.request.Cancel()

    def take_back(self, key: Key, src: int, meta: bytes, data: memoryview, order: int) -> None:
        """Give a message whose receive was given up to the next receive. ``data`` is copied."""
        kept = scratch(len(data))
        copy(kept, data)
        give = partial(_give, rank=src, meta=meta, data=kept)
        self._hand_on(order, self._tag_of(key), self._numbers[src], give)

    def forget(self, key: Key) -> Arrival | None:
        return None  # as in `watch`

    # -- sending

    def _send(self, dst: int, message: Send) -> None:
        mpi, comm, poller = self._gate.mpi, self._gate.comm, self._gate.poller
        to, data = self._numbers[dst], message.data
        long = len(data) > SHORT
        number = self._next_long
        if long:
            self._next_long = (number + 1) % (self._gate.most_tag // _KINDS)
        head = _HEAD.pack(len(data), number, len(message.meta)) + message.meta
        if not long:
            head += data
        first = last = poller.watch(
            comm.Isend([head, mpi.BYTE], to, self._tag_of(message.key)), head
        )
        if long:
            # A receiver that has no head never asks for the payload.
            first.callback = lambda: _fail_with(first, message)
            tag = self._tag(_LONG, number)
            last = poller.watch(comm.Isend([data, mpi.BYTE], to, tag), data, len(data))
        last.callback = lambda: _hand_over(last, message, None)

    # -- receiving

    def _recv(self, posted: _Posted) -> None:
        recv = posted.recv
        if recv is None:  # taken back before the communicator was there
            return
        tag = self._tag_of(recv.key)
        source = self._numbers[recv.src] if recv.src != ANY_SOURCE else ANY_SOURCE
        for place, (turn, its_tag, its_source, give) in enumerate(self._unclaimed):
            if its_tag == tag and source in (its_source, ANY_SOURCE):
                del self._unclaimed[place]
                del self._posted[recv]
                recv.turn = turn
                give(recv)
                return
        mpi, comm = self._gate.mpi, self._gate.comm
        wanted = mpi.ANY_SOURCE if source == ANY_SOURCE else source
        request = comm.Irecv([posted.head, mpi.BYTE], wanted, tag)
        watched = self._gate.poller.watch(request, posted.head, status=mpi.Status())
        posted.request = watched
        watched.callback = lambda: self._arrived(posted, watched)

    def _arrived(self, posted: _Posted, watched: Request) -> None:
        recv, status = posted.recv, watched.status
        posted.recv = None
        if recv is not None:
            self._posted.pop(recv, None)
        if watched.error is not None:
            if recv is not None:
                recv.fail(watched.error)
        elif not status.Is_cancelled():
            self._came += 1
            source = status.Get_source()
            give = partial(self._open, source=source, head=posted.head)
            if recv is not None:
                self._give_or_fail(recv, self._came, give)
            else:  # it came in the moment in which its receive was taken back
                self._hand_on(self._came, status.Get_tag(), source, give)

    def _hand_on(self, turn: int, tag: int, source: int, give: Callable[[Recv], None]) -> None:
        """Give a message to the first receive that matches it, or keep it for a later one."""
        for recv, posted in self._posted.items():
            if (
                posted.request is not None
                and self._tag_of(recv.key) == tag
                and recv.src in (self._ranks[source], ANY_SOURCE)
            ):
                # If its own request has got a head, or gets one before MPI cancels it, that is handed on.
                self.withdraw(recv)
                self._give_or_fail(recv, turn, give)
                return
        insort(self._unclaimed, (turn, tag, source, give), key=itemgetter(0))

    def _refuse(self, recv: Recv, error: BaseException) -> None:
        self._posted.pop(recv, None)
        recv.fail(error)

    def _give_or_fail(self, recv: Recv, turn: int, give: Callable[[Recv], None]) -> None:
        """Call ``give(recv)``. Its error fails ``recv``: the poller has other requests to complete."""
        recv.turn = turn
        self._gate.call(lambda: give(recv), recv.fail)

    def _open(self, recv: Recv, source: int, head: bytearray) -> None:
        """Take the head of a message for ``recv``, and the message itself if it is short."""
        length, number, n_meta = _HEAD.unpack_from(head)
        start = _HEAD.size + n_meta
        if start > _HEAD.size + _MOST_META or (length <= SHORT and start + length > len(head)):
            recv.fail(ProtocolError("a message over MPI that aiodist has not sent"))
            return
        rank, meta = self._ranks[source], bytes(head[_HEAD.size : start])
        if length <= SHORT:
            _give(recv, rank, meta, memoryview(head)[start : start + length])
            return
        # Receive it even if it is not wanted: the sender waits until it has been received.
        error = recv.accept(rank, meta, length)
        into = recv.into if error is None and recv.into is not None else scratch(length)
        mpi, tag = self._gate.mpi, self._tag(_LONG, number)
        request = self._gate.comm.Irecv([into, mpi.BYTE], source, tag)
        watched = self._gate.poller.watch(request, into, length)
        if error is None:
            self._await(recv, (watched, recv))
        else:
            recv.fail(error)

    def _await(self, recv: Recv, arriving: tuple[Request, Recv]) -> None:
        """Complete ``recv`` when its long payload has come."""
        watched, first = arriving

        def end() -> None:
            if self._arriving.pop(recv, None) is None:
                return  # it was given up
            if watched.error is None and first is not recv:
                assert first.into is not None  # where the payload came
                _give(recv, first.source, first.meta, first.into)
            else:
                _hand_over(watched, recv, first.source)

        self._arriving[recv] = arriving
        watched.callback = end
        if watched.done:
            end()

    # -- tags

    def _tag_of(self, key: Key) -> int:
        kind, _, number = key
        if kind in (COLLECTIVE, PART):  # of these few are under way at a time
            number %= self._gate.most_tag // _KINDS
        else:
            self.check_tag(number)
        return self._tag(kind, number)

    def _tag(self, kind: int, number: int) -> int:
        return _KINDS * number + kind


def _give(recv: Recv, rank: int, meta: bytes, data: memoryview) -> None:
    """Complete ``recv`` by a message that is here, of global rank ``rank``."""
    error = recv.accept(rank, meta, len(data))
    if error is not None:
        recv.fail(error)
        return
    if recv.into is not None:
        copy(recv.into, data)
    recv.complete(rank)


def _hand_over(request: Request, operation: Pending[T], value: T) -> None:
    """End ``operation``, whose ``request`` has ended."""
    _fail_with(request, operation)
    operation.complete(value)


def _fail_with(request: Request, operation: Pending[Any]) -> None:
    if request.error is not None:
        operation.fail(request.error)
