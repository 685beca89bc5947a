"""Blocking collectives that autograd goes through: each has a collective as its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import aiodist.sync as dist
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


class _Collective(torch.autograd.Function):
    """A function of tensors, with another collective as its backward."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., Any], gradient: Callable[..., Any], *tensors: Tensor
    ) -> Any:
        ctx.gradient = gradient
        found = run(*tensors)
        return tuple(found) if isinstance(found, list) else found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.gradient(*grads)
        return None, None, *(found if isinstance(found, list) else [found])


def _differentiable(run: Callable[..., Any], gradient: Callable[..., Any], *tensors: Tensor) -> Any:
    """Return ``run(*tensors)``. ``gradient``: makes gradients of the tensors from those of the result."""
    return _Collective.apply(run, gradient, *tensors)  # type: ignore[no-untyped-call]


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

    def reduce(*several: Tensor) -> list[Tensor]:
        reduced: list[Tensor] = grouped_allreduce_async(
            several, average, None, op, prescale_factor, postscale_factor, process_set
        ).wait()
        return reduced

    reduced = _differentiable(reduce, reduce, *(tensor for tensor, _ in packed))
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
    shape = check_tensor(tensor).shape

    def gradient(grad: Tensor) -> Tensor:
        mean = allreduce_async(grad, process_set=process_set).wait()
        rows = shape[0] if shape else 1
        counts = (
            allgather_async(torch.tensor([rows], device="cpu"), None, process_set).wait().tolist()
        )
        return torch.split(mean, counts)[dist.get_rank(process_set.group())].reshape(shape)

    output: Tensor = _differentiable(
        lambda rows: allgather_async(rows, None, process_set).wait(), gradient, tensor
    )
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

    def gradient(grad: Tensor) -> Tensor:
        mean = allreduce_async(grad, process_set=process_set).wait()
        return mean if job.rank() == root_rank else torch.zeros_like(mean)

    output: Tensor = _differentiable(
        lambda own: broadcast_async(own, root_rank, None, process_set).wait(), gradient, tensor
    )
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

    def gradient(grad: Tensor, _: Tensor) -> Tensor:
        returned: Tensor = alltoall_async(grad, received, None, process_set).wait()[0]
        return returned

    output, received = _differentiable(
        lambda rows: alltoall_async(rows, splits, None, process_set).wait(), gradient, tensor
    )
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

    def gradient(grad: Tensor) -> Tensor:
        # As Horovod has it: a mean over the ranks, unless it is asked for the sum.
        n_parts = dist.get_world_size(process_set.group()) if op is Sum else 1
        scale = prescale_factor * postscale_factor * n_parts
        gathered: Tensor = allgather_async(grad, None, process_set).wait()
        return gathered * scale

    output: Tensor = _differentiable(
        lambda rows: reducescatter_async(rows, None, op, process_set, *factors).wait(),
        gradient,
        packed,
    )
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
