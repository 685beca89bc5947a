"""Collectives of the blocking API over several tensors of each rank, as torch 1 had them.

Tensors on GPUs, or CPU tensors or arrays, with the same meaning; see `aiodist.api.multigpu`.
"""

from __future__ import annotations

from aiodist.api import multigpu as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import Tensor
from aiodist.groups.handle import Group
from aiodist.sync.adapter import mirrors, start
from aiodist.sync.collectives import Done
from aiodist.types import ReduceOp


@mirrors(api.broadcast_multigpu)
def broadcast_multigpu(
    tensor_list: list[Tensor],
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    src_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Done:
    """Copy one tensor of one rank into all tensors of all ranks."""
    work: Done = start(
        async_op, api.broadcast_multigpu, (tensor_list, src), group, timeout, src_tensor=src_tensor
    )
    return work


@mirrors(api.all_reduce_multigpu)
def all_reduce_multigpu(
    tensor_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce all tensors of all ranks; all tensors get the result."""
    work: Done = start(async_op, api.all_reduce_multigpu, (tensor_list, op), group, timeout)
    return work


@mirrors(api.reduce_multigpu)
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
    """Reduce all tensors of all ranks into one tensor of one rank."""
    work: Done = start(
        async_op, api.reduce_multigpu, (tensor_list, dst, op), group, timeout, dst_tensor=dst_tensor
    )
    return work


@mirrors(api.all_gather_multigpu)
def all_gather_multigpu(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather all tensors of all ranks, once for each tensor of this rank."""
    work: Done = start(
        async_op, api.all_gather_multigpu, (output_tensor_lists, input_tensor_list), group, timeout
    )
    return work
