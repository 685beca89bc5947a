"""Collectives of the async API. Each starts at the call and returns an awaitable `Work`.

A tensor is a torch.Tensor on the CPU or a numpy.ndarray, contiguous or not, of any size from no
element up. All members of the group call the same operations in the same order. ``group`` is the
default group where None; ``timeout`` (seconds or timedelta) the group's where None.
``math.inf`` is no limit: a worker may wait for hours in `broadcast` or `recv`, and it sleeps.

Raised at the call, before anything is sent, with the group still usable: TypeError and
InvalidUsageError (a ValueError) for invalid arguments, NotInitializedError before
``init_process_group``. Raised by ``await``: CollectiveMismatchError where ranks disagree,
CollectiveTimeoutError, CollectiveCancelledError, PeerLostError, GroupClosedError. A rank may have
succeeded before a failure is known, such as the root of a broadcast of little data: it logs the
failure. After a failure or a cancellation the contents of the outputs are undefined, and nothing
writes to them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.types import ReduceOp

Timeout = float | timedelta | None


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Copy ``tensor`` of rank ``src`` (global; or ``group_src``) into ``tensor`` of all ranks.

    Same number of elements and dtype on all ranks.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src")
    return pg.start(Broadcast(tensor, root), timeout)


def broadcast_new(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[Tensor]:
    """Return ``tensor`` of rank ``src`` (global; or ``group_src``) on all ranks.

    The other ranks pass no tensor: kind (torch or numpy), dtype and shape travel with the data, and
    their result is a new tensor on the CPU. The result on rank ``src`` is ``tensor`` itself. Errors
    and cancellation are as for `broadcast`.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src")
    return pg.start(BroadcastNew(tensor, root), timeout)


def all_gather_new(
    tensor: Tensor, group: Group | None = None, *, timeout: Timeout = None
) -> Work[list[Tensor]]:
    """Return the tensors of all ranks, by group rank, as new tensors on the CPU.

    Each rank's tensor has a kind, dtype and shape of its own, which travel with the data. Errors
    and cancellation are as for `all_gather`.
    """
    pg = current_world().group(group)
    return pg.start(AllGatherNew(tensor), timeout)


def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

    Dtype and number of elements are the same on all ranks. Shapes may differ: elements are matched
    in C order.
    """
    pg = current_world().group(group)
    return pg.start(AllReduce(tensor, ReduceOp.of(op)), timeout)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce several tensors of one dtype in one operation, in place."""
    pg = current_world().group(group)
    return pg.start(AllReduceCoalesced(tensors, ReduceOp.of(op)), timeout)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``tensor`` over all ranks into that of rank ``dst``; the others' stay as they are."""
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst")
    return pg.start(Reduce(tensor, root, ReduceOp.of(op)), timeout)


def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``tensor_list[r]`` with rank r's ``tensor`` on all ranks.

    Shapes may differ between ranks; ``tensor_list[r]`` then has rank r's number of elements.
    """
    pg = current_world().group(group)
    return pg.start(AllGather(tensor_list, tensor), timeout)


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``output_tensor_lists[r][i]`` with rank r's ``input_tensor_list[i]`` on all ranks.

    Several tensors of one dtype in one operation. All ranks pass equally many; shapes may differ.
    """
    pg = current_world().group(group)
    operation = AllGatherCoalesced(output_tensor_lists, input_tensor_list)
    return pg.start(operation, timeout)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Gather ``input_tensor`` of all ranks, one after the other, into one ``output_tensor``.

    ``output_tensor`` has group size times the elements of ``input_tensor``, concatenated along
    the first dimension or stacked along a new one: the memory is the same.
    """
    pg = current_world().group(group)
    return pg.start(AllGatherSingle(output_tensor, input_tensor), timeout)


all_gather_single = all_gather_into_tensor  # torch's newer name


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``gather_list[r]`` on rank ``dst`` (default: the group's first) with rank r's ``tensor``.

    ``gather_list`` is for ``dst`` alone. Shapes may differ between ranks.
    """
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    return pg.start(Gather(tensor, gather_list, root), timeout)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``tensor`` on each rank r with ``scatter_list[r]`` of rank ``src`` (default: the first).

    ``scatter_list`` is for ``src`` alone. Shapes may differ between ranks.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    return pg.start(Scatter(tensor, scatter_list, root), timeout)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``input_list[r]`` over all ranks into rank r's ``output``. Inputs stay as they are."""
    pg = current_world().group(group)
    return pg.start(ReduceScatter(output, input_list, ReduceOp.of(op)), timeout)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``input`` over all ranks and leave rank r the r-th of its equal parts, in ``output``."""
    pg = current_world().group(group)
    return pg.start(ReduceScatterSingle(output, input, ReduceOp.of(op)), timeout)


reduce_scatter_single = reduce_scatter_tensor  # torch's newer name


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``input_tensor_list[r]`` to each rank r; fill ``output_tensor_list[r]`` from rank r.

    Shapes may differ; each output has as many elements as what its rank sends here.
    """
    pg = current_world().group(group)
    return pg.start(AllToAll(output_tensor_list, input_tensor_list), timeout)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``input_split_sizes[r]`` rows of ``input`` to each rank r, and the like for ``output``.

    Rows are counted along the first dimension; None divides them equally.
    """
    pg = current_world().group(group)
    operation = AllToAllSingle(output, input, output_split_sizes, input_split_sizes)
    return pg.start(operation, timeout)


def barrier(
    group: Group | None = None,
    device_ids: Sequence[int] | None = None,
    timeout: Timeout = None,
) -> Work[None]:
    """Wait until all ranks of the group have called it. ``device_ids`` is for GPU backends."""
    pg = current_world().group(group)
    return pg.start(Barrier(), timeout)


def monitored_barrier(
    group: Group | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> Work[None]:
    """Wait for all ranks as `barrier`; its CollectiveTimeoutError names all ranks that did not come.

    Its ``waiting_for`` lists them, and ``last_finished`` says what each of them did last.
    ``timeout`` (seconds or timedelta) is the group's where None.

    ``wait_all_ranks`` is torch's and changes nothing. In torch, False names only the first missing
    rank: rank 0 asks one after the other, and each may take the timeout. Here the rank that times
    out asks all ranks at once and waits at most 0.5 s for their answers.
    """
    pg = current_world().group(group)
    return pg.start(Agree("monitored_barrier", 0), timeout)
