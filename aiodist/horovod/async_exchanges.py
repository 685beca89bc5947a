"""Exchanges of data as it is, which have begun: each returns a handle, as `async_collectives` do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import aiodist.sync as dist
from aiodist.errors import InvalidUsageError
from aiodist.horovod.async_collectives import Average, Op, Sum
from aiodist.horovod.handles import Handle, together
from aiodist.horovod.input_checks import check_root, detached, rows_of
from aiodist.horovod.process_sets import ProcessSet, global_process_set


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to concatenate the tensors of all ranks along the first dimension.

    Numbers of rows are exchanged first, so the call itself waits for the others' calls.

    Args:
        tensor: A torch tensor. Numbers of rows may differ between ranks; dtypes and the other
            dimensions may not.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a new tensor.

    Raises:
        InvalidUsageError: Dtypes or other dimensions differ. It is raised on all ranks.
    """
    group = process_set.group()
    source = detached(tensor)
    source = source.reshape(1) if source.dim() == 0 else source.contiguous()
    kinds: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(kinds, (len(source), list(source.shape[1:]), str(source.dtype)), group)
    if any(tuple(kind[1:]) != tuple(kinds[0][1:]) for kind in kinds):
        raise InvalidUsageError(
            f"allgather needs equal dtypes, and equal shapes apart from the first dimension; ranks have "
            f"(rows, shape of a row, dtype) {kinds}"
        )
    rows = [kind[0] for kind in kinds]
    output = source.new_empty((sum(rows), *source.shape[1:]))
    work = dist.all_gather(list(torch.split(output, rows)), source, group, async_op=True)
    return Handle([work], lambda: output)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `allgather_async` of several tensors.

    Args:
        tensors: Tensors, in the same order on all ranks.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a list of new tensors.

    Raises:
        InvalidUsageError: Dtypes or other dimensions differ. It is raised on all ranks.
    """
    return together([allgather_async(tensor, name, process_set) for tensor in tensors])


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to copy the values of one rank to all ranks, in place.

    After a failure the contents of ``tensor`` are undefined.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        root_rank: The source's global rank.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns the tensor.
    """
    work = dist.broadcast(
        detached(tensor), check_root(root_rank), process_set.group(), async_op=True
    )
    return Handle([work], lambda: tensor)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to copy the values of one rank to all ranks.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        root_rank: The source's global rank.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a new tensor.
    """
    return broadcast_async_(detached(tensor).clone(), root_rank, name, process_set)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copy the values of one rank to all ranks in place.

    After a failure the contents of ``tensor`` are undefined.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        root_rank: The source's global rank.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        The tensor.

    Raises:
        CollectiveError: What `aiodist.broadcast` raises.
    """
    received: Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return received


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send each rank its rows of ``tensor``, and to receive rows from each.

    The numbers of rows are exchanged first, so the call itself waits for the others' calls.

    Args:
        tensor: The rows to send, by rank.
        splits: How many rows each rank gets; None is equally many.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns the received rows, and how many of them each rank has
        sent (int32).

    Raises:
        InvalidUsageError: The rows do not divide evenly, or are not as many as ``splits`` says; a
            split is below 0; ``tensor`` is a scalar.
        TypeError: ``splits`` are no integers.
    """
    group = process_set.group()
    n_ranks = dist.get_world_size(group)
    source = rows_of(tensor).contiguous()
    if splits is None:
        if len(source) % n_ranks:
            raise InvalidUsageError(
                f"alltoall of {len(source)} rows needs splits: {n_ranks} ranks do not divide them"
            )
        splits = [len(source) // n_ranks] * n_ranks
    given = torch.as_tensor(splits, device="cpu")  # else set_default_device says where
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"splits must be integers, not {given.dtype}")
    sent = given.to(torch.int32)
    if sent.shape != (n_ranks,) or int(sent.min()) < 0 or int(sent.sum()) != len(source):
        raise InvalidUsageError(
            f"splits {sent.tolist()} have to be {n_ranks} numbers, none below 0, that add up to "
            f"{len(source)} rows"
        )
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    output = source.new_empty((int(received.sum()), *source.shape[1:]))
    work = dist.all_to_all_single(
        output, source, received.tolist(), sent.tolist(), group, async_op=True
    )
    return Handle([work], lambda: (output, received))


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to add up sparse tensors over all ranks, or to average them.

    Args:
        tensor: A sparse tensor (COO) of the same shape on all ranks.
        name: Horovod's parameter; it has no effect.
        op: Average or Sum.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a new sparse tensor, whose indices may repeat.

    Raises:
        InvalidUsageError: ``op`` is another one.
    """
    if op not in (Average, Sum):
        raise InvalidUsageError(
            f"sparse tensors are reduced by hvd.Average or hvd.Sum, not by {op}"
        )
    mine = detached(tensor).coalesce()
    gathered = grouped_allgather_async(
        [mine.indices().t().contiguous(), mine.values()], name, process_set
    )
    n_ranks = dist.get_world_size(process_set.group())

    def finish() -> Tensor:
        indices, values = gathered.wait()
        if op is Average:
            values = values / n_ranks  # integers become floats by it
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=True)

    return Handle(gathered._works, finish)
