"""Match messages with receives. Pure bookkeeping: no socket, no loop.

A receive and a message match if their key (kind, group, sequence number or tag) and source rank are
equal. Among equals, both are served in order of arrival, as MPI orders them. A receive from
`ANY_SOURCE` takes the earliest message of its key from any rank. A message without a receive waits
as an `Arrival`; the sender's credit bounds how much memory these take.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from aiodist.completion import Pending, T
from aiodist.shm.message_ring import EagerMessage
from aiodist.wire.frames import COLLECTIVE, Key

ANY_SOURCE = -1

Allocate = Callable[[bytes, int], memoryview]
"""(metadata, payload bytes) -> memory for a message whose receive has no buffer."""

Check = Callable[["Recv", int, bytes, int], BaseException | None]
"""(receive, source, metadata, payload bytes) -> why the message does not fit the receive, or None.
"""


class Recv(Pending[int]):
    """A posted receive; completes with the source's rank.

    ``into`` is the caller's memory, or None until ``allocate`` makes some for the message.
    ``expect``: metadata that needs no check. Other metadata, or another length, calls ``check``.
    """

    __slots__ = (
        "allocate",
        "arrival",
        "check",
        "expect",
        "got",
        "into",
        "key",
        "meta",
        "offer",
        "order",
        "owner",
        "reader",
        "send_id",
        "source",
        "src",
        "stands_for",
        "ticket",
        "turn",
    )

    def __init__(
        self,
        key: Key,
        src: int,
        into: memoryview | None,
        expect: bytes,
        check: Check,
        allocate: Allocate | None = None,
        owner: Any = None,
    ) -> None:
        """``owner``: what keeps the memory of ``into`` alive, if ``into`` does not."""
        super().__init__()
        self.owner = owner
        self.key = key
        self.src = src
        self.into = into
        self.expect = expect
        self.check = check
        self.allocate = allocate
        self.order = 0  # of posting
        self.turn = 0  # order of the message that was matched with this receive
        self.arrival: Arrival | None = None  # that message, while it is still arriving elsewhere
        self.offer: Arrival | None = None  # the announcement of the message that is read directly
        self.stands_for: Arrival | None = None
        """The message of a cancelled receive, whose parts this one takes."""
        self.meta = b""  # of the message that was accepted
        self.source = ANY_SOURCE  # the sender of that message
        self.got = 0  # bytes received so far, if the message comes in parts
        self.ticket = 0  # the number in this rank's GRANT, while the message is on its way
        self.send_id = 0  # the number in the sender's REQUEST, while the message is on its way
        self.reader: Reader | None = None  # what reads into this receive now

    def accept(self, src: int, meta: bytes, length: int) -> BaseException | None:
        """Prepare ``into`` for the message. Returns why the message does not fit, or None."""
        into = self.into
        self.meta = meta
        self.source = src
        if into is not None and meta == self.expect and length == len(into):
            return None
        try:
            error = self.check(self, src, meta, length)
            if error is None and into is None and self.allocate is not None:
                self.into = self.allocate(meta, length)
        except Exception as failed:  # noqa: BLE001  # e.g. no memory: only this receive fails
            return failed
        return error

    def hand_back(self, inbox: TakesBack) -> None:
        """Give the message, which has come whole, to the next receive."""
        if self.into is not None:
            inbox.take_back(self.key, self.source, self.meta, self.into, self.turn)


class TakesBack(Protocol):
    """What gives messages to receives. `Inbox` is one."""

    def take_back(self, key: Key, src: int, meta: bytes, data: memoryview, order: int) -> None:
        """Give a message that a receive has got, and no caller, to the next receive."""


class Reader(Protocol):
    """What is reading a payload: a connection, or a copy out of the sender's process."""

    def redirect(self, target: Recv | Arrival | None, destination: memoryview | None) -> None:
        """Read the rest for ``target`` into ``destination``, and move there what was read already."""


class Arrival:
    """A message, or the announcement of one, without a receive."""

    __slots__ = (
        "address",
        "complete",
        "cost",
        "data",
        "eager_message",
        "key",
        "length",
        "meta",
        "order",
        "recv",
        "send_id",
        "src",
    )

    def __init__(
        self, key: Key, src: int, meta: bytes, length: int, cost: int, send_id: int | None
    ) -> None:
        self.key = key
        self.src = src
        self.meta = meta
        self.length = length
        self.cost = cost
        self.send_id = send_id  # of a REQUEST; None where the payload itself is here
        self.address = 0  # where it can be read in the sender's process
        self.data: memoryview | None = None
        self.eager_message: EagerMessage | None = None  # where it waits instead, until it is taken
        self.complete = False  # all of ``data`` has arrived
        self.recv: Recv | None = None  # posted while ``data`` was arriving: gets it in the end
        self.order = 0


