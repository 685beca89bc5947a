"""The public `ProcessGroup`: its names, its methods, and ``async with process_group()``."""

from __future__ import annotations

import asyncio
import inspect

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.world import World, use_world
from aiodist.testing import run_ranks
from tests.limits import scaled

NOT_BOUND = {"broadcast_multigpu", "all_reduce_multigpu", "reduce_multigpu", "all_gather_multigpu"}
"""torch 1's operations, which nothing new is written with."""

QUESTIONS = {
    name
    for name in dist.__all__
    if name.startswith("get_") or name in ("revoke", "set_timeout", "shrink", "new_subgroups")
} | {"destroy_process_group", "abort_process_group", "breakpoint", "P2POp"}
"""Take a group and start no operation on it."""

OPERATIONS = sorted(
    name
    for name in dist.__all__
    if inspect.isfunction(getattr(dist, name))
    and "group" in inspect.signature(getattr(dist, name)).parameters
    and name not in NOT_BOUND | QUESTIONS
)

FACTS = {
    "abort",
    "generation",
    "global_rank",
    "group_name",
    "group_rank",
    "lineage",
    "name",
    "newcomers",
    "rank",
    "ranks",
    "revoke",
    "set_timeout",
    "shrink",
    "size",
    "timeout",
}


def test_a_group_has_public_names_only() -> None:
    names = {name for name in dir(dist.ProcessGroup) if not name.startswith("_")}
    assert names == FACTS | set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_method_has_the_parameters_of_its_function(name: str) -> None:
    function, method = getattr(dist, name), getattr(dist.ProcessGroup, name)
    expected = [p for p in inspect.signature(function).parameters.values() if p.name != "group"]
    assert list(inspect.signature(method).parameters.values())[1:] == expected
    assert f"`aiodist.{function.__name__}`" in inspect.getdoc(method)


async def test_methods_work_on_their_group() -> None:
    async def main(rank: int) -> None:
        world = dist.group.WORLD
        assert world is not None
        assert world is dist.group.WORLD
        half = await dist.new_group([0, 1])
        x = np.full(2, rank + 1.0)
        if isinstance(half, dist.ProcessGroup):
            await half.all_reduce(x)
            assert x.tolist() == [3.0, 3.0]
            if half.rank() == 0:
                await half.send(x, 1, tag=4)
                await half.send_object({"a": 1}, group_dst=1)
            else:
                assert await half.recv(np.zeros(2), 0, 4) == 0
                assert (await half.recv_object(0)).obj == {"a": 1}
        with pytest.raises(dist.InvalidUsageError):
            world.broadcast(x, 7)
        await world.barrier()

    await run_ranks(3, main, timeout=scaled(20))


async def test_a_shrunk_group_is_a_group_with_methods() -> None:
    async def main(rank: int) -> None:
        world = dist.group.WORLD
        assert world is not None
        smaller = await world.shrink()
        assert smaller is dist.group.WORLD
        assert (smaller.generation, smaller.size()) == (1, 2)
        await smaller.barrier()

    await run_ranks(2, main, timeout=scaled(20))


