"""Delays on a CUDA stream, which expose code that does not wait for the work behind them."""

from __future__ import annotations

import torch


def delay() -> None:
    """Keep the current stream busy for a while."""
    waste = torch.zeros(1 << 16, device="cuda")
    for _ in range(100):
        waste += 1
