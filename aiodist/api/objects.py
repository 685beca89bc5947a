"""Python objects of the async door: sent as msgpack, every builtin container coming back as it was.

Tensors and arrays travel inside. Objects of other classes raise a TypeError that says where they
stand; with ``allow_pickle=True`` on all ranks they are pickled. Unpickling runs code that the
sender chose: allow it only where all ranks are trusted.
"""

from __future__ import annotations

from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.checks import check_list, check_other, check_rank, check_root_list
from aiodist.groups.process_group import Group
from aiodist.groups.work import Work
from aiodist.groups.world import current_world


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[None]:
    """Replace the entries of ``object_list`` on all ranks by those of rank ``src`` (default 0).

    The list has one length on all ranks. ``device`` is for GPU backends.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    objects = _mutable(object_list, "object_list")
    return pg.backend.broadcast_object(objects, root, allow_pickle, to_seconds(timeout))


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks. Its length is the group's size."""
    pg = current_world().group(group)
    objects = _mutable(object_list, "object_list")
    check_list(objects, "object_list", pg.n_ranks)
    return pg.backend.all_gather_object(objects, obj, allow_pickle, to_seconds(timeout))


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``object_gather_list[r]`` on rank ``dst`` (default: the group's first) with rank r's ``obj``."""
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    objects = check_root_list(object_gather_list, "object_gather_list", pg, root)
    if objects is not None:
        _mutable(object_gather_list, "object_gather_list")
    return pg.backend.gather_object(obj, objects, root, allow_pickle, to_seconds(timeout))


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[None]:
    """Put entry r of rank ``src``'s input list into the output list's first place on each rank r."""
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    output = _mutable(scatter_object_output_list, "scatter_object_output_list")
    if not output:
        raise InvalidUsageError("scatter_object_output_list must have at least one entry")
    inputs = None
    if pg.own_rank == root:
        inputs = check_root_list(scatter_object_input_list, "scatter_object_input_list", pg, root)
    return pg.backend.scatter_object(output, inputs, root, allow_pickle, to_seconds(timeout))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[None]:
    """Send a list of objects to rank ``dst``. ``device`` is for GPU backends."""
    pg = current_world().group(group)
    to = check_other(pg, check_rank(pg, dst, group_dst, "dst"), "dst")
    objects = check_list(object_list, "object_list")
    return pg.backend.send_object(objects, to, 0, allow_pickle, to_seconds(timeout))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool = False,
    timeout: Timeout = None,
) -> Work[int]:
    """Receive a list of objects, of the same length, from rank ``src``, or any where None.

    Its result is the sender's global rank.
    """
    pg = current_world().group(group)
    objects = _mutable(object_list, "object_list")
    source = None
    if src is not None or group_src is not None:
        source = check_other(pg, check_rank(pg, src, group_src, "src"), "src")
    return pg.backend.recv_object(objects, source, 0, allow_pickle, to_seconds(timeout))


def _mutable(objects: Any, name: str) -> list[Any]:
    if not isinstance(objects, list):
        raise TypeError(
            f"{name} must be a list (it is filled in place), not {type(objects).__name__}"
        )
    return objects
