"""CUDA tensors with backend "aiodist": ranks that share one GPU, through host memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

import aiodist as dist
from aiodist.testing import run_ranks
from tests.gpu.jobs import run_job
from tests.gpu.operations import differing, every_operation

DTYPES = (torch.float32, torch.bfloat16, torch.int64)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_operation_as_on_the_cpu(size: int) -> None:
    async def body(rank: int) -> None:
        for dtype in DTYPES:
            for count in (0, 1, 1000):
                expected = await every_operation("cpu", dtype, count)
                found = await every_operation("cuda", dtype, count)
                assert differing(found, expected) == [], (dtype, count)

    asyncio.run(run_ranks(size, body, backend="aiodist"))


def test_several_parts() -> None:
    async def body(rank: int) -> None:
        values = torch.arange(3 * (8 << 20) // 4 + 5) % 1009.0
        tensor = values.cuda() * (rank + 1)
        await dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), values * 3)
        await dist.broadcast(tensor.copy_(values + rank), 1)
        assert torch.equal(tensor.cpu(), values + 1)

    asyncio.run(run_ranks(2, body, backend="aiodist"))


def test_the_copy_waits_for_the_callers_stream() -> None:
    async def body(rank: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = torch.zeros(1 << 22, device="cuda")
            for _ in range(200):
                tensor += 1
            work = dist.all_reduce(tensor)
        await work
        assert torch.all(tensor == 400).item()

    asyncio.run(run_ranks(2, body, backend="aiodist"))


def test_the_loop_goes_on_during_a_large_collective() -> None:
    async def body(rank: int) -> int:
        work = dist.all_reduce(torch.ones(1 << 26, device="cuda"))
        turns = 0
        while not work.is_completed():
            await asyncio.sleep(0)
            turns += 1
        await work
        return turns

    assert min(asyncio.run(run_ranks(2, body, backend="aiodist"))) > 20


SCRIPT = """
import torch
import aiodist.sync as dist

dist.init_process_group("aiodist")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(64, 8).cuda()
data = torch.randn(size * 4, 64, generator=torch.Generator().manual_seed(1))
alone = torch.nn.Linear(64, 8)
alone.load_state_dict(model.state_dict())
model(data[rank * 4 : rank * 4 + 4].cuda()).square().mean().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
alone(data).square().mean().backward()
for mine, theirs in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-5)
with torch.cuda.stream(torch.cuda.Stream()):  # which the loop's thread has to respect
    tensor = torch.zeros(1 << 22, device="cuda")
    for _ in range(200):
        tensor += 1
    dist.all_reduce(tensor)
    assert torch.all(tensor == 200 * size).item()
dist.destroy_process_group()
print("equal", flush=True)
"""


@pytest.mark.parametrize("size", [2, 4])
def test_a_training_step_of_processes_that_share_the_gpu(size: int, tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    assert run_job(script, size).count("equal") == size
