"""What a backend offers a group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from aiodist.completion import T
from aiodist.deadline import Deadline
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.operation import Collective, Operation, Tensor
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.unpicklable import Unpicklable

Start = Callable[[Any, float | None], CompletedRecord | Work[Any]]
"""Starts an operation within a timeout, as `CollectiveBackend.start`."""


class ObjectStream(Unpicklable, ABC):
    """One rank's end of a stream of objects, as `aiodist.open_stream` returns it.

    ``async with`` closes it. ``await stream.send(x)`` sends, ``async for x in stream`` receives
    until the peer has ended its direction.
    """

    async def __aenter__(self) -> Self:
        return self

    @abstractmethod
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the stream; where the block raised, the peer gets StreamClosedError."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Any:
        """Receive the next object; the iteration ends when the peer has ended the stream.

        Several tasks may iterate: each object goes to one of them. Cancelled, it loses no object.
        Objects that came before the peer closed or died are still received. Then StreamClosedError
        is raised where the peer gave the stream up, PeerLostError where it is gone. Raises
        InvalidUsageError after `close`, and in another event loop, as all methods do.
        """

    @abstractmethod
    async def send(self, obj: Any) -> None:
        """Send ``obj``. It returns when ``obj`` may be changed again.

        It waits while the peer's buffer is full, and until the peer has opened the stream.
        Cancelled, it takes the object back unless all of it has gone; the stream goes on.

        Args:
            obj: A tensor, an array, or any object that `send_object` takes.

        Raises:
            StreamClosedError: The peer has closed its end.
            PeerLostError: The peer is gone.
            TypeError: The object cannot travel.
            InvalidUsageError: After `end` or `close`, or in another event loop.
        """

    @abstractmethod
    async def end(self) -> None:
        """Send the end marker: the peer's iteration ends after the objects before. Idempotent.

        This rank may still receive. Sends that wait come first. Raises PeerLostError when the peer
        is gone and may have missed objects.
        """

    @abstractmethod
    async def close(self) -> None:
        """Send the end marker and receive no more. Idempotent; errors are those of `end`.

        Objects that this rank has not read are dropped. A peer that still sends gets
        StreamClosedError.
        """


class StreamSettings(NamedTuple):
    """What `aiodist.open_stream` was called with; ``peer`` is a group rank."""

    peer: int
    tag: int
    window: int
    max_bytes: int
    allow_pickle: bool


class CollectiveBackend(ABC):
    """Starts the operations of one group."""

    name: str

    why_fixed = ""
    """Why the group's ranks can neither become fewer nor others (`shrink`, `grow`); "" where they can."""

    async def ready(self, deadline: Deadline) -> None:  # noqa: B027  # most have nothing to open
        """Return when the backend can serve; ``init_process_group`` awaits it on the group's loop.

        A backend that has something to open begins when it is made, since a new group's members
        are not gathered again; operations that start earlier wait for it. Raises a DistError that
        says what is missing.
        """

    def ends_group(self, fingerprint: Fingerprint | None, error: BaseException) -> bool:
        """Return whether a collective that failed by ``error`` on any rank ends the group.

        That is so if it may have begun what cannot be undone. All ranks that know the collective answer
        alike. ``fingerprint``: the collective's; None if it ended well on this rank, too long ago to be
        remembered.
        """
        return False

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what is held: the group is closed, and its operations have failed.

        Called on the group's loop. It must not wait, and may be called twice.
        """

    @abstractmethod
    def start(
        self, operation: Operation[T], timeout: float | None = None
    ) -> CompletedRecord | Work[T]:
        """Start ``operation`` and return its `Work`, or its record if it completed without a result.

        ``timeout`` in seconds, the group's own where None. Raises TypeError or InvalidUsageError for
        tensors that `Operation.open` or the backend refuses, before anything is sent.

        A thread that drives the loop while the loop stands still may call this, and no loop runs
        there. So all that needs a running loop goes through `RankWorld.as_its_loop`.
        """

    def prepare(self, operation: Collective[None], start: Start) -> Start:
        """Return what starts ``operation``, and no other one, as `start` does; as often as it is called.

        ``start``: calls `start` behind an earlier one of its calls. What is returned may leave it out
        where operations run one after the other. Raises what `start` raises for the operation's
        arguments, unless they are checked when it starts.
        """
        return start

    @abstractmethod
    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        """Raise what a send of this tensor would raise, or, where ``writable``, a receive."""

    @abstractmethod
    def open_stream(self, settings: StreamSettings) -> ObjectStream:
        """Open a stream to another rank."""
