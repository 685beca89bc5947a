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
    """Who takes the bytes of a connection."""

    def get_buffer(self) -> memoryview:
        """Memory for the next bytes; never empty. Valid until the next ``received``.

        May be asked for though nothing comes: then it is asked for again before the next bytes.
        """
        ...

    def received(self, count: int) -> None:
        """``count`` bytes were written at the start of the last ``get_buffer``."""
        ...

    def lost(self, error: BaseException | None) -> None:
        """The stream ended: None for a clean end by the other side, else why. Called once.

        Not called after this side's own ``close`` or ``abort``.
        """
        ...


class Connection(ABC):
    """One end of a stream. All methods belong to the loop's thread."""

    scheme: str
    peer_name: str
    """Where the other end is, for messages: an address, or a path."""

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read into ``receiver``. Called again, it hands the stream over."""

    @abstractmethod
    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        """Queue ``parts`` in order and return at once.

        The memory must stay as it is until ``on_sent(None)``; ``on_sent(error)`` says it never
        went out. May be called back before ``send`` returns. On a closed connection it fails
        through ``on_sent``, it does not raise.
        """

    def poll(self) -> None:  # noqa: B027  # an offer, not a duty
        """Take in now what has arrived, and send on, without waiting for the loop to say so.

        Never from inside one of this connection's callbacks. Where a transport has nothing to
        gain from it, it does nothing.
        """

    def release(self, memory: memoryview) -> None:  # noqa: B027  # where there is a queue
        """Copy what is still queued of the object behind ``memory``: it may change from now on.

        For a sender that gives up waiting for ``on_sent``. A connection that queues no views of
        the caller's memory has nothing to do.
        """

    def leaves_host(self) -> None:  # noqa: B027  # most have left out nothing
        """The other end is proven to be on another host: what only a network needs must be there."""

    @abstractmethod
    async def close(self) -> None:
        """Send what is queued, then end the stream in both directions. Idempotent.

        Cancelled while flushing, it aborts.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what is queued and close at once. Idempotent."""

    def close_in_child(self) -> None:  # noqa: B027  # without a descriptor there is nothing to do
        """In a forked child: give back what it inherited, without harm to the parent's stream."""


OnAccept = Callable[[Connection], None]


class Listener(ABC):
    """Accepts connections at ``address`` until closed."""

    address: str

    @abstractmethod
    async def close(self) -> None:
        """Stop listening and give the address back; accepted connections live on. Idempotent."""

    def close_in_child(self) -> None:  # noqa: B027  # without a descriptor there is nothing to do
        """In a forked child: give back what it inherited; the parent keeps listening."""


class Transport(ABC):
    """A way to make connections. ``scheme`` is the part of its addresses before the colon."""

    scheme: str

    @abstractmethod
    async def listen(self, on_accept: OnAccept) -> Listener:
        """Listen at an address of the transport's choosing. Raises DistNetworkError."""

    @abstractmethod
    async def connect(self, address: str, deadline: Deadline) -> Connection:
        """Connect to a listener's ``address``. Raises DistNetworkError, naming it.

        Cancelled or failed, it leaves no socket behind.
        """
