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
    """Send ``tensor`` to one rank. It is done when its memory may be changed again.

    A small message is done as soon as it is on its way, a large one when its receive is posted
    and it has been read. Cancelling it takes it back unless it is on its way.

    Args:
        tensor: A tensor of any dtype and shape.
        dst: The target's global rank. Pass it or ``group_dst``.
        group: The process group; None is the default group.
        tag: An integer of 64 bits that must be equal on both sides.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
    """Receive into ``tensor`` from one rank, or from any rank.

    Cancelling it takes it back: ``tensor`` is not written any more, and the message goes to the
    next receive.

    Args:
        tensor: Where to receive, with the dtype and number of elements of the message.
        src: The source's global rank; any rank if neither it nor ``group_src`` is given.
        group: The process group; None is the default group.
        tag: An integer of 64 bits that must be equal on both sides.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        The sender's global rank.

    Raises:
        InvalidUsageError: The arguments do not fit together; or the message has another dtype or
            number of elements than ``tensor``, and is dropped.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
    """Send ``tensor`` to one rank, as `isend` does.

    In the async API both start at the call. In the blocking API `send` returns when the memory of
    ``tensor`` may be changed again.

    A small message is done as soon as it is on its way, a large one when its receive is posted
    and it has been read. Cancelling it takes it back unless it is on its way.

    Args:
        tensor: A tensor of any dtype and shape.
        dst: The target's global rank. Pass it or ``group_dst``.
        group: The process group; None is the default group.
        tag: An integer of 64 bits that must be equal on both sides.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
    """Receive a tensor from one rank, or from any rank.

    Cancelling it takes it back: ``tensor`` is not written any more, and the message goes to the
    next receive.

    Args:
        tensor: Where to receive, as for `irecv`. With None the message brings kind, dtype and
            shape.
        src: The source's global rank; any rank if neither it nor ``group_src`` is given.
        group: The process group; None is the default group.
        tag: An integer of 64 bits that must be equal on both sides.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        The sender's global rank. Without ``tensor`` a `Received`, ``(tensor, source)``.

    Raises:
        InvalidUsageError: The arguments do not fit together; or the message has another dtype or
            number of elements than ``tensor``, and is dropped.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
        """Describe one message.

        Args:
            op: `isend` or `irecv`, or that method of a group.
            tensor: What to send, or where to receive.
            peer: The other rank's global rank. A receive without it and ``group_peer`` takes a
                message of any rank.
            group: The process group; None is that of the method ``op``, or the default group.
            tag: An integer of 64 bits that must be equal on both sides.
            group_peer: The other rank's number in the group, in place of ``peer``.

        Raises:
            InvalidUsageError: ``op`` is another function.
        """
        name = getattr(op, "__name__", "")
        if name not in ("isend", "irecv", "send", "recv"):
            raise InvalidUsageError(
                f"op must be the function isend or irecv, as in P2POp(dist.isend, ...), not {op!r}"
            )
        self.op = op
        self.sends = name.endswith("send")
        self.tensor = tensor
        self.peer = peer
        self.group = getattr(op, "__self__", None) if group is None else group
        self.tag = tag
        self.group_peer = group_peer

    def check(self) -> None:
        """Raise what `start` would for these arguments, and start nothing."""
        pg = current_world().group(self.group)
        pg.check_open()
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
    """Start several messages at once.

    Receives are posted before sends, so that what arrives finds its place. If one argument is
    invalid, none starts.

    Args:
        p2p_op_list: The messages, at least one.

    Returns:
        One `Work` for each message, in the order of the list.

    Raises:
        InvalidUsageError: A message is invalid, or the list is empty.
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
