"""Our reductions in terms of those that torch's groups have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed

from aiodist.backends.torch_groups.kinds import TorchKind
from aiodist.errors import InvalidUsageError
from aiodist.tensors import DType, reduction
from aiodist.tensors.reduction import factor_of
from aiodist.tensors.torch_memory import TORCH_DTYPES
from aiodist.tensors.torch_tensor_lists import divide_by_torch
from aiodist.types import RedOpType, ReduceOp

Change = Callable[[torch.Tensor], None]


class Reducing(NamedTuple):
    """How to reduce: torch's ``op`` on the bytes seen as ``seen``, ``prepare`` before, ``finish`` after.

    ``prepare`` and ``finish`` change the same view in place.
    """

    op: Any
    seen: torch.dtype
    prepare: Change | None
    finish: Change | None


# A bool is a byte that is 0 or 1: or is the larger one of two, and the smaller one.
_OF_BOOL: Mapping[RedOpType, str] = MappingProxyType(
    {
        RedOpType.SUM: "MAX",
        RedOpType.MAX: "MAX",
        RedOpType.BOR: "MAX",
        RedOpType.PRODUCT: "MIN",
        RedOpType.MIN: "MIN",
        RedOpType.BAND: "MIN",
        RedOpType.BXOR: "BXOR",
    }
)
_REAL: Mapping[str, torch.dtype] = MappingProxyType(
    {"complex32": torch.float16, "complex64": torch.float32, "complex128": torch.float64}
)
_OF_SUM = frozenset({RedOpType.SUM, RedOpType.AVG, RedOpType.PREMUL_SUM})


def reducing(op: ReduceOp, dtype: DType, size: int, kind: TorchKind) -> Reducing:
    """Return the reduction ``op`` on elements of ``dtype`` over ``size`` ranks.

    The results are those of backend "aiodist" except for the order of the terms, and for NaN in MIN and
    MAX, which Gloo may lose. Raises TypeError as that backend does, and InvalidUsageError for what this
    torch group cannot reduce.
    """
    reduction(op, dtype, size)  # refuses what has no meaning
    name = "SUM" if op.kind in _OF_SUM else op.name
    seen = TORCH_DTYPES.get(dtype)
    if dtype.name == "bool":
        name, seen = _OF_BOOL[op.kind], torch.uint8
    elif dtype.name in _REAL and op.kind in _OF_SUM:
        seen = _REAL[dtype.name]
    elif dtype.name not in kind.numbers:
        seen = None
    if seen is None or RedOpType[name] in kind.lacks:
        raise InvalidUsageError(
            f'"{kind.name}" cannot reduce {dtype.name} by {op.name}; convert to one of '
            f'{", ".join(sorted(kind.numbers))}, or use a group with backend "aiodist"'
        )
    prepare = finish = None
    if op.kind is RedOpType.PREMUL_SUM:
        prepare = _multiplier(factor_of(op.factor, dtype), dtype, kind)
    elif op.kind is RedOpType.AVG:
        finish = partial(divide_by_torch, count=size)
    return Reducing(getattr(torch.distributed.ReduceOp, name), seen, prepare, finish)


def _multiplier(value: complex, dtype: DType, kind: TorchKind) -> Change:
    if isinstance(value, complex) and dtype.name == "complex32":
        raise InvalidUsageError(
            f'"{kind.name}" cannot multiply complex32 by a complex factor; convert to complex64, '
            'or use a group with backend "aiodist"'
        )

    def prepare(data: torch.Tensor) -> None:
        # complex numbers are seen as pairs of reals, which a real factor multiplies alike
        (data.view(TORCH_DTYPES[dtype]) if isinstance(value, complex) else data).mul_(value)

    return prepare
