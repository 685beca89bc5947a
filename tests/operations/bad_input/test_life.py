"""Calls before init_process_group and after destroy_process_group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import aiodist as dist
from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks
from tests.operations.bad_input.calls import sum_of_ranks, t, ts

CALLS_BEFORE_INIT: dict[str, Callable[[], object]] = {
    "all_gather": lambda: dist.all_gather(ts(4), t(4)),
    "all_gather_coalesced": lambda: dist.all_gather_coalesced([ts(4)], ts(4)),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(t(4), t(4)),
    "all_gather_object": lambda: dist.all_gather_object([None], 1),
    "all_reduce": lambda: dist.all_reduce(t(4)),
    "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(ts(4)),
    "all_to_all": lambda: dist.all_to_all(ts(4), ts(4)),
    "all_to_all_single": lambda: dist.all_to_all_single(t(4), t(4)),
    "barrier": lambda: dist.barrier(),
    "batch_isend_irecv": lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, t(4), 0)]),
    "broadcast": lambda: dist.broadcast(t(4), 0),
    "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0),
    "gather": lambda: dist.gather(t(4), ts(4), 0),
    "gather_single": lambda: dist.gather_single(t(4), t(4), 0),
    "gather_object": lambda: dist.gather_object(1, [None], 0),
    "get_backend": lambda: dist.get_backend(),
    "get_process_group_ranks": lambda: dist.get_process_group_ranks(),
    "get_rank": lambda: dist.get_rank(),
    "get_world_size": lambda: dist.get_world_size(),
    "irecv": lambda: dist.irecv(t(4), 0),
    "isend": lambda: dist.isend(t(4), 0),
    "new_group": lambda: dist.new_group(),
    "new_subgroups": lambda: dist.new_subgroups(1),
    "new_subgroups_by_enumeration": lambda: dist.new_subgroups_by_enumeration([[0]]),
    "recv": lambda: dist.recv(src=0),
    "recv_object": lambda: dist.recv_object(0),
    "recv_object_list": lambda: dist.recv_object_list([None], 0),
    "reduce": lambda: dist.reduce(t(4), 0),
    "reduce_scatter": lambda: dist.reduce_scatter(t(4), ts(4)),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(t(4), t(4)),
    "scatter": lambda: dist.scatter(t(4), ts(4), 0),
    "scatter_object_list": lambda: dist.scatter_object_list([None], [1], 0),
    "send": lambda: dist.send(t(4), 0),
    "send_object": lambda: dist.send_object(1, 0),
    "send_object_list": lambda: dist.send_object_list([1], 0),
    "set_timeout": lambda: dist.set_timeout(9),
    "split_group": lambda: dist.split_group(None, [[0]]),
}


@pytest.mark.parametrize("name", CALLS_BEFORE_INIT)
async def test_before_init_the_missing_call_is_named(name: str) -> None:
    assert not dist.is_initialized()
    with pytest.raises(NotInitializedError, match="call init_process_group"):
        CALLS_BEFORE_INIT[name]()


async def test_destroying_before_init_names_the_missing_call() -> None:
    with pytest.raises(NotInitializedError, match="init_process_group"):
        await dist.destroy_process_group()


async def test_a_second_default_group_is_refused_and_the_first_goes_on() -> None:
    async def on_rank(number: int) -> None:
        with pytest.raises(InvalidUsageError, match="twice; call destroy_process_group"):
            await dist.init_process_group("gloo", world_size=1, rank=0, store=dist.MemoryStore())
        assert await sum_of_ranks(None) == 3

    await run_ranks(2, on_rank)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("smoke", "Invalid backend: 'smoke'. Known backends: 'aiodist', 'gloo'"),
        ("cpu:gloo,cuda:smoke", "Invalid backend: 'cpu:gloo,cuda:smoke'. Known backends: 'aiod"),
    ],
)
async def test_a_backend_that_is_not_there(backend: str, words: str) -> None:
    with pytest.raises(InvalidUsageError, match=words):
        await dist.init_process_group(backend, world_size=1, rank=0, store=dist.MemoryStore())
    assert not dist.is_initialized()


async def test_a_group_of_an_ended_world_raises() -> None:
    old: list[dist.ProcessGroup] = []

    async def first(number: int) -> None:
        old.append(dist.group.WORLD)

    async def second(number: int) -> None:
        with pytest.raises(InvalidUsageError, match="make a new one"):
            dist.barrier(old[0])
        await dist.barrier()

    await run_ranks(1, first)
    await run_ranks(1, second)


async def test_after_destroy_the_default_group_is_closed() -> None:
    async def on_rank(number: int) -> None:
        world = dist.group.WORLD
        await dist.destroy_process_group()
        with pytest.raises(dist.DistError, match="was destroyed; make a new one"):
            dist.barrier(world)
        for call in (dist.barrier, dist.get_rank):
            with pytest.raises(
                NotInitializedError, match=r"since destroy_process_group\(\).*init_pr"
            ):
                call()
        assert current_world().destroyed
        await dist.init_process_group(world_size=1, rank=0, store=dist.MemoryStore())
        assert not current_world().destroyed
        with pytest.raises(dist.DistError, match="was destroyed; make a new one"):
            dist.barrier(world)
        await dist.barrier()

    await run_ranks(1, on_rank)
