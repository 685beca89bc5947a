"""What a collective that fails leaves behind over MPI, and how a program goes on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist

MIB = 1 << 20


async def failures() -> None:
    """On any ranks from two on."""
    await _timed_out()
    await _begin_anew()
    await _cancelled()
    await _begin_anew()
    await _cancelled_in_progress()
    await _message_out_of_time()
    await _no_other_ranks()


async def _no_other_ranks() -> None:
    """Neither fewer nor others, and the group works on; said also where a rank was given up."""
    mixed = await dist.new_group(backend="cpu:mpi,cuda:aiodist")
    for call in (
        dist.shrink,
        dist.grow,
        lambda: dist.shrink(mixed),
        dist.group.WORLD.shrink,
    ):
        with pytest.raises(
            dist.InvalidUsageError, match="cannot change: the processes of an MPI job"
        ):
            await call()
    await dist.barrier()
    await dist.barrier(mixed)


async def _begin_anew() -> None:
    await dist.destroy_process_group()
    await dist.init_process_group("mpi", timeout=60)
    tensor = np.ones(3)
    await dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()


async def _timed_out() -> None:
    """Rank 0 gives up before the others come, which then hear why."""
    beside = await dist.new_group(backend="gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        await dist.barrier(beside)
    with pytest.raises(dist.CollectiveTimeoutError, match="on rank 0") as caught:
        await dist.all_reduce(np.ones(MIB), timeout=None if rank else 0.1)
    assert caught.value.waiting_for == tuple(range(1, size))
    if not rank:
        await dist.barrier(beside)
    with pytest.raises(dist.GroupClosedError, match=r"cannot go on.* init_process_group\(\)"):
        dist.barrier()
    with pytest.raises(dist.GroupClosedError):
        dist.isend(np.ones(1), (rank + 1) % size)
    # Other groups have communicators of their own.
    await dist.barrier(beside)


async def _cancelled() -> None:
    """What was started after it fails as well; its outputs may still be written."""
    beside = await dist.new_group(backend="gloo")
    if dist.get_rank() == 0:
        task = asyncio.ensure_future(dist.broadcast(np.ones(MIB), 1))
        later = dist.barrier()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(dist.GroupClosedError):
            await later
        await dist.barrier(beside)
    else:
        await dist.barrier(beside)
        with pytest.raises((dist.CollectiveCancelledError, dist.GroupClosedError)):
            await dist.broadcast(np.ones(MIB), 1)


async def _cancelled_in_progress() -> None:
    """MPI goes on in the memory of arrays that the program has dropped."""

    async def reduce() -> None:
        await dist.all_reduce(np.ones(300_000))

    for attempt in range(8):
        tasks = [asyncio.ensure_future(reduce()) for _ in range(4)]
        if dist.get_rank() == attempt % dist.get_world_size():
            await asyncio.sleep(attempt * 2e-3)
            tasks[attempt % 4].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _begin_anew()


async def _message_out_of_time() -> None:
    """Time out in a send without a matching receive; the group stays usable."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        with pytest.raises(dist.CollectiveTimeoutError, match="send to rank 1 with tag 4"):
            await dist.send(np.full(4 * MIB, 5.0), 1, tag=4, timeout=0.05)
    await dist.barrier()
    if rank == 1:  # MPI cannot take it back: it still comes
        assert (await dist.recv(src=0, tag=4)).tensor[0] == 5.0
    tensor = np.ones(3)
    await dist.all_reduce(tensor)
    assert (tensor == size).all()
