"""Messages whose payload another library carries: both ends agree first, over aiodist's streams.

torch's groups need messages of known size from a known rank, and cannot cancel a receive. With NCCL
the two ends also have to start their transfers in one order. So a message is announced over
aiodist's streams, by tag and with its description, and matched there like any other. Then:

    sender                  receiver
    announces          ->   matches it with a receive.
                       <-   READY
    GO or COMMIT       ->                        (or WITHDRAWN: the send was cancelled)
                       <-   GO, after COMMIT.

The lower of the two ranks sends GO, in either role, and starts its half of the transfer in the same
step. The other rank starts when GO arrives. Invariant: one stream keeps the order of these messages,
so both ranks start the transfers between them in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aiodist.backends.announcements import (
    ELSEWHERE,
    announcement,
    declined,
    is_announcement,
    key_of,
    other_device,
    read,
)
from aiodist.completion import Driver, Pending
from aiodist.errors import DistError, InvalidUsageError
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.messenger import new_memory, payload_of, take_any
from aiodist.groups.naming import announcement_group_id
from aiodist.p2p.inbox import Inbox
from aiodist.p2p.matching import Recv
from aiodist.wire.frames import TENSOR, Key

READY, GO, COMMIT, WITHDRAWN, REFUSED = (bytes((code,)) for code in range(5))

Refuse = Callable[[int, bytes], BaseException | None]
"""(source, metadata) -> why a message does not belong to a receive, or None."""


class Transfer:
    """One message, whose protocol runs on when the operation is cancelled, as far as it must."""

    def __init__(self) -> None:
        self.over: Pending[Any] = Pending()
        self.given_up = False
        self.announced: Callable[[], bool] | None = None
        """Withdraws the announcement or its receive, if the peer has not seen it yet."""
        self._driver: Driver[Any] | None = None

    def run(self, body: Coroutine[Any, Any, Any], ended: Callable[[Transfer], None]) -> None:
        def on_done(value: Any, error: BaseException | None) -> None:
            self._driver = None
            ended(self)
            self.over.complete(value) if error is None else self.over.fail(error)

        self._driver = Driver(body, on_done)
        self._driver.start()

    def give_up(self) -> None:
        """Take back what can be taken back: the operation was cancelled."""
        self.given_up = True
        if self.announced is not None and self.announced():
            self.stop(_taken_back())

    def stop(self, error: BaseException) -> None:
        """Fail the transfer: the group is closed, or the other end is gone."""
        if self._driver is not None:
            self._driver.throw(error)


class Transfers:
    """The messages of one group."""

    def __init__(self, group: GroupEngine) -> None:
        self._group = group
        self._control_id = announcement_group_id(group)
        self._next = 0
        self._running: set[Transfer] = set()

    def start(self, transfer: Transfer, body: Coroutine[Any, Any, Any]) -> None:
        """Run the protocol of ``transfer``: `offer` or `accept`, and what follows."""
        self._running.add(transfer)
        transfer.run(body, self._running.discard)

    def stop(self, error: DistError) -> None:
        """Fail all transfers: the group is closed."""
        for transfer in list(self._running):
            transfer.stop(error.again())
        self._group.endpoint.inbox.forget_group(self._control_id)

    async def offer(self, transfer: Transfer, to: int, tag: int, meta: bytes) -> bool:
        """Return when global rank ``to`` starts to receive: the send has to start at once.

        Returns False if that rank refuses the message, or if the message has been taken back. Raises
        InvalidUsageError if it was received for another backend of the group.
        """
        endpoint, here = self._group.endpoint, self._group.global_rank
        number = self._next = self._next + 1
        place, said = (TENSOR, self._group.id, tag), announcement(number, meta)
        message = endpoint.send(to, place, memoryview(b""), said)
        transfer.announced = lambda: not message.done and endpoint.withdraw_send(to, message)
        key = key_of(self._control_id, number, here, to)
        word = await self._hear(to, key)
        if word == ELSEWHERE:
            raise declined(to)
        if word == REFUSED:
            return False
        transfer.announced = None
        if transfer.given_up:
            self._say(to, key, WITHDRAWN)
            return False
        if here < to:
            self._say(to, key, GO)
        else:
            go = self._hear(to, key)
            self._say(to, key, COMMIT)
            await go
        return True

    async def accept(
        self, transfer: Transfer, source: int, tag: int, refuse: Refuse | None
    ) -> tuple[int, bytes]:
        """Return the sender's global rank and the metadata when a message from ``source`` starts.

        The receive has to start at once. Raises what ``refuse`` returns; the message is then dropped.
        """
        endpoint, here = self._group.endpoint, self._group.global_rank
        while True:
            place = (TENSOR, self._group.id, tag)
            recv = Recv(place, source, None, b"", _check_offered, new_memory)
            transfer.announced = partial(_withdraw, endpoint.inbox, recv)
            sender = await endpoint.recv(recv)
            transfer.announced = None
            number, meta = read(recv.meta)
            key = key_of(self._control_id, number, sender, here)
            error = None if refuse is None else refuse(sender, meta)
            if error is not None:
                self._say(sender, key, REFUSED)
                raise error
            answer = self._hear(sender, key)
            self._say(sender, key, READY)
            word = await answer
            if word == WITHDRAWN:
                if transfer.given_up:
                    raise _taken_back()
                continue
            if word == COMMIT:
                self._say(sender, key, GO)
            return sender, meta

    def _say(self, to: int, key: Key, word: bytes) -> None:
        self._group.endpoint.send(to, key, memoryview(word), b"")

    def _hear(self, src: int, key: Key) -> Pending[memoryview]:
        """Return the next word of rank ``src`` about a message. It is listened for from the call on."""
        recv = Recv(key, src, None, b"", take_any, new_memory)
        heard = payload_of(recv)
        self._group.endpoint.recv(recv)
        return heard


def _check_offered(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
    return None if is_announcement(meta) else other_device(src)


def _withdraw(inbox: Inbox, recv: Recv) -> bool:
    if recv.done:
        return False
    inbox.withdraw(recv)
    return True


def _taken_back() -> InvalidUsageError:
    return InvalidUsageError("the message was taken back")
