"""Groups over MPI: communicators of some ranks, and what runs in several at once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.backends.mixed import MixedBackend
from aiodist.groups.message import Recv, Send
from aiodist.groups.operation import AllReduce, Broadcast


async def groups() -> None:
    """On three ranks."""
    rank = dist.get_rank()
    assert dist.get_backend() == "mpi"
    await _some_of_the_ranks(rank)
    await _several_at_once(rank)
    await _only_the_members(rank)
    await _another_backend(rank)
    await _a_backend_for_each_device(rank)
    await _several_tensors(rank)
    await _free_loop(rank)


async def _some_of_the_ranks(rank: int) -> None:
    group = await dist.new_group([2, 0], sort_ranks=False)
    if rank == 1:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
        return
    assert dist.get_backend(group) == "mpi"
    assert dist.get_rank(group) == (0 if rank == 2 else 1)
    outputs = [np.zeros(1), np.zeros(1)]
    await dist.all_gather(outputs, np.full(1, float(rank)), group)
    assert [output[0] for output in outputs] == [2, 0]
    tensor = np.full(3, rank)
    await dist.broadcast(tensor, 0, group)
    assert tensor.tolist() == [0, 0, 0]
    if rank == 0:
        await dist.send(np.ones(2), 2, group, tag=1)
    else:
        assert (await dist.recv(group=group, tag=1)).source == 0
    await dist.destroy_process_group(group)
    with pytest.raises(dist.GroupClosedError):
        dist.barrier(group)


async def _several_at_once(rank: int) -> None:
    """Each started before the ones before it have ended, awaited in other orders."""
    every = await dist.new_group()
    pairs = [await dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    mine = [group for group in (None, every, *pairs) if group is not pairs[(rank + 1) % 3]]
    tensors = [np.full(70_000, rank + 1.0) for _ in mine]
    works = [
        dist.all_reduce(tensor, group=group) for tensor, group in zip(tensors, mine, strict=True)
    ]
    for work in works if rank else reversed(works):
        await work
    for tensor, group in zip(tensors, mine, strict=True):
        expected = sum(number + 1 for number in dist.get_process_group_ranks(group))
        assert (tensor == expected).all()


async def _only_the_members(rank: int) -> None:
    if rank:
        group = await dist.new_group([1, 2], use_local_synchronization=True)
        tensor = np.ones(3, np.int32)
        await dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2, 2, 2]


async def _another_backend(rank: int) -> None:
    """Our own streams are there beside MPI."""
    group = await dist.new_group(backend="gloo")
    tensor = np.full(3, rank)
    await dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3, 3, 3]


async def _a_backend_for_each_device(rank: int) -> None:
    """MPI has the tensors of its device, and nothing of the others'."""
    group = await dist.new_group(backend="cpu:mpi,cuda:aiodist")
    mixed = group._engine.backend
    assert isinstance(mixed, MixedBackend)
    tensor = np.full(3, rank + 1.0)
    await dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [6, 6, 6]
    comm = mixed.by_device["cpu"]._gate.comm
    mixed.by_device["cpu"]._gate.comm = None  # who calls it now fails
    other = mixed.by_device["cuda"]
    for count in (1, 300_000):
        tensor = np.full(count, rank + 1.0)
        await other.start(AllReduce(tensor, dist.ReduceOp.SUM))
        assert (tensor == 6).all()
        tensor.fill(rank)
        await other.start(Broadcast(tensor, 2))
        assert (tensor == 2).all()
        into = np.zeros(count)
        receiving = other.start(Recv(into, (rank - 1) % 3, 4))
        await other.start(Send(np.full(count, float(rank)), (rank + 1) % 3, 4))
        assert await receiving == (rank - 1) % 3
        assert (into == (rank - 1) % 3).all()
    mixed.by_device["cpu"]._gate.comm = comm
    await dist.barrier(group)
    await dist.destroy_process_group(group)


async def _several_tensors(rank: int) -> None:
    tensors = [np.full(3, rank + 1.0), np.full(3, 10.0)]
    await dist.all_reduce_multigpu(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[36.0] * 3] * 2


async def _free_loop(rank: int) -> None:
    """Others run on while a collective waits: here for a rank that waits for them."""
    if rank == 1:
        assert (await dist.recv(src=0, tag=9)).tensor[0] == 100
    turns = 0
    work = dist.all_reduce(np.ones(4))
    while rank == 0 and turns < 100:
        await asyncio.sleep(0)
        turns += 1
        assert not work.is_completed()
    if rank == 0:
        await dist.send(np.array([turns]), 1, tag=9)
    await work
