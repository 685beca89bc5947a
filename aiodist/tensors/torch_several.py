"""Reductions over tensors on GPUs, by torch. Imported only where there are such tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from aiodist.tensors.torch_memory import dtype_of_tensor as dtype_of_tensor
from aiodist.types import RedOpType, ReduceOp

_OPS: Mapping[RedOpType, Callable[..., Tensor]] = MappingProxyType(
    {
        RedOpType.SUM: torch.add,
        RedOpType.PRODUCT: torch.mul,
        RedOpType.MIN: torch.minimum,
        RedOpType.MAX: torch.maximum,
        RedOpType.BAND: torch.bitwise_and,
        RedOpType.BOR: torch.bitwise_or,
        RedOpType.BXOR: torch.bitwise_xor,
    }
)


def reduced_by_torch(tensors: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """As `several.reduced`, on the device of the first, to which the others are copied in turn."""
    first, *others = [tensor.detach() for tensor in tensors]
    combine = _OPS[op.kind]
    result = first.resolve_conj().clone(memory_format=torch.contiguous_format)
    for other in others:
        here = other.to(result.device, non_blocking=True).reshape(result.shape)
        combine(result, here, out=result)
    return result


def divide_by_torch(tensor: Tensor, count: int) -> None:
    """As `several.divide`."""
    data = tensor.detach()
    if data.is_complex():  # by a real number, part by part
        data = torch.view_as_real(data)
    data.div_(count, rounding_mode=None if data.is_floating_point() else "trunc")
