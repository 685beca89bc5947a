"""Backend "nccl" with one rank, and what it says of two ranks on one GPU."""

from __future__ import annotations

import asyncio

import pytest
import torch

import aiodist as dist
from aiodist.testing import run_ranks
from tests.gpu.operations import differing, every_operation

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["nccl", "cpu:aiodist,cuda:nccl"])
def test_every_operation_of_one_rank(backend: str) -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend=backend, device_id=0)
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            expected = await every_operation("cpu", dtype, 1000)
            found = await every_operation("cuda", dtype, 1000, group)
            assert differing(found, expected) == [], dtype

    asyncio.run(run_ranks(1, body))


@pytest.mark.parametrize("device_id", [0, None], ids=["by us", "by NCCL"])
def test_two_ranks_on_one_gpu_are_refused(device_id: int | None) -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="nccl", device_id=device_id)
        with pytest.raises(dist.DistError, match='use backend "aiodist"'):
            await dist.all_reduce(torch.ones(2, device="cuda"), group=group)

    asyncio.run(run_ranks(2, body))


def test_the_loop_goes_on_while_the_device_works() -> None:
    async def body(rank: int) -> int:
        group = await dist.new_group(backend="nccl", device_id=0)
        await dist.barrier(group)
        tensor = torch.zeros(1 << 26, device="cuda")
        for _ in range(300):
            tensor += 1
        work = dist.all_reduce(tensor, group=group)
        turns = 0
        while not work.is_completed():
            await asyncio.sleep(0)
            turns += 1
        await work
        assert torch.all(tensor == 300).item()
        return turns

    assert asyncio.run(run_ranks(1, body))[0] > 10
