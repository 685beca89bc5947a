"""Point-to-point messages of the async API, with tags, from a given rank or from any.

Messages between two ranks with equal group and tag arrive in the order in which they were sent.
``dst`` and ``src`` are global ranks, ``group_dst`` and ``group_src`` numbers in the group.

Cancelling a receive takes it back: its memory is not written any more, and a message that comes
goes to the next receive. Cancelling a send takes it back unless it is on its way already. Errors
are those of the collectives, but they stay on this rank: a message that times out here is no
failure there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from aiodist.api.collectives import Timeout
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import (
    check_list,
    check_other,
    check_rank,
    check_source,
    check_tag,
)
from aiodist.groups.handle import Group
from aiodist.groups.message import Received, Recv, RecvNew, Send
from aiodist.groups.operation import Operation, Tensor
from aiodist.groups.work import Work
from aiodist.groups.world import current_world


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``tensor`` to rank ``dst``. Done when its memory may be changed again.

    A small message is done as soon as it is on its way; a large one when its receive is posted
    and it has been read.
    """
    pg = current_world().group(group)
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    return pg.start(Send(tensor, to, check_tag(tag)), timeout)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[int]:
    """Receive into ``tensor`` from rank ``src``, or from any rank where None.

    Its result is the sender's global rank. A message of another dtype or number of elements
    raises InvalidUsageError here and is dropped.
    """
    pg = current_world().group(group)
    source = check_source(pg, src, group_src)
    return pg.start(Recv(tensor, source, check_tag(tag)), timeout)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``tensor`` to rank ``dst``, as `isend` does.

    In the async API both start at the call. In the blocking API `send` returns when the memory of
    ``tensor`` may be changed again.
    """
    pg = current_world().group(group)
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    return pg.start(Send(tensor, to, check_tag(tag)), timeout)


@overload
def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[int]: ...


@overload
def recv(
    tensor: None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[Received]: ...


def recv(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[Any]:
    """Receive a tensor from rank ``src``, or from any rank where None.

    With ``tensor`` it does as `irecv`: it receives into that tensor, and the result is the sender's
    global rank. Without one, the message brings kind, dtype and shape, and the result is a
    `Received` (tensor, source).
    """
    pg = current_world().group(group)
    source = check_source(pg, src, group_src)
    operation: Operation[Any]
    if tensor is None:
        operation = RecvNew(source, check_tag(tag))
    else:
        operation = Recv(tensor, source, check_tag(tag))
    return pg.start(operation, timeout)


class P2POp:
    """One message of a batch: ``op`` is `isend` or `irecv`, ``peer`` a global rank."""

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: Group | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        name = getattr(op, "__name__", "")
        if name not in ("isend", "irecv", "send", "recv"):
            raise InvalidUsageError("op must be isend or irecv")
        self.op = op
        self.sends = name.endswith("send")
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer

    def check(self) -> None:
        """Raise what `start` would for these arguments, and start nothing."""
        pg = current_world().group(self.group)
        if self.sends:
            check_other(pg, check_rank(pg, self.peer, self.group_peer, "dst"), "dst")
        else:
            check_source(pg, self.peer, self.group_peer)
        check_tag(self.tag)
        pg.backend.check_tensor(self.tensor, writable=not self.sends)

    def start(self) -> Work[Any]:
        """Start this message."""
        if self.sends:
            return isend(self.tensor, self.peer, self.group, self.tag, group_dst=self.group_peer)
        return irecv(self.tensor, self.peer, self.group, self.tag, group_src=self.group_peer)

    def __repr__(self) -> str:
        peer = self.peer if self.group_peer is None else f"group rank {self.group_peer}"
        return f"P2POp({'isend' if self.sends else 'irecv'}, peer={peer}, tag={self.tag})"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work[Any]]:
    """Start several messages at once; one `Work` for each, in the order of the list.

    Receives are posted before sends, so that what arrives finds its place.
    """
    batch = check_list(p2p_op_list, "p2p_op_list")
    if not batch:
        raise InvalidUsageError("p2p_op_list is empty")
    for item in batch:
        if not isinstance(item, P2POp):
            raise TypeError(f"p2p_op_list must hold P2POp objects, not {type(item).__name__}")
    for item in batch:  # a bad argument in one: none of them starts
        item.check()
    works = {
        number: batch[number].start()
        for number in sorted(range(len(batch)), key=lambda n: batch[n].sends)
    }
    return [works[number] for number in range(len(batch))]
