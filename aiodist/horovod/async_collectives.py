"""Collectives that have begun: each returns a `Handle` for `poll` and `synchronize`.

All ranks call them in the same order. ``name`` is taken and not used: Horovod finds by it the calls
that belong together, in whatever order ranks make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

import aiodist.sync as dist
from aiodist.errors import InvalidUsageError
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.horovod import ranks as job
from aiodist.horovod.handles import Handle, together
from aiodist.horovod.input_checks import detached, rows_of
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


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set are here.

    Args:
        process_set: The ranks that take part; all of them by default.

    Raises:
        CollectiveError: What `aiodist.barrier` raises.
    """
    dist.barrier(process_set.group())


# -- reductions


def _scale(tensor: Tensor, factor: float) -> None:
    if factor != 1.0:
        # Out of place: an integer takes no factor in place. A long integer has too many digits for float32.
        inexact = tensor.is_floating_point() or tensor.is_complex()
        tensor.copy_((tensor if inexact else tensor.double()) * factor)


@torch.no_grad()
def _reduce(
    outputs: Sequence[Tensor], op: ReduceOp, factors: tuple[float, float], group: Group | None
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
    """Start to reduce several tensors over all ranks, in place.

    After a failure their contents are undefined.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and numbers of
            elements.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns the list of them.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
    """
    reduction, group = engine_op(op, average), process_set.group()
    outputs = [detached(tensor) for tensor in tensors]
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
    """Start to reduce several tensors over all ranks.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and numbers of
            elements.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a list of new tensors.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
    """
    copies = [detached(tensor).clone() for tensor in tensors]
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
    """Start to reduce a tensor over all ranks, in place.

    After a failure its contents are undefined.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns the tensor.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
    """
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
    """Start to reduce a tensor over all ranks.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A handle; `synchronize` returns a new tensor.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
    """
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
    """Reduce a tensor over all ranks in place.

    After a failure its contents are undefined.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        The tensor.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
        CollectiveError: What `aiodist.all_reduce` raises.
    """
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
    """Reduce several tensors over all ranks in place.

    After a failure their contents are undefined.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and numbers of
            elements.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        The tensors.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
        CollectiveError: What `aiodist.all_reduce` raises.
    """
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
    """Start to reduce a tensor over all ranks, and to give each rank a part of the rows.

    If the rows do not divide evenly, the first ranks get one more.

    Args:
        tensor: A torch tensor of the same dtype and shape on all ranks.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: The ranks that take part; all of them by default.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.

    Returns:
        A handle; `synchronize` returns this rank's part of the rows.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or ``tensor`` is a scalar.
    """
    reduction, group = engine_op(op), process_set.group()
    n_ranks, own = dist.get_world_size(group), dist.get_rank(group)
    source = rows_of(tensor).clone()
    rows = [len(source) // n_ranks + (r < len(source) % n_ranks) for r in range(n_ranks)]
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
    """Start `reducescatter_async` of several tensors.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and shapes.
        name: Horovod's parameter; it has no effect.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: The ranks that take part; all of them by default.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.

    Returns:
        A handle; `synchronize` returns a list of this rank's parts.

    Raises:
        InvalidUsageError: ``op`` is Adasum.
    """
    return together(
        [
            reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)
            for tensor in tensors
        ]
    )


def join(device: int = -1) -> int:
    """Wait until all ranks are here; until then take part in the others' steps with zeros.

    Only the steps of `DistributedOptimizer` over all ranks are stood in for. In the end the
    parameters of these optimizers and their states are equal on all ranks again.

    Args:
        device: Horovod's parameter; it has no effect.

    Returns:
        The rank that has made the most steps, the first one of several.

    Raises:
        CollectiveError: What `aiodist.all_reduce` raises.
    """
    from aiodist.training.sync import join_all

    reducers = job.session().reducers
    if not reducers:
        barrier()
        return 0
    return join_all(reducers)
