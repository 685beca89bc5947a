"""The blocking API. Generated from `aiodist.api.multigpu` by ``make generated``: edit that instead."""

from __future__ import annotations

from aiodist.api import multigpu as api
from aiodist.api.collectives import Timeout
from aiodist.groups.handle import Group
from aiodist.groups.operation import Tensor
from aiodist.sync.adapter import Done, call
from aiodist.types import ReduceOp


def broadcast_multigpu(
    tensor_list: list[Tensor],
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    src_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Done:
    """Copy one tensor of one rank into all tensors of all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor_list`` are
    undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        src: The source's global rank.
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        src_tensor: The place in the source's ``tensor_list`` of the tensor to copy.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    result: Done = call(
        async_op, api.broadcast_multigpu, (tensor_list, src), group, timeout, src_tensor=src_tensor
    )
    return result


def all_reduce_multigpu(
    tensor_list: list[Tensor],
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce all tensors of all ranks into one; every tensor of every rank becomes that.

    AVG divides by the number of all tensors. The result is bitwise the same everywhere.
    Cancelled, it fails on all ranks. After a failure the contents of ``tensor_list`` are
    undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    result: Done = call(async_op, api.all_reduce_multigpu, (tensor_list, op), group, timeout)
    return result


def reduce_multigpu(
    tensor_list: list[Tensor],
    dst: int,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    dst_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce all tensors of all ranks into one tensor of one rank.

    AVG divides by the number of all tensors. All other tensors stay as they are. Cancelled, it
    fails on all ranks. After a failure the contents of the target's tensor are undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        dst: The target's global rank.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        dst_tensor: The place in the target's ``tensor_list`` of the tensor that becomes the
            result.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    result: Done = call(
        async_op, api.reduce_multigpu, (tensor_list, dst, op), group, timeout, dst_tensor=dst_tensor
    )
    return result


def all_gather_multigpu(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather all tensors of all ranks, once for each tensor of this rank.

    Element j of rank k stands at ``output_tensor_lists[i][k * len(input_tensor_list) + j]`` for
    every i. Cancelled, it fails on all ranks. After a failure the contents of
    ``output_tensor_lists`` are undefined.

    Args:
        output_tensor_lists: For each tensor of this rank a list of that number times the group's
            size tensors.
        input_tensor_list: This rank's tensors, at least one: of one kind, dtype and number of
            elements. All ranks pass equally many.
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    result: Done = call(
        async_op, api.all_gather_multigpu, (output_tensor_lists, input_tensor_list), group, timeout
    )
    return result
