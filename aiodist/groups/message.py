"""The point-to-point messages of a group, each as its caller has described it; see `groups.operation`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

from aiodist.completion import T
from aiodist.groups.operation import Operation, Tensor, description


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


class Message(Operation[T]):
    """A message between two ranks; ``tag`` tells it from others between them."""

    __slots__ = ()

    tag: int

    @property
    def written(self) -> None:
        return None


@description
class Send(Message[None]):
    """Send ``tensor`` to rank ``dst``."""

    kind: ClassVar[str] = "send"
    tensor: Tensor
    dst: int
    tag: int

    def key(self) -> Hashable:
        tensor = self.tensor
        return "send", type(tensor), tensor.dtype, tensor.shape, self.dst, self.tag


@description
class Recv(Message[int]):
    """Receive into ``tensor`` from rank ``src``, None for any; the result is the global source."""

    kind: ClassVar[str] = "recv"
    tensor: Tensor
    src: int | None
    tag: int
    blocks: bool = False
    """Whether the caller does nothing else before it has the message."""

    def key(self) -> Hashable:
        tensor, src = self.tensor, self.src
        if src is None:
            return None
        return "recv", type(tensor), tensor.dtype, tensor.shape, src, self.tag


@description
class RecvNew(Message[Received]):
    """Receive a tensor that the message describes, from rank ``src``, None for any."""

    kind: ClassVar[str] = "recv_new"
    has_value: ClassVar[bool] = True
    src: int | None
    tag: int


@description
class SendObject(Message[None]):
    """Send ``obj`` to rank ``dst``."""

    kind: ClassVar[str] = "send_object"
    obj: Any
    dst: int
    tag: int
    pickle: bool


@description
class RecvObject(Message[T]):
    """Receive an object from rank ``src``, None for any; the result is ``finish(object, source)``."""

    kind: ClassVar[str] = "recv_object"
    has_value: ClassVar[bool] = True
    finish: Callable[[Any, int], T]
    src: int | None
    tag: int
    pickle: bool
