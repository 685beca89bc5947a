"""The kind of a message, tensor or object, is part of its match."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks

COUNT = 6


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_tensors_and_objects_with_one_tag_do_not_take_each_others_messages(
    transport: str,
) -> None:
    async def recv_tensors() -> list[float]:
        into, found = torch.zeros(1), []
        for _ in range(COUNT):
            await dist.recv(into, 0)
            found.append(into.item())
        return found

    async def recv_objects() -> list[Any]:
        objects, found = [None], []
        for _ in range(COUNT):
            await dist.recv_object_list(objects, 0)
            found.append(objects[0])
        return found

    async def on_rank(rank: int) -> None:
        if rank == 0:
            for number in range(COUNT):
                await dist.send_object_list([f"object {number}"], 1)
                await dist.send(torch.tensor([float(number)]), 1)
            return
        async with asyncio.TaskGroup() as tasks:
            tensors = tasks.create_task(recv_tensors())
            objects = tasks.create_task(recv_objects())
        assert tensors.result() == [float(number) for number in range(COUNT)]
        assert objects.result() == [f"object {number}" for number in range(COUNT)]

    await run_ranks(2, on_rank, transport, timeout=20)


async def test_objects_are_matched_by_their_tag() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send_object_list(["one"], 1, tag=1)
            await dist.send_object_list(["two"], 1, tag=2)
            return
        objects: list[Any] = [None]
        assert await dist.recv_object_list(objects, tag=2) == 0
        assert objects == ["two"]
        assert await dist.recv_object_list(objects, 0, tag=1) == 0
        assert objects == ["one"]

    await run_ranks(2, on_rank, timeout=20)


async def test_a_receive_from_any_rank_takes_messages_of_its_own_kind_alone() -> None:
    async def on_rank(rank: int) -> None:
        if rank:
            await dist.send_object_list([rank], 0)
            await dist.send(torch.tensor([rank]), 0)
            return
        received = [await dist.recv() for _ in range(2)]
        assert sorted((got.source, got.tensor.item()) for got in received) == [(1, 1), (2, 2)]
        objects: list[Any] = [None]
        for _ in range(2):
            assert await dist.recv_object_list(objects) == objects[0]

    await run_ranks(3, on_rank, timeout=20)


async def test_a_timeout_names_the_kind_of_the_message_and_what_else_came() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send(torch.zeros(1), 1, tag=3)
            await dist.barrier()
            await dist.barrier()
            return
        await dist.barrier()
        with pytest.raises(
            dist.CollectiveTimeoutError,
            match=r"recv_object from rank 0 with tag 3 .*tensors with tag 3",
        ):
            await dist.recv_object_list([None], 0, tag=3, timeout=0.05)
        await dist.recv(torch.zeros(1), 0, tag=3)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=20)
