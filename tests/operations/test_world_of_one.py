"""A world, and a group, of one rank: every operation does what it does with many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.errors import InvalidUsageError
from aiodist.testing.in_process import run_ranks


async def everything(group: Any) -> None:
    """All collectives, in a group whose only rank this one is."""
    me = dist.get_rank()
    for make in (torch.tensor, np.array):
        x = make([1.0, 2.0])
        for work in (
            dist.broadcast(x, me, group),
            dist.all_reduce(x, group=group),
            dist.all_reduce(x, dist.ReduceOp.AVG, group),
            dist.all_reduce_coalesced([x, x], group=group),
            dist.reduce(x, me, group=group),
            dist.barrier(group),
        ):
            assert await work is None
        assert x.tolist() == [1, 2]

        def blank(make: Callable[[list[float]], Any] = make) -> Any:
            return make([0.0, 0.0])

        for fill in (
            lambda out, x: dist.all_gather([out], x, group),
            lambda out, x: dist.all_gather_coalesced([[out]], [x], group),
            lambda out, x: dist.all_gather_into_tensor(out, x, group),
            lambda out, x: dist.gather(x, [out], me, group),
            lambda out, x: dist.gather_single(x, out, me, group),
            lambda out, x: dist.scatter(out, [x], me, group),
            lambda out, x: dist.reduce_scatter(out, [x], group=group),
            lambda out, x: dist.reduce_scatter_tensor(out, x, dist.ReduceOp.MAX, group),
            lambda out, x: dist.all_to_all([out], [x], group),
            lambda out, x: dist.all_to_all_single(out, x, group=group),
            lambda out, x: dist.all_to_all_single(out, x, [2], [2], group),
        ):
            out = blank()
            assert await fill(out, x) is None
            assert out.tolist() == [1, 2]
        await dist.all_reduce(x, dist.ReduceOp.premul_sum(3), group)
        assert x.tolist() == [3, 6]

    objects: list[Any] = [{"a": 1}]
    await dist.broadcast_object_list(objects, me, group)
    assert objects == [{"a": 1}]
    await dist.all_gather_object(objects, "x", group)
    assert objects == ["x"]
    await dist.gather_object("y", objects, me, group)
    assert objects == ["y"]
    await dist.scatter_object_list(objects, ["z"], me, group)
    assert objects == ["z"]
    for call in (
        lambda: dist.send(torch.ones(1), me, group),
        lambda: dist.recv(torch.ones(1), me, group),
        lambda: dist.send_object_list([1], me, group),
    ):
        with pytest.raises(InvalidUsageError, match="is this rank itself"):
            call()


@pytest.mark.parametrize("transport", ["inproc", "tcp", "unix"])
async def test_world_of_one(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        await everything(None)
        same = await dist.new_group([0])
        await everything(same)
        own, every = await dist.new_subgroups(1)
        assert [own] == every
        await everything(own)
        await everything(await dist.split_group(None, [[0]]))
        local = await dist.new_group([0], use_local_synchronization=True)
        await everything(local)

    await run_ranks(1, on_rank, transport, timeout=20)


async def test_groups_of_one_in_a_world_of_many() -> None:
    async def on_rank(rank: int) -> None:
        own, _ = await dist.new_subgroups(1)
        await everything(own)
        await dist.barrier()

    await run_ranks(3, on_rank, timeout=20)


async def test_nothing_is_sent_and_nothing_waits() -> None:
    """Operations on one rank are done when they return."""

    async def on_rank(rank: int) -> None:
        assert dist.all_reduce(torch.ones(1000)).is_completed()
        assert dist.barrier().is_completed()
        assert dist.all_gather_object([None], 1).is_completed()

    await run_ranks(1, on_rank, timeout=20)
