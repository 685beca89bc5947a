"""Blocking collectives that autograd goes through: each has a collective as its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from aiodist.horovod import ranks as job
from aiodist.horovod.async_collectives import (
    Average,
    Op,
    Sum,
    allreduce_async,
    engine_op,
    grouped_allreduce_async,
    reducescatter_async,
)
from aiodist.horovod.async_exchanges import allgather_async, alltoall_async, broadcast_async
from aiodist.horovod.input_checks import check_tensor
from aiodist.horovod.process_sets import ProcessSet, global_process_set
from aiodist.training.compression import Compression


class Compressor(Protocol):
    """What makes a tensor smaller before it travels: ``Compression.fp16``, or a class of your own."""

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return what travels, and what `decompress` needs."""

    def decompress(self, tensor: Tensor, ctx: Any) -> Tensor:
        """Return what a travelled tensor stands for."""


def _compressed(compression: Compressor, tensor: Tensor) -> tuple[Tensor, Any]:
    if not callable(getattr(compression, "compress", None)):
        raise TypeError(
            "compression must be hvd.Compression.none, fp16 or bf16, or an object with compress() and "
            f"decompress(), not {compression!r}"
        )
    return compression.compress(check_tensor(tensor))


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.options = options
        return tuple(grouped_allreduce_async(tensors, **options).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *grouped_allreduce_async(grads, **ctx.options).wait()


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, process_set: ProcessSet) -> Tensor:
        output: Tensor = allgather_async(tensor, None, process_set).wait()
        ctx.shape, ctx.process_set = tensor.shape, process_set
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        mean: Tensor = allreduce_async(grads[0], process_set=ctx.process_set).wait()
        rows = ctx.shape[0] if ctx.shape else 1
        counts = allgather_async(torch.tensor([rows]), None, ctx.process_set).wait().tolist()
        return torch.split(mean, counts)[ctx.process_set.rank()].reshape(ctx.shape), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        output: Tensor = broadcast_async(tensor, root_rank, None, process_set).wait()
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        mean: Tensor = allreduce_async(grads[0], process_set=ctx.process_set).wait()
        return mean if job.rank() == ctx.root_rank else torch.zeros_like(mean), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        output, received = alltoall_async(tensor, splits, None, process_set).wait()
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad, _ = alltoall_async(grads[0], ctx.received, None, ctx.process_set).wait()
        return grad, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, op: Op, process_set: ProcessSet, *factors: float
    ) -> Tensor:
        ctx.op, ctx.process_set, ctx.factors = op, process_set, factors
        output: Tensor = reducescatter_async(tensor, None, op, process_set, *factors).wait()
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad: Tensor = allgather_async(grads[0], None, ctx.process_set).wait()
        scale = ctx.factors[0] * ctx.factors[1]
        # As Horovod has it: a mean over the ranks, unless it is asked for the sum.
        if ctx.op is Sum:
            scale *= ctx.process_set.size()
        return grad * scale, None, None, None, None


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return several tensors reduced over all ranks.

    The gradient is reduced in the same way.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and numbers of
            elements.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        compression: How tensors travel: ``Compression.fp16``, or a class of your own.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A list of new tensors.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
        CollectiveError: What `aiodist.all_reduce` raises.
    """
    engine_op(op, average)
    packed = [_compressed(compression, tensor) for tensor in tensors]
    options = {
        "op": (Average if average else Sum) if average is not None else op,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    reduced = _AllReduce.apply(options, *(tensor for tensor, _ in packed))  # type: ignore[no-untyped-call]
    return [
        compression.decompress(tensor, ctx)
        for tensor, (_, ctx) in zip(reduced, packed, strict=True)
    ]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return a tensor reduced over all ranks.

    The gradient is reduced in the same way.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        average: The older name of ``op``: True is Average, False is Sum.
        name: Horovod's parameter; it has no effect.
        compression: How tensors travel: ``Compression.fp16``, or a class of your own.
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A new tensor.

    Raises:
        InvalidUsageError: ``op`` is Adasum, or both ``op`` and ``average`` are given.
        CollectiveError: What `aiodist.all_reduce` raises.
    """
    return grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )[0]


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the tensors of all ranks, concatenated along the first dimension.

    Its gradient is the mean of the ranks' gradients.

    Args:
        tensor: A torch tensor. Numbers of rows may differ between ranks; dtypes and the other
            dimensions may not.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A new tensor.

    Raises:
        InvalidUsageError: Dtypes or other dimensions differ. It is raised on all ranks.
        CollectiveError: What `aiodist.all_gather` raises.
    """
    output: Tensor = _AllGather.apply(tensor, process_set)  # type: ignore[no-untyped-call]
    return output


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Return `allgather` of several tensors.

    Args:
        tensors: Tensors, in the same order on all ranks.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A list of new tensors.

    Raises:
        InvalidUsageError: Dtypes or other dimensions differ. It is raised on all ranks.
        CollectiveError: What `aiodist.all_gather` raises.
    """
    return [allgather(tensor, name, process_set) for tensor in tensors]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of one rank.

    Its gradient is the mean of the ranks' gradients on that rank, and zero on the others.

    Args:
        tensor: A torch tensor of the same dtype and number of elements on all ranks.
        root_rank: The source's global rank.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        A new tensor.

    Raises:
        CollectiveError: What `aiodist.broadcast` raises.
    """
    output: Tensor = _Broadcast.apply(tensor, root_rank, process_set)  # type: ignore[no-untyped-call]
    return output


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Send each rank its rows of ``tensor`` and return the received ones.

    Args:
        tensor: The rows to send, by rank.
        splits: How many rows each rank gets; None is equally many.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Returns:
        The received rows. With ``splits`` also how many rows each rank has sent, as Horovod does.

    Raises:
        InvalidUsageError: The rows do not divide evenly, or are not as many as ``splits`` says; a
            split is below 0; ``tensor`` is a scalar.
        TypeError: ``splits`` are no integers.
        CollectiveError: What `aiodist.all_to_all_single` raises.
    """
    output, received = _AllToAll.apply(tensor, splits, process_set)  # type: ignore[no-untyped-call]
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor over all ranks and return this rank's part of the rows.

    If the rows do not divide evenly, the first ranks get one more.

    Args:
        tensor: A torch tensor of the same dtype and shape on all ranks.
        name: Horovod's parameter; it has no effect.
        compression: How tensors travel: ``Compression.fp16``, or a class of your own.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: The ranks that take part; all of them by default.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.

    Returns:
        A new tensor.

    Raises:
        InvalidUsageError: ``op`` is Adasum.
        CollectiveError: What `aiodist.reduce_scatter` raises.
    """
    packed, ctx = _compressed(compression, tensor)
    factors = (prescale_factor, postscale_factor)
    output: Tensor = _ReduceScatter.apply(packed, op, process_set, *factors)  # type: ignore[no-untyped-call]
    return compression.decompress(output, ctx)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return `reducescatter` of several tensors.

    Args:
        tensors: Tensors, in the same order on all ranks, with the same dtypes and shapes.
        name: Horovod's parameter; it has no effect.
        compression: How tensors travel: ``Compression.fp16``, or a class of your own.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: The ranks that take part; all of them by default.
        prescale_factor: What tensors are multiplied by before the reduction.
        postscale_factor: What tensors are multiplied by after the reduction.

    Returns:
        A list of new tensors.

    Raises:
        InvalidUsageError: ``op`` is Adasum.
        CollectiveError: What `aiodist.reduce_scatter` raises.
    """
    return [
        reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor)
        for tensor in tensors
    ]
