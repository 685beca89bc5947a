"""Bandwidth through host memory beside the plain copies, which are its floor; for ``docs/gpu.md``.

It prints the figures (``-s`` shows them) and judges none of them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import pytest
import torch

import aiodist as dist
from aiodist.testing import run_ranks

NBYTES = 256 << 20
ROUNDS = 7

pytestmark = pytest.mark.gpu


def gigabytes_per_second(seconds: list[float]) -> float:
    return NBYTES / statistics.median(seconds) / 1e9


def timed(copy: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    copy()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def test_figures(capsys: pytest.CaptureFixture[str]) -> None:
    device = torch.ones(NBYTES // 4, device="cuda")
    host = torch.ones(NBYTES // 4, pin_memory=True)
    figures = {
        "device to host": [timed(lambda: host.copy_(device)) for _ in range(ROUNDS)],
        "host to device": [timed(lambda: device.copy_(host)) for _ in range(ROUNDS)],
    }

    async def body(rank: int) -> dict[str, list[float]]:
        tensor = torch.ones(NBYTES // 4, device="cuda")
        taken: dict[str, list[float]] = {"broadcast": [], "all_reduce": []}
        for _ in range(ROUNDS):
            for name, operation in (
                ("broadcast", lambda: dist.broadcast(tensor, 0)),
                ("all_reduce", lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX)),
            ):
                await dist.barrier()
                start = time.perf_counter()
                await operation()
                taken[name].append(time.perf_counter() - start)
        return taken

    figures.update(asyncio.run(run_ranks(2, body))[0])
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {NBYTES >> 20} MiB:")
        for name, seconds in figures.items():
            print(f"  {name}: {gigabytes_per_second(seconds):.2f} GB/s")
