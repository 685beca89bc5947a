"""Memory: a tensor as bytes, and the sum of two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aiodist.tensors import buffer_of, reduction
from aiodist.types import ReduceOp


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def bench_buffer_of(benchmark: Any, kind: str) -> None:
    """A contiguous tensor of 1 KiB."""
    array = np.zeros(256, np.float32)
    owner = torch.from_numpy(array) if kind == "torch" else array
    benchmark(buffer_of, owner, "tensor", writable=True)


@pytest.mark.parametrize("nbytes", [4, 1024, 65536, 1 << 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def bench_reduce(benchmark: Any, dtype: str, nbytes: int) -> None:
    """``acc += other``."""
    element = getattr(torch, dtype)
    count = nbytes // element.itemsize
    acc = buffer_of(torch.zeros(count, dtype=element), "acc", writable=True)
    other = buffer_of(torch.zeros(count, dtype=element), "other", writable=False)
    benchmark(reduction(ReduceOp.SUM, acc.dtype, 2), acc.view, other.view)
