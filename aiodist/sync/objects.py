"""The blocking API. Generated from `aiodist.api.objects` by ``make generated``: edit that instead."""

from __future__ import annotations

from typing import Any

from aiodist.api import objects as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import ReceivedObject
from aiodist.groups.handle import Group
from aiodist.sync.adapter import start


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Replace the entries of ``object_list`` on all ranks by those of rank ``src`` (default 0).

    The list has one length on all ranks. ``device`` is for GPU backends.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.broadcast_object_list,
        (object_list, src),
        group,
        timeout,
        device=device,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )


def broadcast_object(
    obj: Any = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Any:
    """Send ``obj`` of rank ``src`` (default 0) to all ranks. The result is that object, on each.

    ``obj`` is ignored on the other ranks; the source gets back its own. On errors and on what
    must not change meanwhile see `send_object`. Cancelling it fails it on all ranks.

    Blocks until this rank's part is done.
    """
    return start(
        False,
        api.broadcast_object,
        (obj, src),
        group,
        timeout,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks. Its length is the group's size.

    Blocks until this rank's part is done.
    """
    start(
        False, api.all_gather_object, (object_list, obj), group, timeout, allow_pickle=allow_pickle
    )


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Fill ``object_gather_list[r]`` on rank ``dst`` with rank r's ``obj``.

    ``dst``: the group's first rank where None.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.gather_object,
        (obj, object_gather_list, dst),
        group,
        timeout,
        group_dst=group_dst,
        allow_pickle=allow_pickle,
    )


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Put entry r of rank ``src``'s input list into the output list's first place on each rank r.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.scatter_object_list,
        (scatter_object_output_list, scatter_object_input_list, src),
        group,
        timeout,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )


def send_object(
    obj: Any,
    dst: int | None = None,
    tag: int = 0,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Send ``obj`` to rank ``dst``, where `recv_object` with an equal ``tag`` receives it.

    Objects and tensors with one tag do not meet: the kind of a message is part of its match.
    ``obj`` must not change before the operation is done, as a tensor that is sent. A short object
    without large arrays is read at the call. Errors are those of `send`, and TypeError for a part
    of ``obj`` that cannot travel. Cancelling it is as for `send`.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.send_object,
        (obj, dst, tag),
        group,
        timeout,
        group_dst=group_dst,
        allow_pickle=allow_pickle,
    )


def recv_object(
    src: int | None = None,
    tag: int = 0,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> ReceivedObject:
    """Receive an object from rank ``src``, or from any rank where None.

    The result is a `ReceivedObject`: ``obj, source = recv_object()``, where ``source`` is the
    sender's global rank. Arrays and tensors inside are new. Errors are those of `recv`, and
    TypeError for pickled parts without ``allow_pickle`` and for classes that are not registered on
    this rank; the object is dropped then. After a cancellation or a timeout the object goes to the
    next receive.

    Blocks until this rank's part is done. Returns the source -1 on a rank outside the group.
    """
    result: ReceivedObject | None = start(
        False,
        api.recv_object,
        (src, tag),
        group,
        timeout,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )
    if result is None:
        return ReceivedObject(None, -1)
    return result


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_dst: int | None = None,
    *,
    tag: int = 0,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Send a list of objects to rank ``dst``. ``device`` is for GPU backends.

    `recv_object_list` with an equal ``tag`` receives it. Tensors with that tag do not meet it.

    Blocks until this rank's part is done.
    """
    start(
        False,
        api.send_object_list,
        (object_list, dst),
        group,
        timeout,
        device=device,
        group_dst=group_dst,
        tag=tag,
        allow_pickle=allow_pickle,
    )


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    *,
    tag: int = 0,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> int:
    """Receive a list of objects, of the same length, from rank ``src``, or any where None.

    Its result is the sender's global rank.

    Blocks until this rank's part is done. Returns -1 on a rank outside the group.
    """
    result: int | None = start(
        False,
        api.recv_object_list,
        (object_list, src),
        group,
        timeout,
        device=device,
        group_src=group_src,
        tag=tag,
        allow_pickle=allow_pickle,
    )
    if result is None:
        return -1
    return result