async def test_a_destroyed_group_says_so_when_it_is_shrunk() -> None:
    await dist.init_process_group(rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    await dist.destroy_process_group()
    with pytest.raises(dist.GroupClosedError, match="was destroyed"):
        await group.shrink()


async def ranks_of(size: int, main: object) -> list[object]:
    """Run ``main(rank, store)`` in a world of its own for each rank; results and errors."""
    store = dist.MemoryStore()

    async def one(rank: int) -> object:
        use_world(World())
        return await main(rank, store)  # type: ignore[operator]

    tasks = [asyncio.create_task(one(rank)) for rank in range(size)]
    async with asyncio.timeout(scaled(30)):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_block_has_a_group_and_destroys_it() -> None:
    async def main(rank: int, store: dist.Store) -> float:
        async with dist.process_group(store=store, rank=rank, world_size=2, timeout=20) as group:
            assert group is dist.group.WORLD
            x = np.ones(1)
            await group.all_reduce(x)
        assert not dist.is_initialized()
        return float(x[0])

    assert await ranks_of(2, main) == [2.0, 2.0]


async def test_a_block_that_raises_frees_the_other_ranks() -> None:
    async def main(rank: int, store: dist.Store) -> None:
        async with dist.process_group(store=store, rank=rank, world_size=2) as group:
            await group.barrier()
            if rank == 0:
                raise KeyError("its own")
            await group.recv(np.zeros(1), 0)  # has 30 minutes

    own, freed = await ranks_of(2, main)
    assert isinstance(own, KeyError)
    assert isinstance(freed, dist.GroupRevokedError | dist.PeerLostError)
    assert freed.rank == 0
    assert not dist.is_initialized()


@pytest.mark.parametrize("is_in_it", [False, True])
async def test_the_other_ranks_hear_which_error_ended_a_block(is_in_it: bool) -> None:
    """Ranks 0 and 1 are in an all_reduce, which rank 2 has started, too, or not."""

    async def main(rank: int, store: dist.Store) -> None:
        async with dist.process_group(store=store, rank=rank, world_size=4) as group:
            await group.barrier()
            if rank == 2:
                if is_in_it:
                    unfinished.append(asyncio.ensure_future(group.all_reduce(np.ones(1))))
                await asyncio.sleep(0.05)
                raise ValueError("batch 17 is empty")
            await (group.recv(np.zeros(1), 2) if rank == 3 else group.all_reduce(np.ones(1)))

    unfinished: list[asyncio.Future[None]] = []
    first, second, own, third = await ranks_of(4, main)
    for each in unfinished:
        assert isinstance(each.exception(), dist.GroupClosedError)
    assert isinstance(own, ValueError)
    for freed in (first, second):
        assert isinstance(
            freed, dist.CollectiveCancelledError if is_in_it else dist.GroupRevokedError
        )
        assert freed.rank == 2
        assert "(ValueError: batch 17 is empty)" in str(freed)
    assert isinstance(third, dist.GroupRevokedError)
    assert "(ValueError: batch 17 is empty)" in str(third)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ExceptionGroup("several", [ExceptionGroup("of a task", [OSError("no disk")])]),
            "(OSError: no disk)",
        ),
        (SyntaxError("bad", ("x.py", 1, 1, "a b")), "(SyntaxError: bad (x.py, line 1))"),
        (ValueError("a\nb"), "(ValueError: a ...)"),
        (ValueError("x" * 999), f"(ValueError: {'x' * 288} ...)"),
    ],
    ids=["group", "syntax", "lines", "long"],
)
async def test_the_error_of_a_block_is_told_in_one_line(error: Exception, told: str) -> None:
    async def main(rank: int, store: dist.Store) -> None:
        async with dist.process_group(store=store, rank=rank, world_size=2) as group:
            await group.barrier()
            if rank == 0:
                raise error
            await group.recv(np.zeros(1), 0)

    own, freed = await ranks_of(2, main)
    assert own is error
    assert (
        str(freed)
        == f"rank 0 aborted group 'default_pg' {told}; shrink() gives a group to go on with"
    )


async def test_a_block_that_is_cancelled_as_it_ends_leaves_nothing_open() -> None:
    in_block = asyncio.Event()
    blocks: list[asyncio.Future[None]] = []

    async def main(rank: int, store: dist.Store) -> None:
        block = asyncio.ensure_future(one_block(rank, store))
        blocks.append(block)
        if rank == 0:
            await in_block.wait()  # the next step of the block is its end
            block.cancel()
            await asyncio.wait(blocks)
            assert block.cancelled()
        else:
            await block

    async def one_block(rank: int, store: dist.Store) -> None:
        try:
            async with dist.process_group(store=store, rank=rank, world_size=2) as group:
                if rank == 0:
                    waiting = asyncio.ensure_future(group.barrier())
                    await asyncio.sleep(0)
                    in_block.set()
                else:
                    await group.recv(np.zeros(1), 0)
        except dist.DistError:
            assert rank == 1
        finally:
            assert not dist.is_initialized()
            if rank == 0:
                with pytest.raises(dist.GroupClosedError):
                    await waiting

    assert await ranks_of(2, main) == [None, None]


async def test_a_block_may_destroy_its_group() -> None:
    async with dist.process_group(rank=0, world_size=1):
        await dist.destroy_process_group()
    assert not dist.is_initialized()


def test_the_block_shows_the_parameters_of_init() -> None:
    expected = inspect.signature(dist.init_process_group).parameters
    assert inspect.signature(dist.process_group).parameters == expected
    assert "end of the block" in inspect.getdoc(dist.process_group)
