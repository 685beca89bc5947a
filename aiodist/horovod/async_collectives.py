"""Collectives that have begun: each returns a `Handle` for `poll` and `synchronize`.

All ranks call them in the same order. ``name`` is taken and not used: Horovod finds by it the calls
that belong together, in whatever order ranks make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

import aiodist.sync as dist
from aiodist.errors import InvalidUsageError
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.horovod import ranks as job
from aiodist.horovod.process_sets import ProcessSet, global_process_set
from aiodist.types import ReduceOp


class Op(Enum):
    """How tensors of several ranks become one."""

    Average = ReduceOp.AVG
    Sum = ReduceOp.SUM
    Min = ReduceOp.MIN
    Max = ReduceOp.MAX
    Product = ReduceOp.PRODUCT
    Adasum = None


Average, Sum, Min, Max, Product, Adasum = Op.Average, Op.Sum, Op.Min, Op.Max, Op.Product, Op.Adasum


def engine_op(op: Op | None, average: bool | None = None) -> ReduceOp:
    """Return the engine's reduction for ``op``, or for the older ``average``, or AVG without either.

    Raises InvalidUsageError for both, and for Adasum.
    """
    if average is not None:
        if op is not None:
            raise InvalidUsageError("pass op alone: average is its older name")
        op = Average if average else Sum
    if op is Adasum:
        raise InvalidUsageError(
            "Adasum is not there: use hvd.Average, with the learning rate times hvd.size()"
        )
    if op is not None and not isinstance(op, Op):
        raise TypeError(f"op must be hvd.Average, Sum, Min, Max or Product, not {op!r}")
    return ReduceOp.AVG if op is None else op.value


class Handle:
    """Operations under way. `synchronize` waits for them and returns what they result in."""

    def __init__(self, works: Sequence[Work[None] | None], result: Callable[[], Any]) -> None:
        """``result``: makes the result when all ``works`` have ended."""
        self._works = [work for work in works if work is not None]
        self._make = result
        self._result: Any = None
        self._is_made = False

    def is_done(self) -> bool:
        """Return whether all works have ended."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Return the result when all works have ended; raise the first error."""
        for work in self._works:
            work.wait()
        if not self._is_made:
            self._result = self._make()
            self._is_made = True
        return self._result

    __call__ = wait
    """Horovod calls what `sparse_allreduce_async` returns."""


def poll(handle: Handle) -> bool:
    """Return whether `synchronize` would return at once."""
    return handle.is_done()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its result. Raises what the collective does."""
    return handle.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set are here."""
    dist.barrier(process_set.group())


# -- reductions


def _scale(tensor: Tensor, factor: float) -> None:
    if factor != 1.0:
        tensor.copy_(tensor * factor)  # out of place: an integer takes no factor in place


