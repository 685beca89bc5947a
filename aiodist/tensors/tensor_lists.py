"""Several tensors of one rank, on one device or on many, made into one and one made into them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from aiodist.copying import copy
from aiodist.errors import InvalidUsageError
from aiodist.tensors.buffer import buffer_of, empty_like_message
from aiodist.tensors.dtypes import DType
from aiodist.tensors.reduction import reduction
from aiodist.types import ReduceOp


def check_alike(tensors: Sequence[Any], name: str, written: Container[int] | None = None) -> None:
    """Raise unless all are of one kind, dtype and number of elements, and those that are written can be.

    ``written``: their places; all where None.

    TypeError for what is no tensor, InvalidUsageError for tensors that do not go together.
    """
    first: tuple[str, DType, int] | None = None
    for number, tensor in enumerate(tensors):
        if _is_elsewhere(tensor):
            from aiodist.tensors.torch_memory import dtype_of_tensor

            dtype = dtype_of_tensor(tensor, f"{name}[{number}]")
            kind, count = "torch", tensor.numel()
        else:
            writable = written is None or number in written
            buffer = buffer_of(tensor, f"{name}[{number}]", writable=writable, load=False)
            dtype, kind, count = buffer.dtype, buffer.kind, buffer.count
        if first is None:
            first = kind, dtype, count
        elif (kind, dtype, count) != first:
            raise InvalidUsageError(
                f"{name}[{number}] is {count} x {dtype.name} of {kind}, {name}[0] {first[2]} x "
                f"{first[1].name} of {first[0]}; they must be alike"
            )


def reduced(tensors: Sequence[Any], op: ReduceOp) -> Any:
    """A new tensor, on the first one's device: ``tensors`` (alike) as one, element by element.

    AVG and PREMUL_SUM add: their factors belong before or after, once for all ranks. Raises
    TypeError where ``op`` has no meaning for the dtype.
    """
    if any(map(_is_elsewhere, tensors)):
        from aiodist.tensors.torch_memory import dtype_of_tensor
        from aiodist.tensors.torch_tensor_lists import reduced_by_torch

        dtype = dtype_of_tensor(tensors[0], "tensor_list[0]")
        reduction(op, dtype, 1)  # refuses what has no meaning
        return reduced_by_torch(tensors, op)
    first, *others = [
        buffer_of(tensor, f"tensor_list[{number}]", writable=False)
        for number, tensor in enumerate(tensors)
    ]
    combine = reduction(op, first.dtype, 1)  # refuses what has no meaning
    result = empty_like_message(first.kind, first.dtype, first.shape)
    copy(result.view, first.view)
    for other in others:
        combine(result.view, other.view)
    return result.owner


def together(tensors: Sequence[Any]) -> list[Any]:
    """``tensors`` (alike) on the first one's device: themselves, or copies of those elsewhere."""
    if not any(map(_is_elsewhere, tensors)):
        return list(tensors)
    return [tensor.detach().to(tensors[0].device) for tensor in tensors]


def divide(tensor: Any, count: int) -> None:
    """Divide in place, as AVG over ``count`` tensors does."""
    if _is_elsewhere(tensor):
        from aiodist.tensors.torch_tensor_lists import divide_by_torch

        divide_by_torch(tensor, count)
        return
    buffer = buffer_of(tensor, "tensor", writable=True)
    reduction(ReduceOp.AVG, buffer.dtype, count).finish(buffer.view)
    buffer.write_back()


def begin(job: Callable[[], None], targets: Sequence[Any]) -> Callable[[], bool]:
    """Call ``job()``, which writes ``targets``; the question whether all is there by now."""
    job()
    devices = {target.device for target in targets if _is_elsewhere(target)}
    if not devices:
        return lambda: True
    from aiodist.tensors.torch_tensor_lists import reached

    return reached(devices)


def assign(target: Any, source: Any) -> None:
    """Copy the elements of ``source`` into ``target``, of one kind, dtype and number of elements."""
    if isinstance(target, np.ndarray):
        np.copyto(target, source.reshape(target.shape))
        return
    from aiodist.tensors import torch_memory

    torch_memory.assign(target, source.detach().reshape(target.shape))


def _is_elsewhere(tensor: Any) -> bool:
    """Whether it is a torch tensor on another device than the CPU."""
    return getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu"
