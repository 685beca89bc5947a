"""What a backend offers a group: every operation, on arguments that are checked already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from aiodist.deadline import Deadline
from aiodist.groups.work import Work
from aiodist.observe.recorder import Ended
from aiodist.types import ReduceOp

Tensor = Any
"""torch.Tensor or numpy.ndarray; neither is imported here."""


class Received(NamedTuple):
    """A message that was received without a buffer."""

    tensor: Tensor
    """Of the sender's kind (torch or numpy), dtype and shape."""
    source: int
    """The sender's global rank."""


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

    def again(
        self, operation: str, tensor: Tensor, variant: Hashable, timeout: float | None = None
    ) -> Ended | Work[None] | None:
        """Carry out now a collective of one tensor like one before, if all it needs is at hand.

        ``variant``: the root, and the kind of reduction by its `id`. Unlike all else here it may be
        called by a thread that drives the engine while the loop stands still. A `Work`: it has begun,
        and has to wait. None: not so.
        """
        return None

    def again_between(
        self,
        operation: str,
        target: Tensor,
        source: Tensor,
        variant: Hashable = None,
        timeout: float | None = None,
    ) -> Ended | Work[None] | None:
        """As `again`, for an operation that writes one tensor and reads another."""
        return None

    def again_of_nothing(self) -> Ended | Work[None] | None:
        """As `again`, for a barrier."""
        return None

    def send_again(self, tensor: Tensor, dst: int, tag: int) -> Ended | None:
        """As `again`, for a message to ``dst`` like one before."""
        return None

    def recv_again(self, tensor: Tensor, src: int, tag: int) -> Ended | None:
        """As `again`, for a message from ``src``, which is looked for for a moment."""
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
        self, objects: Sequence[Any], dst: int, tag: int, pickle: bool, timeout: float | None
    ) -> Work[None]: ...

    @abstractmethod
    def recv_object(
        self, objects: list[Any], src: int | None, tag: int, pickle: bool, timeout: float | None
    ) -> Work[int]: ...

    @abstractmethod
    def barrier(self, timeout: float | None) -> Work[None]: ...

    @abstractmethod
    def agree(self, operation: str, digest: int, timeout: float | None) -> Work[None]:
        """A barrier that fails on all ranks unless all pass the same ``digest`` (63 bits)."""

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
        self, objects: list[Any], root: int, pickle: bool, timeout: float | None
    ) -> Work[None]: ...

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
