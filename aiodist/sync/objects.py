"""The blocking API. Generated from `aiodist.api.objects` by ``make generated``: edit that instead."""

from __future__ import annotations

from functools import partial
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import (
    arrived,
    check_list,
    check_mutable,
    check_other,
    check_rank,
    check_root_list,
    check_source,
    check_tag,
    fill_list,
    fill_list_from,
    pickles,
)
from aiodist.groups.handle import Group
from aiodist.groups.message import ReceivedObject, RecvObject, SendObject
from aiodist.groups.operation import AllGatherObject, BroadcastObject, GatherObject, ScatterObject
from aiodist.sync.adapter import member_of
from aiodist.sync.portal import portal


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
    if (pg := member_of(group, "broadcast_object_list")) is None:
        return
    root = check_rank(pg, src, group_src, "src", default=0)
    objects = check_mutable(object_list, "object_list")
    name, finish, pickle = (
        "broadcast_object_list",
        partial(fill_list, objects),
        pickles(pg, allow_pickle),
    )
    operation = BroadcastObject(name, objects, finish, root, pickle)
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "broadcast_object")) is None:
        return None
    root = check_rank(pg, src, group_src, "src", default=0)
    operation = BroadcastObject("broadcast_object", obj, arrived, root, pickles(pg, allow_pickle))
    return portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "all_gather_object")) is None:
        return
    objects = check_mutable(object_list, "object_list")
    check_list(objects, "object_list", pg.size)
    operation = AllGatherObject(objects, obj, pickles(pg, allow_pickle))
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "gather_object")) is None:
        return
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    objects = check_root_list(object_gather_list, "object_gather_list", pg, root)
    if objects is not None:
        check_mutable(object_gather_list, "object_gather_list")
    operation = GatherObject(obj, objects, root, pickles(pg, allow_pickle))
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "scatter_object_list")) is None:
        return
    root = check_rank(pg, src, group_src, "src", default=0)
    output = check_mutable(scatter_object_output_list, "scatter_object_output_list")
    if not output:
        raise InvalidUsageError("scatter_object_output_list must have at least one entry")
    inputs = None
    if pg.rank == root:
        inputs = check_root_list(scatter_object_input_list, "scatter_object_input_list", pg, root)
    operation = ScatterObject(output, inputs, root, pickles(pg, allow_pickle))
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "send_object")) is None:
        return
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    operation = SendObject(obj, to, check_tag(tag), pickles(pg, allow_pickle))
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "recv_object")) is None:
        return ReceivedObject(None, -1)
    source = check_source(pg, src, group_src)
    operation = RecvObject(ReceivedObject, source, check_tag(tag), pickles(pg, allow_pickle))
    result: ReceivedObject | None = portal().start(False, pg, operation, timeout)
    return ReceivedObject(None, -1) if result is None else result


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
    if (pg := member_of(group, "send_object_list")) is None:
        return
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    objects = list(check_list(object_list, "object_list"))
    operation = SendObject(objects, to, check_tag(tag), pickles(pg, allow_pickle))
    portal().start(False, pg, operation, timeout)


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
    if (pg := member_of(group, "recv_object_list")) is None:
        return -1
    finish = partial(fill_list_from, check_mutable(object_list, "object_list"))
    source = check_source(pg, src, group_src)
    operation = RecvObject(finish, source, check_tag(tag), pickles(pg, allow_pickle))
    result: int | None = portal().start(False, pg, operation, timeout)
    return -1 if result is None else result
