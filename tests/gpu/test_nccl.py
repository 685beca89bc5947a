"""Backend "nccl" on one GPU: with one rank, and with several, which NCCL refuses on one host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

import aiodist as dist
from aiodist.testing import run_ranks
from tests.gpu.jobs import run_job
from tests.gpu.operations import differing, every_operation

RANK = Path(__file__).with_name("nccl_rank.py")

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


@pytest.mark.parametrize(
    ("program", "size", "backend"),
    [
        ("every_operation_as_on_the_cpu", 2, "nccl"),
        ("every_operation_as_on_the_cpu", 3, "nccl"),
        ("every_operation_as_on_the_cpu", 2, "cpu:aiodist,cuda:nccl"),
        ("a_ring_of_large_messages_beside_collectives", 2, ""),
        ("a_ring_of_large_messages_beside_collectives", 3, ""),
        ("operations_follow_the_callers_stream", 2, ""),
        ("operations_follow_the_callers_stream", 3, ""),
        ("a_received_tensor_belongs_to_the_callers_stream", 2, ""),
    ],
)
def test_ranks_that_nccl_takes_for_hosts_of_their_own(
    program: str, size: int, backend: str
) -> None:
    said = run_job(RANK, size, program, *([backend] if backend else []))
    assert said.count("good") == size
