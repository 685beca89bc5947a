"""Reductions of float16, bfloat16 and complex32 by torch. Imported only where one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from aiodist.tensors.dtypes import DType
from aiodist.types import RedOpType

# From 32768 elements on torch shares a call between the threads of its pool. Ranks on one host
# would then fight for the cores, and the user's setting is not ours to change: stay below, at a
# multiple of 64 elements.
CHUNK = 32704

TORCH_OPS: Mapping[RedOpType, Callable[..., Tensor]] = MappingProxyType(
    {
        RedOpType.SUM: torch.add,
        RedOpType.AVG: torch.add,
        RedOpType.PREMUL_SUM: torch.add,
        RedOpType.PRODUCT: torch.mul,
        RedOpType.MIN: torch.minimum,
        RedOpType.MAX: torch.maximum,
        RedOpType.BAND: torch.bitwise_and,
        RedOpType.BOR: torch.bitwise_or,
        RedOpType.BXOR: torch.bitwise_xor,
    }
)
"""What combines two ranks' elements; the factors of AVG and PREMUL_SUM come before or after."""


class TorchReduction:
    """A `Reduction` by torch; ``real`` is the dtype in which the bytes are seen."""

    __slots__ = ("_divisor", "_factor", "_op", "_real", "itemsize", "needs_finish", "needs_prepare")

    def __init__(
        self,
        op: Callable[..., Any],
        real: torch.dtype,
        itemsize: int,
        factor: Any,
        divisor: int | None,
    ) -> None:
        self._op = op
        self._real = real
        self._factor = factor
        self._divisor = divisor
        self.itemsize = itemsize
        self.needs_prepare = factor is not None
        self.needs_finish = divisor is not None

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        if other_first:
            self.into(other, acc, acc)
        else:
            self.into(acc, other, acc)

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        if not len(a) == len(b) == len(out):
            raise ValueError(f"cannot reduce {len(a)} and {len(b)} bytes into {len(out)}")
        if not len(out):
            return
        result = self._seen(out)
        left = result if a is out else self._seen(a)
        right = result if b is out else self._seen(b)
        if result.numel() <= CHUNK:
            self._op(left, right, out=result)
            return
        runs = zip(_chunks(left), _chunks(right), _chunks(result), strict=True)
        for one, two, both in runs:
            self._op(one, two, out=both)

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        return partial(self.into, a, b, out)

    def prepare(self, data: memoryview) -> None:
        if self._factor is None or not len(data):
            return
        for part in _chunks(self._seen(data)):
            if isinstance(self._factor, complex):
                pair = torch.tensor([self._factor.real, self._factor.imag], device="cpu")
                _complex_product(part, pair.expand(part.numel() // 2, 2).reshape(-1), out=part)
            else:
                part.mul_(self._factor)

    def finish(self, data: memoryview) -> None:
        if self._divisor is None or not len(data):
            return
        for part in _chunks(self._seen(data)):
            part.div_(self._divisor)

    def _seen(self, data: memoryview) -> Tensor:
        # torch warns about memory that is read-only; its owner must not be written, so copy.
        source = bytearray(data) if data.readonly else data
        return torch.frombuffer(source, dtype=self._real)


def make(kind: RedOpType, dtype: DType, factor: Any, divisor: int | None) -> TorchReduction:
    """The reduction ``kind``; ``factor`` of PREMUL_SUM and ``divisor`` of AVG, or None."""
    if dtype.name != "complex32":
        return TorchReduction(TORCH_OPS[kind], getattr(torch, dtype.name), 2, factor, divisor)
    # Pairs of float16: torch's own complex32 warns of being experimental, and needs no other op.
    op = _complex_product if kind is RedOpType.PRODUCT else TORCH_OPS[kind]
    return TorchReduction(op, torch.float16, 4, factor, divisor)


def _chunks(tensor: Tensor) -> list[Tensor]:
    return [tensor[start : start + CHUNK] for start in range(0, tensor.numel(), CHUNK)]


def _complex_product(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """The product of complex numbers given as runs of (real, imaginary), computed in float32."""
    left = torch.view_as_complex(a.float().view(-1, 2))
    right = torch.view_as_complex(b.float().view(-1, 2))
    out.copy_(torch.view_as_real(left * right).view(-1))
