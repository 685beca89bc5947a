"""The blocking API. Generated from `aiodist.api.p2p` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from aiodist.api import cached_calls
from aiodist.api import p2p as api
from aiodist.api.collectives import Timeout
from aiodist.api.p2p import P2POp
from aiodist.groups.backend import Received, Tensor
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.sync.adapter import start
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
    """Send ``tensor`` to rank ``dst``. Done when its memory may be changed again.

    A small message is done as soon as it is on its way; a large one when its receive is posted
    and it has been read.

    Returns as soon as the operation has started, with None on a rank outside the group.
    """
    result: Work[None] | None = start(
        True, api.isend, (tensor, dst), group, timeout, tag=tag, group_dst=group_dst
    )
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
    """Receive into ``tensor`` from rank ``src``, or from any rank where None.

    Its result is the sender's global rank. A message of another dtype or number of elements
    raises InvalidUsageError here and is dropped.

    Returns as soon as the operation has started, with None on a rank outside the group.
    """
    result: Work[int] | None = start(
        True, api.irecv, (tensor, src), group, timeout, tag=tag, group_src=group_src
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
    """Send ``tensor`` to rank ``dst``, as `isend` does.

    In the async API both start at the call. In the blocking API `send` returns when the memory of
    ``tensor`` may be changed again.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.send,
        (tensor, dst),
        group,
        timeout,
        cached_calls.send,
        tag=tag,
        group_dst=group_dst,
    )


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
    """Receive a tensor from rank ``src``, or from any rank where None.

    With ``tensor`` it does as `irecv`: it receives into that tensor, and the result is the sender's
    global rank. Without one, the message brings kind, dtype and shape, and the result is a
    `Received` (tensor, source).

    Blocks until this rank's part is done. Returns -1 on a rank outside the group.
    """
    result: Any | None = start(
        False,
        api.recv,
        (tensor, src),
        group,
        timeout,
        cached_calls.recv,
        tag=tag,
        group_src=group_src,
    )
    if result is None:
        return src if group is None and src is not None else -1
    return result


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work[Any]]:
    """Start several messages at once; one `Work` for each, in the order of the list.

    Receives are posted before sends, so that what arrives finds its place.


    """
    result: list[Work[Any]] = portal().call(api.batch_isend_irecv, False, p2p_op_list)
    return result
