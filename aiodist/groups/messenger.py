"""What a group's operations need of the carrier of their messages: the endpoint, or another library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.completion import Pending
from aiodist.p2p.matching import Arrival, Recv, TakesBack
from aiodist.p2p.outbox import Send
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.tensors import scratch
from aiodist.wire.frames import Key


class RecvControl(TakesBack, Protocol):
    """Takes back receives that are not wanted any more, and shows messages without a receive."""

    def watch(self, key: Key, unasked: Callable[[int, bytes], None]) -> None:
        """Call ``unasked(src, metadata)`` for each message for the collective ``key`` that comes, or has
        come, and that no receive is posted for. Until `forget`."""

    def drop(self, recv: Recv) -> None:
        """Throw away the message of a receive that is not done, of a failed collective."""

    def withdraw(self, recv: Recv) -> None:
        """Take back a message's receive that is not done: the next receive gets the message, if it can."""

    def forget(self, key: Key) -> Arrival | None:
        """Forget collective ``key``, which is over. Returns a message without a receive, or None."""


class Messenger(Protocol):
    """Messages between ranks, by key; ranks are global. `p2p.endpoint.Endpoint` is one."""

    @property
    def inbox(self) -> RecvControl:
        """Where receives are taken back."""

    def send(self, dst: int, key: Key, data: memoryview, meta: bytes) -> Send:
        """Send ``data``; done when its memory is free again."""

    def recv(self, recv: Recv) -> Recv:
        """Post a receive."""

    def withdraw_send(self, dst: int, message: Send) -> bool:
        """Take a message back; False if it is on its way already."""

    @property
    def spin_policy(self) -> SpinPolicy | None:
        """How long to look for messages before sleeping; None: this is not known."""

    def polls(self, ranks: Sequence[int]) -> Sequence[Callable[[], None]]:
        """Return what to call to look for messages from ``ranks``."""


def take_any(recv: Recv, src: int, meta: bytes, length: int) -> None:
    """Accept a message of any length; as `p2p.matching.Check`."""


def new_memory(meta: bytes, length: int) -> memoryview:
    """Return memory for a message, whatever it says of itself; as `p2p.matching.Allocate`."""
    return scratch(length)


def payload_of(recv: Recv) -> Pending[memoryview]:
    """Return what is done with the payload when ``recv``, which is not posted yet, is done."""
    arrived: Pending[memoryview] = Pending()

    def hand_over() -> None:
        if recv.error is not None:
            arrived.fail(recv.error)
        else:
            assert recv.into is not None  # allocated when the message was accepted
            arrived.complete(recv.into)

    recv.callback = hand_over
    return arrived
