"""The blocking API. Generated from `aiodist.api.p2p` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from aiodist.api import p2p as api
from aiodist.api.collectives import Timeout
from aiodist.api.p2p import P2POp
from aiodist.groups.argument_checks import check_other, check_rank, check_source, check_tag
from aiodist.groups.handle import Group
from aiodist.groups.message import Received, Recv, RecvNew, Send
from aiodist.groups.operation import Operation, Tensor
from aiodist.groups.work import Work
from aiodist.sync.adapter import member_of
from aiodist.sync.portal import portal


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None] | None:
    """Send ``tensor`` to one rank. It is done when its memory may be changed again.

    A small message is done as soon as it is on its way, a large one when its receive is posted
    and it has been read. Cancelling it takes it back unless it is on its way.

    Returns as soon as the operation has started, with None on a rank outside the group.

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
    if (pg := member_of(group, "isend")) is None:
        return None
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    result: Work[None] | None = portal().start(True, pg, Send(tensor, to, check_tag(tag)), timeout)
    return result


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[int] | None:
    """Receive into ``tensor`` from one rank, or from any rank.

    Cancelling it takes it back: ``tensor`` is not written any more, and the message goes to the
    next receive.

    Returns as soon as the operation has started, with None on a rank outside the group.

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
    if (pg := member_of(group, "irecv")) is None:
        return None
    source = check_source(pg, src, group_src)
    result: Work[int] | None = portal().start(
        True, pg, Recv(tensor, source, check_tag(tag)), timeout
    )
    return result


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> None:
    """Send ``tensor`` to one rank, as `isend` does.

    In the async API both start at the call. In the blocking API `send` returns when the memory of
    ``tensor`` may be changed again.

    A small message is done as soon as it is on its way, a large one when its receive is posted
    and it has been read. Cancelling it takes it back unless it is on its way.

    Blocks until this rank's part is done.

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
    if (pg := member_of(group, "send")) is None:
        return
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    portal().start(False, pg, Send(tensor, to, check_tag(tag)), timeout)


@overload
def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> int: ...


@overload
def recv(
    tensor: None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Received: ...


def recv(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Any:
    """Receive a tensor from one rank, or from any rank.

    Cancelling it takes it back: ``tensor`` is not written any more, and the message goes to the
    next receive.

    Blocks until this rank's part is done. Returns -1 on a rank outside the group.

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
    if (pg := member_of(group, "recv")) is None:
        return -1
    source = check_source(pg, src, group_src)
    operation: Operation[Any]
    if tensor is None:
        operation = RecvNew(source, check_tag(tag))
    else:
        operation = Recv(tensor, source, check_tag(tag), blocks=True)
    result: Any | None = portal().start(False, pg, operation, timeout)
    return (-1 if source is None else pg.ranks[source]) if result is None else result


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
    result: list[Work[Any]] = portal().call(api.batch_isend_irecv, False, p2p_op_list)
    return result
