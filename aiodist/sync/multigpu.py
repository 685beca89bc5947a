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
    """Copy ``tensor_list[src_tensor]`` of rank ``src`` (global) into all tensors of all ranks.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    result: Done = call(
        async_op, api.broadcast_multigpu, (tensor_list, src), group, timeout, src_tensor=src_tensor
    )
    return result


def all_reduce_multigpu(
    tensor_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce all tensors of all ranks into one; every tensor of every rank becomes that.

    AVG divides by the number of all tensors. The result is bitwise the same everywhere.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    result: Done = call(async_op, api.all_reduce_multigpu, (tensor_list, op), group, timeout)
    return result


def reduce_multigpu(
    tensor_list: list[Tensor],
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    dst_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce all tensors of all ranks into ``tensor_list[dst_tensor]`` of rank ``dst`` (global).

    AVG divides by the number of all tensors. All other tensors stay as they are.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
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

    Element j of rank k stands at ``output_tensor_lists[i][k * len(input_tensor_list) + j]``, for
    every i below ``len(input_tensor_list)``; so each list has that times the group's size tensors.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    result: Done = call(
        async_op, api.all_gather_multigpu, (output_tensor_lists, input_tensor_list), group, timeout
    )
    return result
