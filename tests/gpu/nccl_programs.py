"""What the ranks of an NCCL group do in its tests, each on ``device``."""

from __future__ import annotations

import torch

import aiodist as dist
from tests.gpu.operations import differing, every_operation


def filled(device: torch.device, value: float, count: int = 1000) -> torch.Tensor:
    return torch.full((count,), float(value), device=device)


async def every_operation_as_on_the_cpu(device: torch.device, backend: str = "nccl") -> None:
    group = await dist.new_group(backend=backend, device_id=device)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (0, 1, 1000):
            expected = await every_operation("cpu", dtype, count)
            found = await every_operation(str(device), dtype, count, group)
            assert differing(found, expected) == [], (dtype, count)


async def a_ring_of_large_messages_beside_collectives(device: torch.device) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = await dist.new_group(backend="nccl", device_id=device)
    for round_ in range(3):
        mine, into = filled(device, rank + round_, 16 << 20), filled(device, -1, 16 << 20)
        total = filled(device, 1)
        sending = dist.isend(mine, (rank + 1) % size, group)
        summing = dist.all_reduce(total, group=group)
        await dist.recv(into, (rank - 1) % size, group)
        await sending
        await summing
        assert torch.all(into == (rank - 1) % size + round_).item()
        assert torch.all(total == size).item()


async def operations_follow_the_callers_stream(device: torch.device) -> None:
    """They also keep the memory of tensors that the caller drops meanwhile."""
    size = dist.get_world_size()
    group = await dist.new_group(backend="nccl", device_id=device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        tensor = torch.zeros(1 << 20, device=device)
        for _ in range(50):
            tensor += 1
        work = dist.all_reduce(tensor, group=group)
    await work
    assert torch.all(tensor == 50 * size).item()
    works, gathered, summed = [], [], []
    for number in range(50):
        given = filled(device, number)
        gathered.append(torch.empty(1000 * size, device=device))
        works.append(dist.all_gather_into_tensor(gathered[-1], given, group))
        summed.append(filled(device, number))
        works.append(dist.all_reduce(summed[-1], group=group))
        del given
    for work in works:
        await work
    for number in range(50):
        assert torch.all(gathered[number] == number).item()
        assert torch.all(summed[number] == size * number).item()


async def a_received_tensor_belongs_to_the_callers_stream(device: torch.device) -> None:
    """Rank 0 sends tensors that rank 1 has not made itself."""
    count, turns = 1 << 16, 20
    group = await dist.new_group(backend="nccl", device_id=device)
    if dist.get_rank() == 0:
        for turn in range(turns):
            await dist.send(filled(device, turn, count), 1, group)
        return
    stream = torch.cuda.Stream(device)
    for turn in range(turns):
        with torch.cuda.stream(stream):
            receiving = dist.recv(src=0, group=group)
        received = (await receiving).tensor
        total = filled(device, 0, count)
        stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(10):
                total += received
        del receiving, received  # which that stream still reads
        others = [filled(device, -1, count) for _ in range(8)]
        torch.cuda.synchronize(device)
        assert torch.all(total == 10 * turn).item(), turn
        del others
