"""Every operation on tensors of one device, and what it left: to compare devices with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import aiodist as dist

Results = dict[str, list[torch.Tensor]]
Note = Callable[..., None]


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
        into = blank()
        batch = [
            dist.P2POp(dist.isend, mine(), after, group, 6),
            dist.P2POp(dist.irecv, into, before, group, 6),
        ]
        for work in dist.batch_isend_irecv(batch):
            await work
        note("batch_isend_irecv", into)
        sending = dist.isend(mine(), after, group, tag=7)
        into = blank()
        assert await dist.recv(into, group=group, tag=7) == before
        await sending
        note("recv from any rank", into)
        # Where each device has a backend of its own, the CPU's receives what no tensor is there for.
        is_mixed = "," in dist.get_backend(group)
        sending = dist.isend(mine().cpu() if is_mixed else mine(), after, group, tag=8)
        received = await dist.recv(group=group, tag=8)
        await sending
        assert received.source == before
        note("recv without a tensor", received.tensor)
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
    whole = blank(size)
    await dist.gather_single(mine(), whole, 0, group)
    note("gather_single", *([whole] if rank == 0 else []))
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
    rows = [[blank(), blank()] for _ in range(size)]
    await dist.all_gather_coalesced(rows, [mine(0), mine(1)], group)
    note("all_gather_coalesced", *(tensor for row in rows for tensor in row))
    await _uneven(device, dtype, count, group, note)
    await _of_several(mine, blank, size, group, note)
    objects: list[Any] = [None] * size
    await dist.all_gather_object(objects, ("rank", rank), group=group)
    assert objects == [("rank", other) for other in range(size)]
    await dist.barrier(group)
    return results


async def _uneven(device: str, dtype: torch.dtype, count: int, group: Any, note: Note) -> None:
    """Where the ranks' blocks differ in length: ``count`` elements for rank 0, one more for each next."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    lengths = [count + other for other in range(size)]
    own = lengths[rank]

    def mine(piece: int, length: int) -> torch.Tensor:
        return given(rank, piece, length, dtype, device)

    def blanks(*counts: int) -> list[torch.Tensor]:
        return [torch.full((each,), 99, dtype=dtype, device=device) for each in counts]

    outputs = blanks(*lengths)
    await dist.all_gather(outputs, mine(0, own), group)
    note("all_gather, uneven", *outputs)
    gathered = blanks(*lengths) if rank == 0 else None
    await dist.gather(mine(0, own), gathered, 0, group)
    note("gather, uneven", *(gathered or []))
    parts = [mine(piece, length) for piece, length in enumerate(lengths)]
    (tensor,) = blanks(own)
    await dist.scatter(tensor, parts if rank == 0 else None, 0, group)
    note("scatter, uneven", tensor)
    (tensor,) = blanks(own)
    await dist.reduce_scatter(tensor, parts, group=group)
    note("reduce_scatter, uneven", tensor)
    outputs = blanks(*[own] * size)
    await dist.all_to_all(outputs, parts, group)
    note("all_to_all, uneven", *outputs)
    (whole,) = blanks(own * size)
    await dist.all_to_all_single(whole, torch.cat(parts), [own] * size, lengths, group)
    note("all_to_all_single, uneven", whole)


async def _of_several(
    mine: Callable[[int], torch.Tensor],
    blank: Callable[[], torch.Tensor],
    size: int,
    group: Any,
    note: Note,
) -> None:
    """The calls for several tensors of each rank; here all are on one device."""
    whole = group or dist.group.WORLD
    assert whole is not None
    root = dist.get_global_rank(whole, 0)
    several = [mine(0), mine(1)]
    await dist.all_reduce_multigpu(several, group=group)
    note("all_reduce_multigpu", *several)
    several = [mine(0), mine(1)]
    await dist.reduce_multigpu(several, root, "MAX", group, dst_tensor=1)
    note("reduce_multigpu", *several)
    several = [mine(0), mine(1)]
    await dist.broadcast_multigpu(several, root, group, src_tensor=1)
    note("broadcast_multigpu", *several)
    rows = [[blank() for _ in range(2 * size)] for _ in range(2)]
    await dist.all_gather_multigpu(rows, [mine(0), mine(1)], group)
    note("all_gather_multigpu", *(tensor for row in rows for tensor in row))


def differing(found: Results, expected: Results) -> list[str]:
    """The operations whose results differ."""
    assert found.keys() == expected.keys()
    return [
        name
        for name, tensors in expected.items()
        if not all(torch.equal(a, b) for a, b in zip(found[name], tensors, strict=True))
    ]
