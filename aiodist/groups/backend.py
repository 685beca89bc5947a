"""What a backend offers a group: every operation, on arguments that are checked already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Self

from aiodist.completion import T
from aiodist.deadline import Deadline
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.types import ReduceOp

Tensor = Any
"""torch.Tensor or numpy.ndarray; neither is imported here."""


class Received(NamedTuple):
    """A message that was received without a buffer."""

    tensor: Tensor
    """With the sender's kind (torch or numpy), dtype and shape."""
    source: int
    """The sender's global rank."""


class ReceivedObject(NamedTuple):
    """An object that was received."""

    obj: Any
    source: int
    """The sender's global rank."""


class ObjectStream(ABC):
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
        InvalidUsageError after `close`.
        """

    @abstractmethod
    async def send(self, obj: Any) -> None:
        """Send ``obj``: a tensor, an array, or any object. Returns when it may be changed again.

        It waits while the peer's buffer is full, and until the peer has opened the stream.
        Cancelled, it takes the object back unless all of it has gone; the stream goes on. Raises
        StreamClosedError when the peer has closed its end, PeerLostError when the peer is gone,
        TypeError for an object that cannot travel, InvalidUsageError after `end` or `close`.
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


class CollectiveBackend(ABC):
    """Runs the operations of one group. Ranks are the group's own numbers.

    List lengths, ranks and tags have been checked; what depends on the tensors themselves
    (device, dtype, memory, sizes) each backend checks, raising TypeError or InvalidUsageError
    before anything is sent. Every call starts its operation and returns at once. ``timeout`` in
    seconds, the group's own where None.
    """

    name: str

    is_fragile = False
    """Whether a collective that failed on any rank ends the group: what it began cannot be undone."""

    why_fixed = ""
    """Why the group's ranks can neither become fewer nor others (`shrink`, `grow`); "" where they can."""

    def run_cached(
        self, operation: str, tensor: Tensor, variant: Hashable, timeout: float | None = None
    ) -> CompletedRecord | Work[None] | None:
        """Carry out now a collective of one tensor like one before, if all it needs is at hand.

        ``variant``: the root, and the kind of reduction by its `id`. Unlike all else here it may be
        called by a thread that drives the engine while the loop stands still. A `Work`: it has begun,
        and has to wait. None: not so.
        """
        return None

    def run_cached_between(
        self,
        operation: str,
        target: Tensor,
        source: Tensor,
        variant: Hashable = None,
        timeout: float | None = None,
    ) -> CompletedRecord | Work[None] | None:
        """As `run_cached`, for an operation that writes one tensor and reads another."""
        return None

    def run_cached_without_tensor(self) -> CompletedRecord | Work[None] | None:
        """As `run_cached`, for a barrier."""
        return None

    def send_cached(self, tensor: Tensor, dst: int, tag: int) -> CompletedRecord | None:
        """As `run_cached`, for a message to ``dst`` like one before."""
        return None

    def recv_cached(self, tensor: Tensor, src: int, tag: int) -> CompletedRecord | None:
        """As `run_cached`, for a message from ``src``, which is looked for for a moment."""
        return None

    async def ready(self, deadline: Deadline) -> None:  # noqa: B027  # most have nothing to open
        """Return when the backend can serve; ``init_process_group`` awaits it on the group's loop.

        A backend that has something to open begins when it is made, since a new group's members
        are not gathered again; operations that start earlier wait for it. Raises a DistError that
        says what is missing.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """The group is closed and its operations have failed: give back what is held.

        On the group's loop; must not wait, and may be called twice.
        """

    @abstractmethod
    def check_tensor(self, tensor: Tensor, *, writable: bool) -> None:
        """Raise what `send` (or, where ``writable``, `recv`) would for this tensor."""

    @abstractmethod
    def send(self, tensor: Tensor, dst: int, tag: int, timeout: float | None) -> Work[None]: ...

    @abstractmethod
    def recv(
        self, tensor: Tensor, src: int | None, tag: int, timeout: float | None
    ) -> Work[int]: ...

    @abstractmethod
    def recv_new(self, src: int | None, tag: int, timeout: float | None) -> Work[Received]: ...

    @abstractmethod
    def send_object(
        self, obj: Any, dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def recv_object(
        self,
        finish: Callable[[Any, int], T],
        src: int | None,
        tag: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        """Receive an object; the result is what ``finish(object, global source)`` returns."""

    @abstractmethod
    def broadcast_new(
        self, tensor: Tensor | None, root: int, timeout: float | None
    ) -> Work[Tensor]:
        """As `broadcast`, into a new tensor that the root's describes; the root gets its own."""

    @abstractmethod
    def all_gather_new(self, tensor: Tensor, timeout: float | None) -> Work[list[Tensor]]:
        """As `all_gather`, into new tensors; each rank's may have a shape of its own."""

    @abstractmethod
    def open_stream(
        self, peer: int, tag: int, window: int, max_bytes: int, allow_pickle: bool
    ) -> ObjectStream:
        """Open a stream with rank ``peer``; the arguments are those of `aiodist.open_stream`."""

    @abstractmethod
    def barrier(self, timeout: float | None) -> Work[None]: ...

    @abstractmethod
    def agree(self, operation: str, digest: int, timeout: float | None) -> Work[None]:
        """Start a barrier that fails on all ranks unless all pass the same ``digest`` (63 bits)."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int, timeout: float | None) -> Work[None]: ...

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: ReduceOp, timeout: float | None) -> Work[None]: ...

    @abstractmethod
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def reduce(
        self, tensor: Tensor, root: int, op: ReduceOp, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def all_gather(
        self, outputs: Sequence[Tensor], tensor: Tensor, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def all_gather_into(
        self, output: Tensor, tensor: Tensor, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def gather(
        self, tensor: Tensor, outputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def reduce_scatter_from(
        self, output: Tensor, tensor: Tensor, op: ReduceOp, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        timeout: float | None,
    ) -> Work[None]: ...

    @abstractmethod
    def broadcast_object(
        self,
        name: str,
        obj: Any,
        finish: Callable[[Any], T],
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[T]:
        """Send ``obj`` of ``root`` to all; the result is what ``finish(object)`` returns, on each.

        ``name``: that of the operation, on which the ranks have to agree.
        """

    @abstractmethod
    def all_gather_object(
        self, objects: list[Any], obj: Any, pickle: bool, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def gather_object(
        self, obj: Any, objects: list[Any] | None, root: int, pickle: bool, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def scatter_object(
        self,
        output: list[Any],
        inputs: Sequence[Any] | None,
        root: int,
        pickle: bool,
        timeout: float | None,
    ) -> Work[None]: ...
