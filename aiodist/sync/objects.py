"""Python objects of the blocking API: those of `aiodist`, each returning when it is done.

Objects travel as msgpack; register classes of your own with `register_type`. ``allow_pickle=True``
on all ranks carries other classes too, and lets the sender run code here. Errors are those of
`aiodist.api.objects`.
"""

from __future__ import annotations

from typing import Any

from aiodist.api import objects as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import ReceivedObject
from aiodist.groups.handle import Group
from aiodist.sync.adapter import mirrors, start


@mirrors(api.broadcast_object_list)
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
    """Copy a list of objects of one rank to all."""
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


@mirrors(api.broadcast_object)
def broadcast_object(
    obj: Any = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> Any:
    """Return an object of one rank on all."""
    return start(
        False,
        api.broadcast_object,
        (obj, src),
        group,
        timeout,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )


@mirrors(api.all_gather_object)
def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> None:
    """Gather an object of each rank on all ranks."""
    start(
        False, api.all_gather_object, (object_list, obj), group, timeout, allow_pickle=allow_pickle
    )


@mirrors(api.gather_object)
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
    """Gather an object of each rank on one rank."""
    start(
        False,
        api.gather_object,
        (obj, object_gather_list, dst),
        group,
        timeout,
        group_dst=group_dst,
        allow_pickle=allow_pickle,
    )


@mirrors(api.scatter_object_list)
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
    """Give each rank its object of a list on one rank."""
    start(
        False,
        api.scatter_object_list,
        (scatter_object_output_list, scatter_object_input_list, src),
        group,
        timeout,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )


@mirrors(api.send_object)
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
    """Send an object to one rank."""
    start(
        False,
        api.send_object,
        (obj, dst),
        group,
        timeout,
        tag=tag,
        group_dst=group_dst,
        allow_pickle=allow_pickle,
    )


@mirrors(api.recv_object)
def recv_object(
    src: int | None = None,
    tag: int = 0,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool | None = None,
    timeout: Timeout = None,
) -> ReceivedObject:
    """Receive an object; its source is -1 on a rank outside the group."""
    received: ReceivedObject | None = start(
        False,
        api.recv_object,
        (src,),
        group,
        timeout,
        tag=tag,
        group_src=group_src,
        allow_pickle=allow_pickle,
    )
    return ReceivedObject(None, -1) if received is None else received


@mirrors(api.send_object_list)
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
    """Send a list of objects to one rank."""
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


@mirrors(api.recv_object_list)
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
    """Receive a list of objects; the sender's global rank."""
    sender: int | None = start(
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
    return -1 if sender is None else sender
