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
from aiodist.groups.object_operation import (
    AllGatherObject,
    BroadcastObject,
    GatherObject,
    ScatterObject,
)
from aiodist.sync.adapter import member_of
from aiodist.sync.portal import portal


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Replace the entries of ``object_list`` on all ranks by those of one rank.

    Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        object_list: What the source sends, and the list that the others fill, of one length on
            all ranks.
        src: The source's global rank; the group's first rank if neither it nor ``group_src`` is
            given.
        group: The process group; None is the default group.
        device: torch's parameter; it has no effect.
        group_src: The source's rank in the group, in place of ``src``.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of an object cannot travel; the other ranks raise DistBackendError.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "broadcast_object_list")) is None:
        return
    root = check_rank(pg, src, group_src, "src", default=0)
    objects = check_mutable(object_list, "object_list")
    name, finish = ("broadcast_object_list", partial(fill_list, objects))
    operation = BroadcastObject(
        name, objects, finish, root, pickles(pg, allow_pickle, weights_only)
    )
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
    """Send an object of one rank to all ranks.

    ``obj`` must not change before the operation is done. Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        obj: What the source sends; ignored on the other ranks.
        src: The source's global rank; the group's first rank if neither it nor ``group_src`` is
            given.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        The object, on each rank; on the source ``obj`` itself.

    Raises:
        TypeError: A part of an object cannot travel; the other ranks raise DistBackendError.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
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
    weights_only: bool = False,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks.

    Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        object_list: The list to fill, with one entry for each rank.
        obj: This rank's object.
        group: The process group; None is the default group.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of an object cannot travel; the other ranks raise DistBackendError.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "all_gather_object")) is None:
        return
    objects = check_mutable(object_list, "object_list")
    check_list(objects, "object_list", pg.size)
    operation = AllGatherObject(objects, obj, pickles(pg, allow_pickle, weights_only))
    portal().start(False, pg, operation, timeout)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Fill ``object_gather_list[r]`` on one rank with rank r's ``obj``.

    Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        obj: This rank's object.
        object_gather_list: On the target the list to fill, with one entry for each rank. None on
            the other ranks.
        dst: The target's global rank; the group's first rank if neither it nor ``group_dst`` is
            given.
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of an object cannot travel; the other ranks raise DistBackendError.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "gather_object")) is None:
        return
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    if pg.rank == root and object_gather_list is not None:
        check_mutable(object_gather_list, "object_gather_list")
    objects = check_root_list(object_gather_list, "object_gather_list", pg, root)
    operation = GatherObject(obj, objects, root, pickles(pg, allow_pickle, weights_only))
    portal().start(False, pg, operation, timeout)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Put ``scatter_object_input_list[r]`` of one rank into the output list of each rank r.

    Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        scatter_object_output_list: A list with at least one entry; the first one becomes this
            rank's object.
        scatter_object_input_list: On the source one object for each rank; ignored on the other
            ranks.
        src: The source's global rank; the group's first rank if neither it nor ``group_src`` is
            given.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of an object cannot travel; the other ranks raise DistBackendError.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
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
    operation = ScatterObject(output, inputs, root, pickles(pg, allow_pickle, weights_only))
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
    """Send ``obj`` to one rank, which receives it by `recv_object`.

    Objects and tensors with one tag do not meet: the kind of a message is part of its match.
    ``obj`` must not change before the operation is done. A short object without large arrays is
    read at the call. Cancelling it takes it back unless it is on its way.

    Blocks until this rank's part is done.

    Args:
        obj: msgpack's types, every builtin container, tensors, arrays, and instances of
            registered classes (`register_type`).
        dst: The target's global rank. Pass it or ``group_dst``.
        tag: An integer of 64 bits that must be equal on both sides.
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of ``obj`` cannot travel.
        InvalidUsageError: ``obj`` contains itself or is nested deeper than 200 levels, or the
            arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
    """Receive an object from one rank, or from any rank: ``obj, source = recv_object()``.

    Arrays and tensors inside are new. After a cancellation or a timeout the object goes to the
    next receive.

    Blocks until this rank's part is done. Returns the source -1 on a rank outside the group.

    Args:
        src: The source's global rank; any rank if neither it nor ``group_src`` is given.
        tag: An integer of 64 bits that must be equal on both sides.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        A `ReceivedObject`, ``(obj, source)``: the object, and the sender's global rank.

    Raises:
        TypeError: The object has pickled parts, and ``allow_pickle`` is not set; or it has a
            class that is not registered on this rank. It is dropped.
        DistBackendError: The sender could not send its object; the text says why.
        DistError: ``decode`` of a registered class raised, or a pickled part cannot be unpickled.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
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
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    tag: int = 0,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Send a list of objects to one rank, which receives it by `recv_object_list`.

    Tensors with its tag do not meet it. Cancelling it takes it back unless it is on its way.

    Blocks until this rank's part is done.

    Args:
        object_list: The objects.
        dst: The target's global rank. Pass it or ``group_dst``.
        group: The process group; None is the default group.
        device: torch's parameter; it has no effect.
        group_dst: The target's rank in the group, in place of ``dst``.
        use_batch: torch's parameter; it has no effect.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        tag: An integer of 64 bits that must be equal on both sides.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        TypeError: A part of an object cannot travel.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
    """
    if (pg := member_of(group, "send_object_list")) is None:
        return
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    objects = list(check_list(object_list, "object_list"))
    operation = SendObject(objects, to, check_tag(tag), pickles(pg, allow_pickle, weights_only))
    portal().start(False, pg, operation, timeout)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
    *,
    tag: int = 0,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> int:
    """Receive a list of objects from one rank, or from any rank.

    After a cancellation or a timeout the list goes to the next receive.

    Blocks until this rank's part is done. Returns -1 on a rank outside the group.

    Args:
        object_list: The list to fill, of the length of the one that was sent.
        src: The source's global rank; any rank if neither it nor ``group_src`` is given.
        group: The process group; None is the default group.
        device: torch's parameter; it has no effect.
        group_src: The source's rank in the group, in place of ``src``.
        use_batch: torch's parameter; it has no effect.
        weights_only: Whether pickle is refused even where `init_process_group` allows it. Instances
            of registered classes still travel.
        tag: An integer of 64 bits that must be equal on both sides.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        The sender's global rank.

    Raises:
        TypeError: The objects have pickled parts, and ``allow_pickle`` is not set; or a class
            that is not registered on this rank. They are dropped.
        DistBackendError: The sender could not send its objects; the text says why.
        DistError: ``decode`` of a registered class raised, or a pickled part cannot be unpickled.
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: The peer is lost, the group has ended, or time ran out. It fails on this
            rank alone.
    """
    if (pg := member_of(group, "recv_object_list")) is None:
        return -1
    finish = partial(fill_list_from, check_mutable(object_list, "object_list"))
    source = check_source(pg, src, group_src)
    operation = RecvObject(finish, source, check_tag(tag), pickles(pg, allow_pickle, weights_only))
    result: int | None = portal().start(False, pg, operation, timeout)
    return -1 if result is None else result
