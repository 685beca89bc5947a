"""Collectives of the blocking API: those of `aiodist`, with torch's ``async_op``.

Each returns None when this rank's part is done; with ``async_op=True`` it returns a `Work` as
soon as the operation has started: ``work.wait()``, ``work.is_completed()``. Tensors are CPU
tensors of torch or numpy arrays. ``timeout`` (seconds or timedelta) is the group's where None.
Arguments, errors and what they mean are those of `aiodist.api.collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api import cached_calls
from aiodist.api import collectives as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import Tensor
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.sync.adapter import mirrors, start
from aiodist.types import ReduceOp

Done = Work[None] | None
"""A Work where ``async_op``, else None."""


@mirrors(api.broadcast)
def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Copy ``tensor`` of one rank to all."""
    work: Done = start(
        async_op,
        api.broadcast,
        (tensor, src),
        group,
        timeout,
        cached_calls.broadcast,
        group_src=group_src,
    )
    return work


@mirrors(api.broadcast_new)
def broadcast_new(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Tensor:
    """Broadcast a tensor whose shape only its source knows; None on a rank outside the group."""
    return start(False, api.broadcast_new, (tensor, src), group, timeout, group_src=group_src)


@mirrors(api.all_gather_new)
def all_gather_new(
    tensor: Tensor, group: Group | None = None, *, timeout: Timeout = None
) -> list[Tensor]:
    """Gather tensors of any shapes on all ranks; no tensors on a rank outside the group."""
    gathered: list[Tensor] | None = start(False, api.all_gather_new, (tensor,), group, timeout)
    return [] if gathered is None else gathered


@mirrors(api.all_reduce)
def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``tensor`` over all ranks; all get the result."""
    work: Done = start(
        async_op, api.all_reduce, (tensor, op), group, timeout, cached_calls.all_reduce
    )
    return work


@mirrors(api.all_reduce_coalesced)
def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce several tensors at once; all ranks get the results."""
    work: Done = start(async_op, api.all_reduce_coalesced, (tensors, op), group, timeout)
    return work


@mirrors(api.reduce)
def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``tensor`` over all ranks to one rank."""
    work: Done = start(
        async_op,
        api.reduce,
        (tensor, dst, op),
        group,
        timeout,
        cached_calls.reduce,
        group_dst=group_dst,
    )
    return work


@mirrors(api.all_gather)
def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather ``tensor`` of all ranks on all ranks."""
    work: Done = start(async_op, api.all_gather, (tensor_list, tensor), group, timeout)
    return work


@mirrors(api.all_gather_coalesced)
def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather several tensors of all ranks at once on all ranks."""
    work: Done = start(
        async_op, api.all_gather_coalesced, (output_tensor_lists, input_tensor_list), group, timeout
    )
    return work


@mirrors(api.all_gather_into_tensor)
def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather a tensor of all ranks into one tensor on all ranks."""
    work: Done = start(
        async_op,
        api.all_gather_into_tensor,
        (output_tensor, input_tensor),
        group,
        timeout,
        cached_calls.all_gather_into_tensor,
    )
    return work


all_gather_single = all_gather_into_tensor  # torch's newer name


@mirrors(api.gather)
def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather ``tensor`` of all ranks on one rank."""
    work: Done = start(
        async_op, api.gather, (tensor, gather_list, dst), group, timeout, group_dst=group_dst
    )
    return work


@mirrors(api.scatter)
def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Give each rank its tensor of a list on one rank."""
    work: Done = start(
        async_op, api.scatter, (tensor, scatter_list, src), group, timeout, group_src=group_src
    )
    return work


@mirrors(api.reduce_scatter)
def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce a list of tensors over all ranks; each rank gets its entry."""
    work: Done = start(async_op, api.reduce_scatter, (output, input_list, op), group, timeout)
    return work


@mirrors(api.reduce_scatter_tensor)
def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce a tensor over all ranks; each rank gets its part."""
    work: Done = start(
        async_op,
        api.reduce_scatter_tensor,
        (output, input, op),
        group,
        timeout,
        cached_calls.reduce_scatter_tensor,
    )
    return work


reduce_scatter_single = reduce_scatter_tensor  # torch's newer name


@mirrors(api.all_to_all)
def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Send each rank its tensor of a list, and receive one from each."""
    work: Done = start(
        async_op, api.all_to_all, (output_tensor_list, input_tensor_list), group, timeout
    )
    return work


@mirrors(api.all_to_all_single)
def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Send each rank its part of a tensor, and receive one from each."""
    work: Done = start(
        async_op,
        api.all_to_all_single,
        (output, input, output_split_sizes, input_split_sizes),
        group,
        timeout,
        cached_calls.all_to_all_single,
    )
    return work


@mirrors(api.barrier)
def barrier(
    group: Group | None = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: Timeout = None,
) -> Done:
    """Wait until all ranks of the group are here."""
    work: Done = start(
        async_op, api.barrier, (), group, timeout, cached_calls.barrier, device_ids=device_ids
    )
    return work


@mirrors(api.monitored_barrier)
def monitored_barrier(
    group: Group | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all ranks of the group are here, or name all that are not."""
    start(False, api.monitored_barrier, (), group, timeout, wait_all_ranks=wait_all_ranks)
