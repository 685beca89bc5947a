"""The blocking API. Generated from `aiodist.api.collectives` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api.collectives import Timeout
from aiodist.groups.argument_checks import check_rank
from aiodist.groups.handle import Group
from aiodist.groups.operation import (
    Agree,
    AllGather,
    AllGatherCoalesced,
    AllGatherNew,
    AllGatherSingle,
    AllReduce,
    AllReduceCoalesced,
    AllToAll,
    AllToAllSingle,
    Barrier,
    Broadcast,
    BroadcastNew,
    Gather,
    Reduce,
    ReduceScatter,
    ReduceScatterSingle,
    Scatter,
    Tensor,
)
from aiodist.sync.adapter import Done, member_of
from aiodist.sync.portal import portal
from aiodist.types import ReduceOp


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Copy ``tensor`` of rank ``src`` (global; or ``group_src``) into ``tensor`` of all ranks.

    Same number of elements and dtype on all ranks.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "broadcast")) is None:
        return None
    root = check_rank(pg, src, group_src, "src")
    result: Done = portal().start(async_op, pg, Broadcast(tensor, root), timeout)
    return result


def broadcast_new(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Tensor:
    """Return ``tensor`` of rank ``src`` (global; or ``group_src``) on all ranks.

    The other ranks pass no tensor: kind (torch or numpy), dtype and shape travel with the data, and
    their result is a new tensor on the CPU. The result on rank ``src`` is ``tensor`` itself. Errors
    and cancellation are as for `broadcast`.

    Blocks until this rank's part is done.
    """
    if (pg := member_of(group, "broadcast_new")) is None:
        return None
    root = check_rank(pg, src, group_src, "src")
    return portal().start(False, pg, BroadcastNew(tensor, root), timeout)


def all_gather_new(
    tensor: Tensor, group: Group | None = None, *, timeout: Timeout = None
) -> list[Tensor]:
    """Return the tensors of all ranks, by group rank, as new tensors on the CPU.

    Each rank's tensor has a kind, dtype and shape of its own, which travel with the data. Errors
    and cancellation are as for `all_gather`.

    Blocks until this rank's part is done. Returns no tensors on a rank outside the group.
    """
    if (pg := member_of(group, "all_gather_new")) is None:
        return []
    result: list[Tensor] | None = portal().start(False, pg, AllGatherNew(tensor), timeout)
    return [] if result is None else result


def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

    Dtype and number of elements are the same on all ranks. Shapes may differ: elements are matched
    in C order.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_reduce")) is None:
        return None
    result: Done = portal().start(async_op, pg, AllReduce(tensor, ReduceOp.of(op)), timeout)
    return result


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce several tensors of one dtype in one operation, in place.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_reduce_coalesced")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, AllReduceCoalesced(tensors, ReduceOp.of(op)), timeout
    )
    return result


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
    """Reduce ``tensor`` over all ranks into that of rank ``dst``; the others' stay as they are.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "reduce")) is None:
        return None
    root = check_rank(pg, dst, group_dst, "dst")
    result: Done = portal().start(async_op, pg, Reduce(tensor, root, ReduceOp.of(op)), timeout)
    return result


def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Fill ``tensor_list[r]`` with rank r's ``tensor`` on all ranks.

    Shapes may differ between ranks; ``tensor_list[r]`` then has rank r's number of elements.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_gather")) is None:
        return None
    result: Done = portal().start(async_op, pg, AllGather(tensor_list, tensor), timeout)
    return result


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Fill ``output_tensor_lists[r][i]`` with rank r's ``input_tensor_list[i]`` on all ranks.

    Several tensors of one dtype in one operation. All ranks pass equally many; shapes may differ.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_gather_coalesced")) is None:
        return None
    operation = AllGatherCoalesced(output_tensor_lists, input_tensor_list)
    result: Done = portal().start(async_op, pg, operation, timeout)
    return result


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Gather ``input_tensor`` of all ranks, one after the other, into one ``output_tensor``.

    ``output_tensor`` has group size times the elements of ``input_tensor``, concatenated along
    the first dimension or stacked along a new one: the memory is the same.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_gather_into_tensor")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, AllGatherSingle(output_tensor, input_tensor), timeout
    )
    return result


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
    """Fill ``gather_list[r]`` on rank ``dst`` (default: the group's first) with rank r's ``tensor``.

    ``gather_list`` is for ``dst`` alone. Shapes may differ between ranks.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "gather")) is None:
        return None
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    result: Done = portal().start(async_op, pg, Gather(tensor, gather_list, root), timeout)
    return result


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
    """Fill ``tensor`` on each rank r with ``scatter_list[r]`` of rank ``src`` (default: the first).

    ``scatter_list`` is for ``src`` alone. Shapes may differ between ranks.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "scatter")) is None:
        return None
    root = check_rank(pg, src, group_src, "src", default=0)
    result: Done = portal().start(async_op, pg, Scatter(tensor, scatter_list, root), timeout)
    return result


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``input_list[r]`` over all ranks into rank r's ``output``. Inputs stay as they are.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "reduce_scatter")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, ReduceScatter(output, input_list, ReduceOp.of(op)), timeout
    )
    return result


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``input`` over all ranks and leave rank r the r-th of its equal parts, in ``output``.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "reduce_scatter_tensor")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, ReduceScatterSingle(output, input, ReduceOp.of(op)), timeout
    )
    return result


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Send ``input_tensor_list[r]`` to each rank r; fill ``output_tensor_list[r]`` from rank r.

    Shapes may differ; each output has as many elements as what its rank sends here.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_to_all")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, AllToAll(output_tensor_list, input_tensor_list), timeout
    )
    return result


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
    """Send ``input_split_sizes[r]`` rows of ``input`` to each rank r, and the like for ``output``.

    Rows are counted along the first dimension; None divides them equally.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "all_to_all_single")) is None:
        return None
    operation = AllToAllSingle(output, input, output_split_sizes, input_split_sizes)
    result: Done = portal().start(async_op, pg, operation, timeout)
    return result


def barrier(
    group: Group | None = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: Timeout = None,
) -> Done:
    """Wait until all ranks of the group have called it. ``device_ids`` is for GPU backends.

    With ``async_op=True`` it returns a `Work` as soon as the operation has started; else None,
    when this rank's part is done.
    """
    if (pg := member_of(group, "barrier")) is None:
        return None
    result: Done = portal().start(async_op, pg, Barrier(), timeout)
    return result


def monitored_barrier(
    group: Group | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks as `barrier`; its CollectiveTimeoutError names all ranks that did not come.

    Its ``waiting_for`` lists them, and ``last_finished`` says what each of them did last.
    ``timeout`` (seconds or timedelta) is the group's where None.

    ``wait_all_ranks`` is torch's and changes nothing. In torch, False names only the first missing
    rank: rank 0 asks one after the other, and each may take the timeout. Here the rank that times
    out asks all ranks at once and waits at most 0.5 s for their answers.

    Blocks until this rank's part is done.
    """
    if (pg := member_of(group, "monitored_barrier")) is None:
        return
    portal().start(False, pg, Agree("monitored_barrier", 0), timeout)


all_gather_single = all_gather_into_tensor  # torch's newer name

reduce_scatter_single = reduce_scatter_tensor  # torch's newer name