@torch.no_grad()
def _reduce(
    outputs: Sequence[Tensor],
    op: ReduceOp,
    factors: tuple[float, float],
    group: Group | None,
) -> list[Work[None] | None]:
    """Start the reduction of ``outputs`` in place: those of one dtype in one operation."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for output in outputs:
        _scale(output, factors[0])
        by_dtype.setdefault(output.dtype, []).append(output)
    return [
        dist.all_reduce(several[0], op, group, async_op=True)
        if len(several) == 1
        else dist.all_reduce_coalesced(several, op, group, async_op=True)
        for several in by_dtype.values()
    ]


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce several tensors over all ranks, in place. The result is the list of them.

    ``op``: Average (the default), Sum, Min, Max or Product. Tensors are multiplied by
    ``prescale_factor`` before the reduction, and by ``postscale_factor`` after it.
    """
    reduction, group = engine_op(op, average), process_set.group()
    outputs = [tensor.detach() for tensor in tensors]
    works = _reduce(outputs, reduction, (prescale_factor, postscale_factor), group)

    def finish() -> list[Tensor]:
        for output in outputs:
            _scale(output, postscale_factor)
        return list(tensors)

    return Handle(works, finish)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce several tensors over all ranks. The result is a list of new tensors."""
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(
        copies, average, name, op, prescale_factor, postscale_factor, process_set
    )


def _only(handle: Handle) -> Handle:
    """Return a handle whose result is the one entry of ``handle``'s."""
    return Handle(handle._works, lambda: handle.wait()[0])


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce a tensor over all ranks, in place, as `grouped_allreduce_async_` does."""
    return _only(
        grouped_allreduce_async_(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to reduce a tensor over all ranks. The result is a new tensor."""
    return _only(
        grouped_allreduce_async(
            [tensor], average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks in place and return it."""
    reduced: Tensor = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return reduced


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors over all ranks in place and return them."""
    reduced: list[Tensor] = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return reduced


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start to reduce a tensor over all ranks; the result is this rank's part of the rows.

    If the rows do not divide evenly, the first ranks get one more.
    """
    reduction, group = engine_op(op), process_set.group()
    n_ranks, own = dist.get_world_size(group), dist.get_rank(group)
    rows = [len(tensor) // n_ranks + (r < len(tensor) % n_ranks) for r in range(n_ranks)]
    source = tensor.detach().clone()
    _scale(source, prescale_factor)
    output = torch.empty_like(source[: rows[own]])
    work = dist.reduce_scatter(
        output, list(torch.split(source, rows)), reduction, group, async_op=True
    )

    def finish() -> Tensor:
        _scale(output, postscale_factor)
        return output

    return Handle([work], finish)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start `reducescatter_async` of several tensors. The result is a list."""
    return _together(
        [
            reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)
            for tensor in tensors
        ]
    )


def _together(handles: Sequence[Handle]) -> Handle:
    works = [work for handle in handles for work in handle._works]
    return Handle(works, lambda: [handle.wait() for handle in handles])


# -- data as it is


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start to concatenate the tensors of all ranks along the first dimension.

    Numbers of rows may differ between ranks: they are exchanged first, so the call itself waits for
    the others' calls. Raises InvalidUsageError, on all ranks, if dtypes or other dimensions differ.
    """
    group = process_set.group()
    source = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach().contiguous()
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
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allgather_async` of several tensors. The result is a list."""
    return _together([allgather_async(tensor, name, process_set) for tensor in tensors])


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to copy the values of global rank ``root_rank`` to all ranks, in place."""
    work = dist.broadcast(tensor.detach(), root_rank, process_set.group(), async_op=True)
    return Handle([work], lambda: tensor)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to copy the values of global rank ``root_rank``. The result is a new tensor."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copy the values of global rank ``root_rank`` to all ranks in place and return the tensor."""
    received: Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return received


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start to send each rank its rows of ``tensor``, and to receive rows from each.

    ``splits``: how many rows each rank gets; equally many if None. The numbers are exchanged first, so
    the call itself waits for the others' calls. The result is the received rows, and how many of them
    each rank has sent (int32).

    Raises InvalidUsageError if the rows do not divide evenly, or are not as many as the splits say.
    """
    group = process_set.group()
    n_ranks = dist.get_world_size(group)
    source = tensor.detach().contiguous()
    if splits is None:
        if len(source) % n_ranks:
            raise InvalidUsageError(
                f"alltoall of {len(source)} rows needs splits: {n_ranks} ranks do not divide them"
            )
        splits = [len(source) // n_ranks] * n_ranks
    sent = torch.as_tensor(splits, dtype=torch.int32).cpu()
    if len(sent) != n_ranks or int(sent.sum()) != len(source):
        raise InvalidUsageError(
            f"splits {sent.tolist()} have to be {n_ranks} numbers that add up to {len(source)} rows"
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
    """Start to add up sparse tensors (COO) over all ranks, or to average them.

    The result is a new sparse tensor; its indices may repeat. Raises InvalidUsageError for another
    ``op``.
    """
    if op not in (Average, Sum):
        raise InvalidUsageError(
            f"sparse tensors are reduced by hvd.Average or hvd.Sum, not by {op}"
        )
    mine = tensor.detach().coalesce()
    gathered = grouped_allgather_async(
        [mine.indices().t().contiguous(), mine.values()], name, process_set
    )
    divisor = dist.get_world_size(process_set.group()) if op is Average else 1

    def finish() -> Tensor:
        indices, values = gathered.wait()
        return torch.sparse_coo_tensor(
            indices.t(), values / divisor, tensor.shape, check_invariants=True
        )

    return Handle(gathered._works, finish)


def join(device: int = -1) -> int:
    """Wait until all ranks are here; until then take part in the others' steps with zeros.

    Only the steps of `DistributedOptimizer` over all ranks are stood in for. In the end the parameters
    of these optimizers and their states are equal on all ranks again. ``device`` is not used. Returns the
    rank that has made the most steps, the first one of several.
    """
    from aiodist.training.sync import join_all

    reducers = job.session().reducers
    if not reducers:
        barrier()
        return 0
    return join_all(reducers)
