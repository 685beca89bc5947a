"""The comparison that the GPU tests make, made between two backends on the CPU: it runs anywhere."""

from __future__ import annotations

import asyncio

import torch

import aiodist as dist
from aiodist.testing import run_ranks
from tests.gpu.operations import differing, every_operation


def test_two_backends_give_the_same_on_the_cpu() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        expected = await every_operation("cpu", torch.int64, 5)
        found = await every_operation("cpu", torch.int64, 5, group)
        assert differing(found, expected) == []
        found["broadcast"][0][0] += 1
        assert differing(found, expected) == ["broadcast"]

    asyncio.run(run_ranks(3, body))
