"""Reductions over tensors on GPUs, by torch. Imported only where there are such tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from aiodist.tensors.dtypes import DType
from aiodist.tensors.reduction import factor_of, reduction
from aiodist.tensors.torch_memory import TORCH_DTYPES
from aiodist.tensors.torch_reduction import TORCH_OPS
from aiodist.types import RedOpType, ReduceOp

_REDUCED = frozenset(
    {
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    }
)
"""What torch's kernels reduce on every device."""


_HOLD_COUNTS = (torch.int32, torch.int64, torch.uint64)
"""Integers that hold every number of ranks, so that they are divided in place."""

_EXACT = frozenset({torch.float32, torch.float64})
"""Those with more bits than any number of ranks has; shorter ones are divided as float32 anyway."""


class DeviceReduction:
    """A reduction of the ranks' inputs where they are: on a device, in the order of the operands.

    Arguments are flat uint8 tensors. Raises TypeError where ``op`` has no meaning for ``dtype``.
    """

    def __init__(self, op: ReduceOp, dtype: DType, size: int) -> None:
        """``size``: of how many ranks AVG takes the mean."""
        reduction(op, dtype, size)  # refuses what has no meaning
        self._combine = TORCH_OPS[op.kind]
        self._factor = factor_of(op.factor, dtype) if op.kind is RedOpType.PREMUL_SUM else None
        self._divisor = size if op.kind is RedOpType.AVG else 0
        self._dtype = TORCH_DTYPES[dtype]

    @staticmethod
    def serves(dtype: DType) -> bool:
        """Whether there is one for ``dtype``."""
        return dtype.name in _REDUCED

    def prepare(self, data: Tensor) -> None:
        """Change a copy of this rank's input as the reduction needs it."""
        if self._factor is not None:
            data.view(self._dtype).mul_(self._factor)

    def __call__(self, out: Tensor, operands: Sequence[Tensor]) -> None:
        """Reduce ``operands`` into ``out``, whose memory no operand has."""
        result = out.view(self._dtype)
        first, *others = [operand.view(self._dtype) for operand in operands]
        if others:
            self._combine(first, others[0], out=result)
        else:
            result.copy_(first)
        for other in others[1:]:
            self._combine(result, other, out=result)
        if self._divisor:
            divide_by_torch(result, self._divisor)


def reduced_by_torch(tensors: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """As `several.reduced`, on the device of the first, to which the others are copied in turn."""
    first, *others = [tensor.detach() for tensor in tensors]
    combine = TORCH_OPS[op.kind]
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
    if not data.is_floating_point():
        wide = data if data.dtype in _HOLD_COUNTS else data.long()
        wide.div_(count, rounding_mode="trunc")
        data.copy_(wide)  # does nothing if ``wide`` is ``data``
    elif data.dtype in _EXACT:
        # By a tensor: a GPU multiplies by the reciprocal of a number, which may miss the last bit.
        data.div_(data.new_full((), count))
    else:
        data.div_(count)


def reached(devices: Iterable[torch.device]) -> Callable[[], bool]:
    """Whether each device's current stream has done what it had to do at the call."""
    questions: list[Callable[[], bool]] = []
    for device in devices:
        with torch.cuda.device(device):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            event.record()
        questions.append(event.query)
    return lambda: all(question() for question in questions)
