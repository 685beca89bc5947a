"""The blocking API. Generated from `aiodist.api.collectives` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api import cached_calls
from aiodist.api import collectives as api
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import Tensor
from aiodist.groups.handle import Group
from aiodist.sync.adapter import Done, start
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
    result: Done = start(
        async_op,
        api.broadcast,
        (tensor, src),
        group,
        timeout,
        cached_calls.broadcast,
        group_src=group_src,
    )
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
    return start(False, api.broadcast_new, (tensor, src), group, timeout, group_src=group_src)


def all_gather_new(
    tensor: Tensor, group: Group | None = None, *, timeout: Timeout = None
) -> list[Tensor]:
    """Return the tensors of all ranks, by group rank, as new tensors on the CPU.

    Each rank's tensor has a kind, dtype and shape of its own, which travel with the data. Errors
    and cancellation are as for `all_gather`.

    Blocks until this rank's part is done. Returns no tensors on a rank outside the group.
    """
    result: list[Tensor] | None = start(False, api.all_gather_new, (tensor,), group, timeout)
    if result is None:
        return []
    return result


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
    result: Done = start(
        async_op, api.all_reduce, (tensor, op), group, timeout, cached_calls.all_reduce
    )
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
    result: Done = start(async_op, api.all_reduce_coalesced, (tensors, op), group, timeout)
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
    result: Done = start(
        async_op,
        api.reduce,
        (tensor, dst, op),
        group,
        timeout,
        cached_calls.reduce,
        group_dst=group_dst,
    )
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
    result: Done = start(async_op, api.all_gather, (tensor_list, tensor), group, timeout)
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
    result: Done = start(
        async_op, api.all_gather_coalesced, (output_tensor_lists, input_tensor_list), group, timeout
    )
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
    result: Done = start(
        async_op,
        api.all_gather_into_tensor,
        (output_tensor, input_tensor),
        group,
        timeout,
        cached_calls.all_gather_into_tensor,
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
    result: Done = start(
        async_op, api.gather, (tensor, gather_list, dst), group, timeout, group_dst=group_dst
    )
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
    result: Done = start(
        async_op, api.scatter, (tensor, scatter_list, src), group, timeout, group_src=group_src
    )
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
    result: Done = start(async_op, api.reduce_scatter, (output, input_list, op), group, timeout)
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
    result: Done = start(
        async_op,
        api.reduce_scatter_tensor,
        (output, input, op),
        group,
        timeout,
        cached_calls.reduce_scatter_tensor,
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
    result: Done = start(
        async_op, api.all_to_all, (output_tensor_list, input_tensor_list), group, timeout
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
    result: Done = start(
        async_op,
        api.all_to_all_single,
        (output, input, output_split_sizes, input_split_sizes),
        group,
        timeout,
        cached_calls.all_to_all_single,
    )
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
    result: Done = start(
        async_op, api.barrier, (), group, timeout, cached_calls.barrier, device_ids=device_ids
    )
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
    start(False, api.monitored_barrier, (), group, timeout, wait_all_ranks=wait_all_ranks)


all_gather_single = all_gather_into_tensor  # torch's newer name

reduce_scatter_single = reduce_scatter_tensor  # torch's newer name
