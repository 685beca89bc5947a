"""The interface of transports: reliable, ordered byte streams between two ranks, with callbacks.

Bytes are read directly into their destination. A connection asks its `Receiver` for memory before
each read and tells it how many bytes arrived. The receiver (a frame decoder) hands out the posted
tensor's own memory, so the kernel or the transport copies a payload only once. A transport knows
nothing of frames.

State after a failure: a connection that reported ``lost`` is closed; it is never reused. Every
``on_sent`` of a queued send is then called with the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from aiodist.deadline import Deadline

OnSent = Callable[[BaseException | None], None]


class Receiver(Protocol):
    """Takes the bytes of a connection."""

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes, which is never empty. Valid until the next
        ``received``.

        It may be called although no bytes come. It is then called again before the next bytes.
        """
        ...

    def received(self, count: int) -> None:
        """Handle ``count`` bytes at the start of the last ``get_buffer``."""
        ...

    def lost(self, error: BaseException | None) -> None:
        """Handle the end of the stream: None for a clean end by the other side, else the error.
        Called once.

        It is not called after this side's own ``close`` or ``abort``.
        """
        ...


class Connection(ABC):
    """One end of a stream. All methods belong to the loop's thread."""

    scheme: str
    peer_name: str
    """The other end's address or path, for messages."""

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read into ``receiver``. A second call hands the stream over."""

    @abstractmethod
    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        """Queue ``parts`` in order and return at once.

        The memory must not change until ``on_sent(None)``. ``on_sent(error)`` means that it was not
        sent. The callback may run before ``send`` returns. On a closed connection ``send`` does not
        raise, but fails through ``on_sent``.
        """

    def poll(self) -> None:  # noqa: B027  # an offer, not a duty
        """Read what has arrived and continue to send now, without waiting for the loop.

        Do not call it from a callback of this connection. A transport that gains nothing by it does
        nothing.
        """

    def release(self, memory: memoryview) -> None:  # noqa: B027  # where there is a queue
        """Copy what is still queued of the object behind ``memory``, which may change from now on.

        For a sender that stops waiting for ``on_sent``. A connection that queues no views of the
        caller's memory has nothing to do.
        """

    def leaves_host(self) -> None:  # noqa: B027  # most have left out nothing
        """Set the options of a network connection: the other end is proven to be on another host."""

    @abstractmethod
    async def close(self) -> None:
        """Send what is queued, then end the stream in both directions. Idempotent.

        If cancelled while flushing, it aborts.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what is queued and close at once. Idempotent."""

    def close_in_child(self) -> None:  # noqa: B027  # without a descriptor there is nothing to do
        """Release in a forked child what it inherited, without harm to the parent's stream."""


OnAccept = Callable[[Connection], None]


class Listener(ABC):
    """Accepts connections at ``address`` until closed."""

    address: str

    @abstractmethod
    async def close(self) -> None:
        """Stop listening and release the address; accepted connections stay open. Idempotent."""

    def close_in_child(self) -> None:  # noqa: B027  # without a descriptor there is nothing to do
        """Release in a forked child what it inherited; the parent keeps listening."""


class Transport(ABC):
    """A kind of connection. ``scheme`` is the part of its addresses before the colon."""

    scheme: str

    @abstractmethod
    async def listen(self, on_accept: OnAccept) -> Listener:
        """Listen at an address of the transport's choosing. Raises DistNetworkError."""

    @abstractmethod
    async def connect(self, address: str, deadline: Deadline) -> Connection:
        """Connect to a listener's ``address``. Raises DistNetworkError, which names it.

        If cancelled or failed, it leaves no socket open.
        """

    def close_in_child(self) -> None:  # noqa: B027  # without a descriptor there is nothing to do
        """Release in a forked child the sockets that were being connected."""
