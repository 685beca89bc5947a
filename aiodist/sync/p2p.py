"""Point-to-point messages of the blocking API: those of `aiodist`.

``send`` and ``recv`` return when they are done; ``isend`` and ``irecv`` return a `Work` as soon
as they have started. Errors are those of `aiodist.api.p2p`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from aiodist.api import cached_calls
from aiodist.api import p2p as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import Received, Tensor
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.sync.adapter import mirrors, start
from aiodist.sync.portal import portal


@mirrors(api.isend)
def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None] | None:
    """Start to send ``tensor``; a `Work`, or None on a rank outside the group."""
    work: Work[None] | None = start(
        True, api.isend, (tensor, dst), group, timeout, tag=tag, group_dst=group_dst
    )
    return work


@mirrors(api.irecv)
def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[int] | None:
    """Start to receive ``tensor``; a `Work`, or None on a rank outside the group."""
    work: Work[int] | None = start(
        True, api.irecv, (tensor, src), group, timeout, tag=tag, group_src=group_src
    )
    return work


@mirrors(api.isend)
def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> None:
    """Send ``tensor``; returns when its memory may be changed again."""
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


@mirrors(api.recv)
def recv(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Any:
    """Receive into ``tensor``; the sender's global rank, -1 on a rank outside the group."""
    received = start(
        False,
        api.recv,
        (tensor, src),
        group,
        timeout,
        cached_calls.recv,
        tag=tag,
        group_src=group_src,
    )
    if received is None and group is None and src is not None:
        return src  # where all was over at once
    return -1 if received is None else received


@mirrors(api.batch_isend_irecv)
def batch_isend_irecv(p2p_op_list: Sequence[api.P2POp]) -> list[Work[Any]]:
    """Start several messages; one `Work` for each."""
    works: list[Work[Any]] = portal().call(api.batch_isend_irecv, False, p2p_op_list)
    return works