class Matcher:
    """The posted receives and waiting arrivals of one rank."""

    def __init__(self) -> None:
        self.posted: dict[tuple[Key, int], deque[Recv]] = {}
        """Receives that wait, in order, by key and source; no queue is empty."""
        self._arrived: dict[tuple[Key, int], deque[Arrival]] = {}
        self.arrived: Mapping[tuple[Key, int], Sequence[Arrival]] = self._arrived
        """Messages that wait, for frequent look-ups: it is mostly empty."""
        self._order = 0
        self.taken = 0
        """The order of the message that a receive took last as it was called."""

    # -- receives

    def post(self, recv: Recv) -> Arrival | None:
        """Give ``recv`` its message if one waits (the message is removed), else remember the
        receive. One that has a place in the order keeps it.
        """
        is_new = not recv.order
        if is_new:
            self.number(recv)
        arrival = self._take_arrival(recv.key, recv.src)
        if arrival is not None:
            recv.turn = arrival.order
        elif is_new:
            self.posted.setdefault((recv.key, recv.src), deque()).append(recv)
        else:
            _insert(self.posted, (recv.key, recv.src), recv)
        return arrival

    def number(self, recv: Recv) -> None:
        """Give ``recv`` its place in the order, which it keeps if it is posted later."""
        self._order += 1
        recv.order = self._order

    def first(self, key: Key, src: int) -> Arrival | None:
        """Return the message for the next receive of ``key`` from ``src``, or None if none waits."""
        queue = self._arrived.get((key, src))
        return None if queue is None else queue[0]

    def repost(self, recv: Recv) -> Arrival | None:
        """Post a receive again whose message was withdrawn; it keeps its turn. See `post`."""
        recv.ticket = recv.send_id = recv.got = 0
        recv.source = ANY_SOURCE
        recv.arrival = None
        if recv.allocate is not None:
            recv.into = None
        return self.post(recv)

    def withdraw(self, recv: Recv) -> bool:
        """Remove a posted receive. Returns False if it is not posted."""
        return _remove(self.posted, (recv.key, recv.src), recv)

    # -- messages

    def take_recv(self, key: Key, src: int) -> Recv | None:
        """Remove and return the posted receive for a message from ``src``, or None."""
        posted = self.posted
        if not posted:
            return None
        exact = posted.get((key, src))
        any_rank = posted.get((key, ANY_SOURCE))
        if any_rank is not None and (exact is None or any_rank[0].order < exact[0].order):
            recv = _pop(posted, (key, ANY_SOURCE), any_rank)
        elif exact is not None:
            recv = _pop(posted, (key, src), exact)
        else:
            return None
        self._order += 1
        recv.turn = self._order
        return recv

    def took(self) -> None:
        """Note that a receive took a message as it was called, before the message was kept."""
        self._order += 1
        self.taken = self._order

    def keep(self, arrival: Arrival) -> None:
        """Remember a message without a receive."""
        self._order += 1
        arrival.order = self._order
        self._arrived.setdefault((arrival.key, arrival.src), deque()).append(arrival)

    def put_back(self, arrival: Arrival) -> None:
        """Remember a message again whose receive was cancelled; it keeps its turn."""
        _insert(self._arrived, (arrival.key, arrival.src), arrival)

    def remove_arrival(self, arrival: Arrival) -> bool:
        """Remove a waiting message. Returns False if it does not wait."""
        return _remove(self._arrived, (arrival.key, arrival.src), arrival)

    def withdraw_arrival(self, src: int, send_id: int) -> Arrival | None:
        """Remove the announcement ``send_id`` of ``src``, if it still waits, and return it."""
        for slot, queue in self._arrived.items():
            if slot[1] == src:
                for arrival in queue:
                    if arrival.send_id == send_id:
                        _remove(self._arrived, slot, arrival)
                        return arrival
        return None

    def drop_unfinished(self, src: int) -> None:
        """Remove the announced and partial messages of ``src``, which is lost and will not finish
        them.
        """
        for slot in [slot for slot in self._arrived if slot[1] == src]:
            whole = deque(a for a in self._arrived[slot] if a.complete)
            if whole:
                self._arrived[slot] = whole
            else:
                del self._arrived[slot]

    def forget_key(self, key: Key, sources: range) -> list[Arrival]:
        """Drop all receives and arrivals for ``key``. Returns the arrivals."""
        dropped: list[Arrival] = []
        if not self.posted and not self._arrived:
            return dropped
        for src in (ANY_SOURCE, *sources):
            self.posted.pop((key, src), None)
            dropped.extend(self._arrived.pop((key, src), ()))
        return dropped

    def forget_group(self, group: int) -> list[Arrival]:
        """Drop all receives and arrivals for the keys of ``group``. Returns the arrivals."""
        for slot in [slot for slot in self.posted if slot[0][1] == group]:
            del self.posted[slot]
        dropped: list[Arrival] = []
        for slot in [slot for slot in self._arrived if slot[0][1] == group]:
            dropped.extend(self._arrived.pop(slot))
        return dropped

    def forget_all(self) -> None:
        """Drop all receives and arrivals when this rank leaves."""
        self.posted.clear()
        self._arrived.clear()

    # -- looking

    def arrived_from(self, src: int) -> Iterator[Arrival]:
        """Yield the waiting messages of ``src``."""
        for (_, source), queue in list(self._arrived.items()):
            if source == src:
                yield from list(queue)

    def posted_from(self, src: int) -> Iterator[Recv]:
        """Yield the receives that ``src`` could answer: posted for it, or for any rank."""
        for (_, wanted), queue in list(self.posted.items()):
            if wanted in (src, ANY_SOURCE):
                yield from list(queue)

    def posted_for(self, key: Key, src: int) -> Sequence[Recv]:
        """Return the receives for ``key`` that ``src`` could answer: posted for it, or for any rank."""
        posted = self.posted
        return [*posted.get((key, src), ()), *posted.get((key, ANY_SOURCE), ())]

    def waits_for(self, src: int) -> bool:
        """Return whether a posted receive could be answered by a point-to-point message of ``src``."""
        return any(
            wanted in (src, ANY_SOURCE) and key[0] != COLLECTIVE for key, wanted in self.posted
        )

    def is_open_to(self, key: Key, src: int) -> bool:
        """Return whether the next message of ``key`` from ``src`` would go to the next receive.

        That holds if no receive for it is posted and no such message waits.
        """
        posted = self.posted
        return (key, src) not in self._arrived and not (
            posted and ((key, src) in posted or (key, ANY_SOURCE) in posted)
        )

    def holds(self, key: Key, sources: Iterable[int]) -> bool:
        """Return whether a message for ``key`` from one of ``sources`` waits."""
        arrived = self._arrived
        return bool(arrived) and any((key, src) in arrived for src in sources)

    def waiting(self, key: Key, sources: Iterable[int]) -> Iterator[Arrival]:
        """Yield the waiting messages for ``key`` from ``sources``."""
        if self._arrived:
            for src in sources:
                yield from self._arrived.get((key, src), ())

    def arrived_bytes(self) -> int:
        """Return the payload bytes that are held without a posted receive."""
        kept = (a.data or a.eager_message for queue in self._arrived.values() for a in queue)
        return sum(len(payload) for payload in kept if payload is not None)

    # -- inside

    def _take_arrival(self, key: Key, src: int) -> Arrival | None:
        if src != ANY_SOURCE:
            queue = self._arrived.get((key, src))
            return None if queue is None else _pop(self._arrived, (key, src), queue)
        first: tuple[Key, int] | None = None
        order = 0
        for slot, queue in self._arrived.items():
            if slot[0] == key and (first is None or queue[0].order < order):
                first, order = slot, queue[0].order
        return None if first is None else _pop(self._arrived, first, self._arrived[first])


_Ordered = TypeVar("_Ordered", Recv, Arrival)


def _insert(
    table: dict[tuple[Key, int], deque[_Ordered]], slot: tuple[Key, int], item: _Ordered
) -> None:
    """Insert ``item`` in its order."""
    insort(table.setdefault(slot, deque()), item, key=attrgetter("order"))


def _pop(table: dict[tuple[Key, int], deque[T]], slot: tuple[Key, int], queue: deque[T]) -> T:
    item = queue.popleft()
    if not queue:
        del table[slot]
    return item


def _remove(table: dict[tuple[Key, int], deque[T]], slot: tuple[Key, int], item: T) -> bool:
    queue = table.get(slot)
    if queue is None or item not in queue:
        return False
    queue.remove(item)
    if not queue:
        del table[slot]
    return True
