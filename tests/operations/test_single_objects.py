"""Single objects by messages, and tensors of which only their senders know the shape."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends.object_messages import ObjectMessages
from aiodist.testing.in_process import run_ranks


@dist.register_type
@dataclass
class Request:
    number: int
    data: Any


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_an_object_and_its_source_arrive(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        if rank:
            await dist.send_object({"from": rank}, 0)
            await dist.send_object(Request(rank, np.full(300_000, rank)), 0, tag=5)
            return
        found = [await dist.recv_object() for _ in range(2)]
        assert {source for _, source in found} == {1, 2}
        assert all(obj == {"from": source} for obj, source in found)
        for rank in (2, 1):
            obj, source = await dist.recv_object(rank, tag=5)
            assert isinstance(obj, Request)
            assert (obj.number, source) == (rank, rank)
            assert (obj.data == rank).all()

    await run_ranks(3, on_rank, transport, timeout=20)


async def test_a_hundred_objects_in_flight_keep_their_order() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await asyncio.gather(*(dist.send_object(n, 1, tag=n % 3) for n in range(100)))
        else:
            receives = [dist.recv_object(0, tag=n % 3) for n in range(100)]
            assert [(await work).obj for work in receives] == list(range(100))

    await run_ranks(2, on_rank, timeout=20)


@pytest.mark.parametrize("transport", ["inproc", "shm"])
@pytest.mark.parametrize("src", [0, None])
async def test_receives_that_wait_get_short_long_and_refused_objects_in_order(
    transport: str, src: int | None
) -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            for obj in ("short", np.full(200_000, 7), lambda: 0, "last"):
                with contextlib.suppress(TypeError):
                    await dist.send_object(obj, 1)
            await dist.barrier()
            return
        works = [dist.recv_object(src) for _ in range(5)]
        await dist.barrier()
        assert await works[0] == ("short", 0)
        array, source = await works[1]
        assert (array == 7).all()
        assert source == 0
        with pytest.raises(dist.DistBackendError, match="rank 0 could not send"):
            await works[2]
        assert await works[3] == ("last", 0)
        assert [work.source_rank() for work in (*works[:2], works[3])] == [0, 0, 0]
        assert not works[4].is_completed()
        works[4].cancel()
        with pytest.raises(asyncio.CancelledError):
            await works[4]
        received = [op for op in dist.recent_operations() if op.operation == "recv_object"]
        assert [op.state for op in received] == ["done", "done", "failed", "done", "cancelled"]
        await dist.barrier()

    await run_ranks(2, on_rank, transport, timeout=20)


async def test_a_receive_that_waits_makes_no_coroutine_for_a_short_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.barrier()
            await dist.send_object("short", 1)
            return
        work = dist.recv_object(0)
        monkeypatch.setattr(ObjectMessages, "receive", None)
        await dist.barrier()
        assert await work == ("short", 0)

    await run_ranks(2, on_rank, timeout=20)


async def test_single_objects_and_lists() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send_object_list([1, 2], 1)
            await dist.send_object("no list", 1)
            await dist.send_object(object(), 1, allow_pickle=True)
        else:
            assert await dist.recv_object() == ([1, 2], 0)
            with pytest.raises(dist.InvalidUsageError, match="is a str and no list"):
                await dist.recv_object_list([None])
            with pytest.raises(TypeError, match="allow_pickle"):
                await dist.recv_object()

    await run_ranks(2, on_rank, timeout=20)


async def test_an_object_that_cannot_travel_raises_at_the_call() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            with pytest.raises(TypeError, match=r"obj\['a'\] is a function"):
                dist.send_object({"a": lambda: 0}, 1)
            with pytest.raises(dist.InvalidUsageError, match="tag"):
                dist.send_object(1, 1, tag=1 << 70)
            with pytest.raises(dist.InvalidUsageError, match="is this rank itself"):
                dist.send_object(1, 0)
            await dist.send_object("well", 1)
        else:
            with pytest.raises(dist.DistBackendError, match="rank 0 could not send an object"):
                await dist.recv_object()
            assert (await dist.recv_object()).obj == "well"

    await run_ranks(2, on_rank, timeout=20)


@pytest.mark.parametrize("transport", ["inproc", "shm"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1000, 1000)])
async def test_tensors_of_shapes_that_only_their_senders_know(
    transport: str, shape: tuple[int, ...]
) -> None:
    async def on_rank(rank: int) -> None:
        tensor = torch.full(shape, 7, dtype=torch.bfloat16) if rank == 1 else None
        got = await dist.broadcast_new(tensor, 1)
        assert got.dtype == torch.bfloat16
        assert got.shape == shape
        assert (got == 7).all()
        assert rank != 1 or got is tensor
        mine: Any = np.full((rank, 2), rank, np.int16) if rank else torch.full(shape, 0.5)
        gathered = await dist.all_gather_new(mine)
        assert torch.equal(gathered[0], torch.full(shape, 0.5))
        for number in (1, 2):
            assert gathered[number].dtype == np.int16
            assert np.array_equal(gathered[number], np.full((number, 2), number))
        gathered[rank].fill(9) if rank else gathered[0].fill_(9)
        assert not (mine == 9).any()

    await run_ranks(3, on_rank, transport, timeout=20)


async def test_the_source_of_broadcast_new_gets_what_it_passed() -> None:
    given = np.ones((1, 2)).view(np.matrix)

    async def on_rank(rank: int) -> None:
        got = await dist.broadcast_new(None if rank else given, 0)
        assert (got is given) == (rank == 0)

    await run_ranks(2, on_rank, timeout=20)


async def test_broadcast_new_wants_a_tensor_of_its_source_alone() -> None:
    async def on_rank(rank: int) -> None:
        with pytest.raises(dist.InvalidUsageError, match="only the source"):
            dist.broadcast_new(None if rank == 0 else torch.ones(1), 0)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=20)
