"""Nothing stays behind: tensors, tasks, timers, sockets, works."""

from __future__ import annotations

import asyncio
import gc
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.work import Work
from aiodist.groups.world import World, current_world
from aiodist.observe.recorder import DEFAULT_SIZE
from aiodist.p2p.outbox import EAGER_BYTES
from aiodist.testing.in_process import run_ranks
from aiodist.wire.frames import TENSOR
from tests.engine.conftest import RunRanks, outcome
from tests.limits import until

Start = Callable[[], Work[Any]]
SIZES = [4, EAGER_BYTES // 2]


class Array(np.ndarray):
    """A numpy array that can be watched."""


def watched(size: int) -> tuple[Array, weakref.ref[Array]]:
    array = np.zeros(size).view(Array)
    return array, weakref.ref(array)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """What is freed is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


OPERATIONS: dict[str, Callable[[int, Any], Work[Any]]] = {
    "send and recv": lambda rank, a: dist.isend(a, 1) if rank == 0 else dist.irecv(a, 0),
    "from anybody": lambda rank, a: dist.isend(a, 1) if rank == 0 else dist.irecv(a),
    "all_reduce": lambda rank, a: dist.all_reduce(a),
    "broadcast": lambda rank, a: dist.broadcast(a, 0),
    "reduce": lambda rank, a: dist.reduce(a, 0),
    "gather": lambda rank, a: dist.gather(a, [a, np.zeros_like(a)] if rank == 0 else None, 0),
}


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_tensor_of_a_finished_operation_is_free(
    ranks: RunRanks, operation: str, size: int
) -> None:
    call = OPERATIONS[operation]

    async def main(rank: int) -> None:
        await dist.barrier()
        array, freed = watched(size)
        work = call(rank, array)
        await work
        del array
        await dist.barrier()
        assert freed() is None, gc.get_referrers(freed())
        gone = weakref.ref(work)
        del work
        assert gone() is None

    await ranks(2, main)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["cancelled", "timed out", "cancelled by another", "mismatch"])
async def test_the_tensor_of_a_failed_operation_is_free(
    ranks: RunRanks, way: str, size: int
) -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        array, freed = watched(size)
        if way == "mismatch":
            work = dist.all_reduce(array if rank else array[1:])
        elif way == "cancelled by another" and rank:
            await until(lambda: bool(current_world().default_group()._failures))
            work = dist.all_reduce(array)
        else:
            work = dist.all_reduce(array, timeout=0.02 if way == "timed out" else None)
            if rank == 0 and way.startswith("cancelled"):
                work.cancel()
        error = await outcome(work)
        if way != "cancelled":  # there, a rank may have had all it needed
            assert error is not None
        del array
        await dist.barrier()
        assert freed() is None

    if way == "timed out":

        async def late(rank: int) -> None:
            if rank:
                group = current_world().default_group()
                await dist.barrier()
                await until(lambda: bool(group._failures))
                assert await outcome(dist.barrier()) is not None
                await dist.barrier()
            else:
                await main(rank)

        await ranks(2, late)
    else:
        await ranks(2, main)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("size", SIZES)
async def test_the_tensor_of_a_cancelled_receive_or_send_is_free(
    ranks: RunRanks, size: int
) -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        array, freed = watched(size)
        work = dist.irecv(array, 1 - rank, tag=1)
        work.cancel()
        assert await outcome(work) is not None
        del array, work
        assert freed() is None
        array, freed = watched(EAGER_BYTES)
        send = dist.isend(array, 1 - rank, tag=2)
        send.cancel()
        assert await outcome(send) is not None
        del array, send
        await dist.barrier()
        assert freed() is None

    await ranks(2, main)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("as_task", [False, True])
async def test_an_await_that_fails_keeps_nothing_of_its_caller(
    inproc: RunRanks, as_task: bool
) -> None:
    async def caller(rank: int) -> weakref.ref[Array]:
        _local, freed = watched(1)
        operation = partial(dist.irecv, np.zeros(1), 1 - rank, timeout=0.01)
        try:
            await (asyncio.ensure_future(operation()) if as_task else operation())
        except dist.CollectiveTimeoutError:
            return freed
        raise AssertionError("no error")

    async def main(rank: int) -> None:
        freed = await caller(rank)
        await dist.barrier()
        assert freed() is None

    await inproc(2, main)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="free-threaded Python lets an object wait for the thread that made it, or for the collector",
)
@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(
    "wait",
    [
        lambda start, loop: start().wait(),
        lambda start, loop: start().get_future().wait(),
        lambda start, loop: start().get_future().result(),
        lambda start, loop: asyncio.run_coroutine_threadsafe(start(), loop).result(),
    ],
    ids=["wait", "future's wait", "future's result", "in a task of the loop"],
)
async def test_a_wait_in_a_thread_that_fails_keeps_nothing_of_its_caller(
    inproc: RunRanks, wait: Callable[[Start, asyncio.AbstractEventLoop], object]
) -> None:
    def caller(rank: int, loop: asyncio.AbstractEventLoop) -> weakref.ref[Array]:
        _local, freed = watched(1)
        try:
            wait(partial(dist.irecv, np.zeros(1), 1 - rank, timeout=0.01), loop)
        except dist.CollectiveTimeoutError:
            return freed
        raise AssertionError("no error")

    async def main(rank: int) -> None:
        freed = await asyncio.to_thread(caller, rank, asyncio.get_running_loop())
        await dist.barrier()
        assert freed() is None

    await inproc(2, main)


async def test_nothing_runs_and_nothing_is_kept_after_the_ranks_have_ended(
    ranks: RunRanks,
) -> None:
    loop = asyncio.get_running_loop()
    worlds: list[weakref.ref[Any]] = []

    async def main(rank: int) -> None:
        world = current_world()
        worlds.append(weakref.ref(world))
        worlds.append(weakref.ref(world.endpoint))
        await dist.all_reduce(np.ones(10))
        await dist.all_reduce(np.ones(EAGER_BYTES))
        dist.irecv(np.zeros(3), 1 - rank).is_completed()  # never answered
        await dist.barrier()

    before = asyncio.all_tasks()
    await ranks(2, main)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    timers = [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]
    kept = [handle for handle in timers if "aiodist" in repr(handle)]
    assert kept == []
    gc.collect()
    assert [ref() for ref in worlds] == [None] * len(worlds)


def living() -> int:
    """How many objects of aiodist's classes there are, the collector's garbage left out."""
    gc.collect()
    return sum(str(type(each).__module__).startswith("aiodist") for each in gc.get_objects())


async def test_finished_operations_leave_no_objects_behind(inproc: RunRanks) -> None:
    """From the moment on at which the recorder is full."""

    async def operate(rank: int) -> None:
        long = np.zeros(EAGER_BYTES + 1, np.uint8)
        into = np.zeros_like(long)
        for _ in range(DEFAULT_SIZE // 4):
            await dist.barrier()
            await asyncio.gather(dist.isend(long, 1 - rank), dist.irecv(into, 1 - rank))
            work = dist.irecv(into, 1 - rank, tag=1)
            work.cancel()
            await outcome(work)
        await dist.barrier()

    async def main(rank: int) -> int:
        await operate(rank)
        before = living()
        await operate(rank)
        return living() - before

    for more in await inproc(2, main):
        assert more < DEFAULT_SIZE // 8


async def test_a_cleared_world_holds_nothing() -> None:
    world = World()
    empty = set(vars(world))
    world.clear()
    assert set(vars(world)) == empty


@pytest.mark.usefixtures("_no_collector")
async def test_memory_where_messages_of_an_unknown_group_wait_is_let_go() -> None:
    """Its sender has made a group of which this rank has not heard."""

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:aiodist")

    async def main(rank: int) -> None:
        one = np.ones(3)
        if rank == 0:
            await dist.send(one, 1)
            await dist.barrier()
            endpoint = current_world().endpoint
            assert endpoint.send(1, (TENSOR, 12345, 0), memoryview(b"x"), b"").done
            await dist.send(one, 1)
        else:
            await dist.recv(one, 0)
            await dist.barrier()
            await dist.recv(one, 0)
            assert current_world().endpoint.inbox.matcher.arrived_bytes() == 1
        await dist.barrier()

    before = maps()
    await run_ranks(2, main, "shm", timeout=20)
    assert maps() <= before
