"""Python objects of the async API: sent as msgpack, every builtin container coming back as it was.

Tensors and arrays travel inside, and instances of classes that all ranks have registered
(`register_type`). Objects of other classes raise a TypeError that says where they stand; with
``allow_pickle=True`` on all ranks they are pickled. None, the default, means what
``init_process_group`` was told, or AIODIST_ALLOW_PICKLE. Unpickling runs code that the sender chose:
allow it only where all ranks are trusted. torch's ``weights_only=True`` is ``allow_pickle=False``.

An object that cannot travel raises at the call, and the operation fails on the other ranks too:
they raise DistBackendError, which says which rank refused what.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

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
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.wire.registered_types import current_types

C = TypeVar("C", bound=type)


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
) -> Work[None]:
    """Replace the entries of ``object_list`` on all ranks by those of one rank.

    Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    objects = check_mutable(object_list, "object_list")
    name, finish = "broadcast_object_list", partial(fill_list, objects)
    operation = BroadcastObject(
        name, objects, finish, root, pickles(pg, allow_pickle, weights_only)
    )
    return pg.start(operation, timeout)


def broadcast_object(
    obj: Any = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Work[Any]:
    """Send an object of one rank to all ranks.

    ``obj`` must not change before the operation is done. Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    operation = BroadcastObject("broadcast_object", obj, arrived, root, pickles(pg, allow_pickle))
    return pg.start(operation, timeout)


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    weights_only: bool = False,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks.

    Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    objects = check_mutable(object_list, "object_list")
    check_list(objects, "object_list", pg.size)
    operation = AllGatherObject(objects, obj, pickles(pg, allow_pickle, weights_only))
    return pg.start(operation, timeout)


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
) -> Work[None]:
    """Fill ``object_gather_list[r]`` on one rank with rank r's ``obj``.

    Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    if pg.rank == root and object_gather_list is not None:
        check_mutable(object_gather_list, "object_gather_list")
    objects = check_root_list(object_gather_list, "object_gather_list", pg, root)
    operation = GatherObject(obj, objects, root, pickles(pg, allow_pickle, weights_only))
    return pg.start(operation, timeout)


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
) -> Work[None]:
    """Put ``scatter_object_input_list[r]`` of one rank into the output list of each rank r.

    Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    output = check_mutable(scatter_object_output_list, "scatter_object_output_list")
    if not output:
        raise InvalidUsageError("scatter_object_output_list must have at least one entry")
    inputs = None
    if pg.rank == root:
        inputs = check_root_list(scatter_object_input_list, "scatter_object_input_list", pg, root)
    operation = ScatterObject(output, inputs, root, pickles(pg, allow_pickle, weights_only))
    return pg.start(operation, timeout)


def send_object(
    obj: Any,
    dst: int | None = None,
    tag: int = 0,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``obj`` to one rank, which receives it by `recv_object`.

    Objects and tensors with one tag do not meet: the kind of a message is part of its match.
    ``obj`` must not change before the operation is done. A short object without large arrays is
    read at the call. Cancelling it takes it back unless it is on its way.

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
    pg = current_world().group(group)
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    operation = SendObject(obj, to, check_tag(tag), pickles(pg, allow_pickle))
    return pg.start(operation, timeout)


def recv_object(
    src: int | None = None,
    tag: int = 0,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Work[ReceivedObject]:
    """Receive an object from one rank, or from any rank: ``obj, source = await recv_object()``.

    Arrays and tensors inside are new. After a cancellation or a timeout the object goes to the
    next receive.

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
    pg = current_world().group(group)
    source = check_source(pg, src, group_src)
    operation = RecvObject(ReceivedObject, source, check_tag(tag), pickles(pg, allow_pickle))
    return pg.start(operation, timeout)


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
) -> Work[None]:
    """Send a list of objects to one rank, which receives it by `recv_object_list`.

    Tensors with its tag do not meet it. Cancelling it takes it back unless it is on its way.

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
    pg = current_world().group(group)
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    objects = list(check_list(object_list, "object_list"))
    operation = SendObject(objects, to, check_tag(tag), pickles(pg, allow_pickle, weights_only))
    return pg.start(operation, timeout)


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
) -> Work[int]:
    """Receive a list of objects from one rank, or from any rank.

    After a cancellation or a timeout the list goes to the next receive.

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
    pg = current_world().group(group)
    finish = partial(fill_list_from, check_mutable(object_list, "object_list"))
    source = check_source(pg, src, group_src)
    operation = RecvObject(finish, source, check_tag(tag), pickles(pg, allow_pickle, weights_only))
    return pg.start(operation, timeout)


def register_type(
    cls: C,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    *,
    name: str | None = None,
) -> C:
    """Let instances of ``cls`` travel inside objects. Call it on all ranks.

    A dataclass, an enum or a namedtuple needs no more, so ``@register_type`` above it will do.
    Its fields are set on a new instance: neither ``__init__`` nor ``__post_init__`` is called.

    Only exactly ``cls`` is registered, and none of its subclasses. A class statement that runs
    again replaces its class. A rank makes instances of the classes alone that its own program has
    registered.

    Args:
        cls: The class.
        encode: For any other class: ``encode(instance)`` returns an object that can travel. It may be
            called more than once for one message, so it must leave the instance as it is.
        decode: For any other class: ``decode(object)`` returns an instance. It, too, may be called more
            than once for one message.
        name: What stands for the class in messages, the same on all ranks. None is its module and
            qualified name.

    Returns:
        ``cls``.

    Raises:
        InvalidUsageError: Another class has the name, ``encode`` and ``decode`` are missing, or
            ``cls`` travels as it is, such as a tuple.
        TypeError: An argument has another type.
    """
    current_types().register(cls, encode, decode, name)
    return cls
