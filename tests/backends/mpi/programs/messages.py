"""Messages over MPI: what the matrix does not ask."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import current_world

LONG = 300_000
"""Elements of a message that MPI does not send unasked."""


async def messages() -> None:
    """On three ranks."""
    rank = dist.get_rank()
    await _in_order(rank)
    await _from_anybody(rank)
    await _taken_back(rank)
    await _taken_back_as_it_came(rank)
    await _taken_back_after_it_came(rank)
    await _of_another_shape(rank)
    await _objects(rank)
    await _refused(rank)


async def _in_order(rank: int) -> None:
    """Messages of a tag stay in order, long ones between short ones; another tag overtakes."""
    lengths = [1, LONG, 3, 0, LONG, 2]
    if rank == 0:
        works = [dist.isend(np.full(n, i, np.int64), 1, tag=5) for i, n in enumerate(lengths)]
        await dist.send(np.array([7]), 1, tag=6)
        for work in works:
            await work
    elif rank == 1:
        assert (await dist.recv(src=0, tag=6)).tensor[0] == 7
        for i, n in enumerate(lengths):
            found = (await dist.recv(src=0, tag=5)).tensor
            assert found.shape == (n,)
            assert (found == i).all()


async def _from_anybody(rank: int) -> None:
    if rank:
        await dist.send(np.full(LONG, rank), 0, tag=1)
        return
    works = [dist.irecv(np.empty(LONG, np.int64), tag=1) for _ in range(2)]
    sources = [await work for work in works]
    assert sorted(sources) == [1, 2]
    assert [work.source_rank() for work in works] == sources


async def _taken_back(rank: int) -> None:
    """A receive that was cancelled, or ran out of time, leaves its message to the next."""
    if rank == 0:
        untouched = np.zeros(2)
        work = dist.irecv(untouched, 1, tag=2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        with pytest.raises(dist.CollectiveTimeoutError, match="recv from rank 1 with tag 2"):
            await dist.recv(src=1, tag=2, timeout=0.01)
        await dist.barrier()
        into = np.zeros(2)
        assert await dist.recv(into, 1, tag=2) == 1
        assert into.tolist() == [1, 1]
        assert untouched.tolist() == [0, 0]
    else:
        await dist.barrier()
        if rank == 1:
            await dist.send(np.ones(2), 0, tag=2)


async def _taken_back_as_it_came(rank: int) -> None:
    """A message that a receive has got as it is cancelled goes to the receive that waits already."""
    from mpi4py import MPI

    into, go = [np.zeros(1) for _ in range(3)], bytearray(1)
    if rank == 1:
        works = [dist.irecv(each, 0, tag=3) for each in into]
        comm = current_world().default_group().backend._gate.comm  # type: ignore[attr-defined]
        MPI.COMM_WORLD.Send(go, 0)  # from here on the loop of this rank does not turn
        end = time.monotonic() + 30
        while not comm.Iprobe(0) and time.monotonic() < end:  # MPI puts away what comes before it
            pass
        works[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await works[0]
        assert [await work for work in works[1:]] == [0, 0]
        assert [each.item() for each in into] == [0, 1, 2]
        assert (await dist.recv(src=0, tag=4)).tensor.item() == 3
    elif rank == 0:
        MPI.COMM_WORLD.Recv(go, 1)
        for number, tag in ((1, 3), (2, 3), (3, 4)):
            await dist.send(np.full(1, float(number)), 1, tag=tag)


async def _taken_back_after_it_came(rank: int) -> None:
    """A message that has come whole, and whose task is cancelled before its next step, is not lost."""
    for length in (1, LONG):
        if rank == 0:
            await dist.send(np.full(length, 5.0), 1)
            await dist.send(np.full(length, 6.0), 1)
        elif rank == 1:
            work = dist.irecv(np.zeros(length), 0)
            task = asyncio.ensure_future(work)
            work._when_done(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [(await dist.recv(src=0)).tensor[0] for _ in range(2)] == [5, 6]


async def _of_another_shape(rank: int) -> None:
    """A message that does not fit, short or long, is dropped; the next one comes."""
    for length in (3, LONG):
        if rank == 0:
            await dist.send(np.ones(length), 1)
            await dist.send(np.ones(2), 1)
        elif rank == 1:
            with pytest.raises(dist.InvalidUsageError, match=rf"rank 0 sent float64\[{length}\]"):
                await dist.recv(np.ones(2), 0)
            assert await dist.recv(np.zeros(2), 0) == 0


async def _objects(rank: int) -> None:
    sent: list[Any] = [{"rank": rank}, "x" * 10_000]
    if rank == 2:
        await dist.send_object_list(sent, 1)
    elif rank == 1:
        found: list[Any] = [None, None]
        assert await dist.recv_object_list(found) == 2
        assert found == [{"rank": 2}, "x" * 10_000]
    gathered: list[Any] = [None] * 3
    await dist.all_gather_object(gathered, sent)
    assert [each[0]["rank"] for each in gathered] == [0, 1, 2]
    mine: list[Any] = [None]
    await dist.scatter_object_list(mine, gathered if rank == 1 else None, 1)
    assert mine[0] == sent


async def _refused(rank: int) -> None:
    """At once, and nothing is sent."""
    for tag in (-1, 1 << 40):
        for call in (
            lambda tag=tag: dist.send(np.ones(1), (rank + 1) % 3, tag=tag),
            lambda tag=tag: dist.recv(np.ones(1), tag=tag),
            lambda tag=tag: dist.recv(tag=tag),
        ):
            with pytest.raises(dist.InvalidUsageError, match=r"tag .* does not travel over this"):
                call()
    with pytest.raises(dist.InvalidUsageError, match="is float32, it must be float64"):
        dist.all_gather([np.ones(1, np.float32) for _ in range(3)], np.ones(1))
    with pytest.raises(dist.InvalidUsageError, match="output_tensor has 4 elements"):
        dist.all_gather_into_tensor_init(np.ones(4), np.ones(1))
    await dist.barrier()
