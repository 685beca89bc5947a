"""Which dtype gradients travel in."""

from __future__ import annotations

import pytest
import torch

from aiodist.training import Compression


@pytest.mark.parametrize(
    ("compression", "dtype", "wire"),
    [
        (Compression.none, torch.float64, torch.float64),
        (Compression.fp16, torch.float32, torch.float16),
        (Compression.fp16, torch.float64, torch.float16),
        (Compression.bf16, torch.float32, torch.bfloat16),
        (Compression.fp16, torch.bfloat16, torch.bfloat16),
        (Compression.bf16, torch.complex64, torch.complex64),
    ],
)
def test_wide_numbers_are_narrowed(
    compression: Compression, dtype: torch.dtype, wire: torch.dtype
) -> None:
    assert compression.on_wire(dtype) is wire
