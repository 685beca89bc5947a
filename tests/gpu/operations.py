"""Every operation on tensors of one device, and what it left: to compare devices with each other."""

from __future__ import annotations

from typing import Any

import torch

import aiodist as dist

Results = dict[str, list[torch.Tensor]]


def given(rank: int, piece: int, count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Small whole numbers, which every dtype adds exactly."""
    start = 7 * rank + 3 * piece
    values = (torch.arange(start, start + count) % 11 - 4).to(dtype)
    return values.to(device)


async def every_operation(
    device: str, dtype: torch.dtype, count: int, group: Any = None
) -> Results:
    """``count`` elements a block; the results of this rank, on the CPU, by operation."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    after, before = (rank + 1) % size, (rank - 1) % size

    def mine(piece: int = 0, factor: int = 1) -> torch.Tensor:
        return given(rank, piece, count * factor, dtype, device)

    def blank(factor: int = 1) -> torch.Tensor:
        return torch.full((count * factor,), 99, dtype=dtype, device=device)

    results: Results = {}

    def note(name: str, *tensors: torch.Tensor) -> None:
        results[name] = [tensor.cpu() for tensor in tensors]

    if size > 1:
        into = blank()
        receiving = dist.irecv(into, before, group, tag=5)
        await dist.send(mine(), after, group, tag=5)
        await receiving
        note("send and recv", into)
    for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        tensor = mine()
        await dist.all_reduce(tensor, op, group)
        note(f"all_reduce {op}", tensor)
    tensor = mine(factor=2)[::2]  # not contiguous
    await dist.all_reduce(tensor, group=group)
    note("all_reduce of a strided tensor", tensor)
    several = [mine(0), mine(1)]
    await dist.all_reduce_coalesced(several, group=group)
    note("all_reduce_coalesced", *several)
    tensor = mine()
    await dist.reduce(tensor, 0, group=group)
    note("reduce", tensor)
    tensor = mine()
    await dist.broadcast(tensor, size - 1, group)
    note("broadcast", tensor)
    outputs = [blank() for _ in range(size)]
    await dist.all_gather(outputs, mine(), group)
    note("all_gather", *outputs)
    whole = blank(size)
    await dist.all_gather_into_tensor(whole, mine(), group)
    note("all_gather_into_tensor", whole)
    gathered = [blank() for _ in range(size)] if rank == 0 else None
    await dist.gather(mine(), gathered, 0, group)
    note("gather", *(gathered or []))
    tensor = blank()
    parts = [mine(piece) for piece in range(size)] if rank == 0 else None
    await dist.scatter(tensor, parts, 0, group)
    note("scatter", tensor)
    tensor = blank()
    await dist.reduce_scatter(tensor, [mine(piece) for piece in range(size)], group=group)
    note("reduce_scatter", tensor)
    tensor = blank()
    await dist.reduce_scatter_tensor(tensor, mine(factor=size), group=group)
    note("reduce_scatter_tensor", tensor)
    outputs = [blank() for _ in range(size)]
    await dist.all_to_all(outputs, [mine(piece) for piece in range(size)], group)
    note("all_to_all", *outputs)
    whole = blank(size)
    await dist.all_to_all_single(whole, mine(factor=size), group=group)
    note("all_to_all_single", whole)
    await dist.barrier(group)
    return results


def differing(found: Results, expected: Results) -> list[str]:
    """The operations whose results differ."""
    assert found.keys() == expected.keys()
    return [
        name
        for name, tensors in expected.items()
        if not all(torch.equal(a, b) for a, b in zip(found[name], tensors, strict=True))
    ]
