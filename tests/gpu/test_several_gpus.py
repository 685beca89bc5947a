"""Ranks with a GPU each, or several: NCCL between them. Skipped where there are too few."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch

import aiodist as dist
from aiodist.testing import run_ranks
from tests.gpu import nccl_programs
from tests.gpu.jobs import run_job
from tests.gpu.nccl_programs import filled

MIXED = "cpu:aiodist,cuda:nccl"

pytestmark = pytest.mark.gpu


def need(count: int) -> None:
    found = torch.cuda.device_count()
    if found < count:
        pytest.skip(f"needs {count} GPUs, and torch finds {found}")


def run(size: int, program: Callable[..., Awaitable[None]], *arguments: str) -> None:
    """Run a program of nccl_programs.py on ``size`` ranks, each with the GPU of its number."""

    async def body(rank: int) -> None:
        await program(torch.device("cuda", rank), *arguments)

    asyncio.run(run_ranks(size, body, backend="aiodist"))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("backend", ["nccl", MIXED])
def test_every_operation_as_on_the_cpu(backend: str, size: int) -> None:
    need(size)
    run(size, nccl_programs.every_operation_as_on_the_cpu, backend)


@pytest.mark.parametrize("size", [2, 4])
def test_a_ring_of_large_messages_beside_collectives(size: int) -> None:
    need(size)
    run(size, nccl_programs.a_ring_of_large_messages_beside_collectives)


def test_operations_follow_the_callers_stream_and_what_it_was_given() -> None:
    need(2)
    run(2, nccl_programs.operations_follow_the_callers_stream)


def test_a_tensor_that_a_receive_makes_belongs_to_the_callers_stream() -> None:
    need(2)
    run(2, nccl_programs.a_received_tensor_belongs_to_the_callers_stream)


def test_a_rank_keeps_to_one_gpu() -> None:
    need(4)

    async def body(rank: int) -> None:
        other = torch.device("cuda", rank + 2)
        group = await dist.new_group(backend="nccl", device_id=rank)
        with pytest.raises(dist.InvalidUsageError, match="a rank has one device in a nccl group"):
            await dist.all_reduce(filled(other, 1), group=group)
        await dist.barrier(group)

    asyncio.run(run_ranks(2, body))


@pytest.mark.parametrize("backend", ["aiodist", MIXED])
def test_ranks_with_two_gpus_each(backend: str) -> None:
    need(4)

    async def body(rank: int) -> None:
        devices = [torch.device("cuda", 2 * rank + i) for i in range(2)]
        group = await dist.new_group(backend=backend, device_id=2 * rank)

        def mine() -> list[torch.Tensor]:
            return [filled(device, 2.0 * rank + i) for i, device in enumerate(devices)]

        def values(tensors: list[torch.Tensor]) -> list[float]:
            assert all(torch.all(tensor == tensor[0]).item() for tensor in tensors)
            return [float(tensor[0]) for tensor in tensors]

        tensors = mine()
        await dist.all_reduce_multigpu(tensors, group=group)
        assert values(tensors) == [6, 6]
        for number in range(2):
            tensors = mine()
            await dist.broadcast_multigpu(tensors, 1, group, src_tensor=number)
            assert values(tensors) == [2 + number] * 2
            tensors = mine()
            await dist.reduce_multigpu(tensors, 0, "MAX", group, dst_tensor=number)
            assert rank == 1 or values(tensors)[number] == 3
        rows = [[filled(device, -1) for _ in range(4)] for device in devices]
        await dist.all_gather_multigpu(rows, mine(), group)
        assert [values(row) for row in rows] == [[0, 1, 2, 3]] * 2

    asyncio.run(run_ranks(2, body))


@pytest.mark.parametrize("backend", ["aiodist", MIXED])
def test_copies_to_other_gpus_follow_the_callers_stream_and_are_awaited(backend: str) -> None:
    need(4)
    count = 1 << 16

    async def body(rank: int) -> None:
        devices = [torch.device("cuda", 2 * rank + i) for i in range(2)]
        group = await dist.new_group(backend=backend, device_id=2 * rank)
        for turn in range(5):
            tensors = [filled(device, rank * turn, count) for device in devices]
            torch.cuda.synchronize(devices[1])
            with torch.cuda.stream(torch.cuda.Stream(devices[1])):
                for _ in range(50):  # before the copy
                    tensors[1].fill_(-1)
                work = dist.broadcast_multigpu(tensors, 1, group, src_tensor=0)
            await work
            with torch.cuda.stream(torch.cuda.Stream(devices[1])):  # which waits for no other one
                values = tensors[1].tolist()
            assert values == [turn] * count

    asyncio.run(run_ranks(2, body))


DEFAULT = """
import torch
import aiodist.sync as dist

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "cpu:aiodist,cuda:nccl", dist.get_backend()
torch.cuda.set_device(rank)
for tensor in (torch.full((5,), float(rank)), torch.full((5,), float(rank), device="cuda")):
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size * (size - 1) / 2] * 5
    mine, into = tensor + rank, torch.empty_like(tensor)
    sending = dist.isend(mine, (rank + 1) % size)
    dist.recv(into, (rank - 1) % size)
    sending.wait()
    assert torch.equal(into, tensor + (rank - 1) % size)
dist.barrier()
dist.destroy_process_group()
print("good", flush=True)
"""


@pytest.mark.parametrize("size", [2, 4])
def test_the_default_of_processes_with_a_gpu_each(size: int, tmp_path: Path) -> None:
    need(size)
    script = tmp_path / "default.py"
    script.write_text(DEFAULT)
    assert run_job(script, size).count("good") == size


@pytest.mark.parametrize("backend", ["aiodist", "nccl"])
def test_the_tensors_of_one_operation_are_on_one_gpu(backend: str) -> None:
    need(2)

    async def body(rank: int) -> None:
        group = await dist.new_group(backend=backend, device_id=0)
        tensors = [filled(torch.device("cuda", number), 1) for number in range(2)]
        with pytest.raises(dist.InvalidUsageError, match="have to be on one device"):
            dist.all_reduce_coalesced(tensors, group=group)
        with pytest.raises(dist.InvalidUsageError, match="have to be on one device"):
            dist.all_gather([tensors[1]], tensors[0], group)

    asyncio.run(run_ranks(1, body))


WANDERING = """
import torch
import aiodist.sync as dist

dist.init_process_group("aiodist")
rank, size = dist.get_rank(), dist.get_world_size()
for turn in range(2):
    for number in (0, rank, 1, 1 - rank):
        tensor = torch.full((100_000,), rank + turn, device=f"cuda:{number}")
        dist.all_reduce(tensor)
        assert torch.all(tensor == 1 + 2 * turn).item(), (turn, number)
        dist.broadcast(tensor.fill_(rank), 1)
        assert torch.all(tensor == 1).item(), (turn, number)
dist.destroy_process_group()
print("good", flush=True)
"""


def test_ranks_that_share_a_gpu_in_some_operations(tmp_path: Path) -> None:
    need(2)
    script = tmp_path / "wandering.py"
    script.write_text(WANDERING)
    assert run_job(script, 2).count("good") == 2
