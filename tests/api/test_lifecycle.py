"""init_process_group: what is found wrong before anybody is waited for; and whose loop it is."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.api import lifecycle
from aiodist.backends import registry
from aiodist.groups.world import World, current_world, use_world
from aiodist.store.memory_store import MemoryStore
from aiodist.testing import run_ranks


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("AIODIST_TRANSPORT", "quic", "use one or several of shm, tcp, unix"),
        ("AIODIST_TRANSPORT", "shm", "names no stream"),
        ("AIODIST_SHM_BYTES", "32M", "a number of bytes, 0 or at least 1048576"),
        ("AIODIST_SHM_BYTES", str(1 << 63), r"0 or at least 1048576 and below 2\*\*63"),
        ("AIODIST_SHM_BYTES", "4096", "a number of bytes, 0 or at least 1048576"),
        ("AIODIST_TRANSPORT", "tcp,", "AIODIST_TRANSPORT='tcp,' names ''"),
        ("AIODIST_STREAMS", "two", "a number from 1 to 64, not 'two'"),
        ("AIODIST_CUDA_IPC", "yes", "AIODIST_CUDA_IPC must be 0 or 1, not 'yes'"),
        ("AIODIST_MPI_CHECK", "x", "AIODIST_MPI_CHECK must be 0 or 1"),
        ("AIODIST_TORCH_GROUP", "x", "AIODIST_TORCH_GROUP must be 0 or 1"),
        ("AIODIST_INSTEAD_OF", "glo", "AIODIST_INSTEAD_OF must be gloo"),
        ("AIODIST_STREAMS", "65", "a number from 1 to 64"),
        ("AIODIST_BUFFER_BYTES", "64M", "a number of bytes, at least 65536"),
        ("AIODIST_BUFFER_BYTES", str(1 << 64), r"at least 65536 and below 2\*\*63"),
        ("AIODIST_BUFFER_BYTES", "1000", "a number of bytes, at least 65536"),
        ("AIODIST_INIT_TIMEOUT", "soon", "a positive number of seconds, or inf, not 'soon'"),
        ("AIODIST_INIT_TIMEOUT", "0", "a positive number of seconds, or inf, not '0'"),
        ("AIODIST_HOST_ID", "\udcff", r"AIODIST_HOST_ID='\\udcff' has bytes that are no text"),
        ("AIODIST_RUN_ID", "\udcff", r"AIODIST_RUN_ID='\\udcff' has bytes that are no text"),
    ],
)
async def test_a_wrong_setting_is_found_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(dist.InvalidUsageError, match=told):
        # No other rank uses this store: a call that reaches it waits for the timeout.
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=2, timeout=50)
    assert not dist.is_initialized()


async def test_ranks_have_their_own_time_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def meet_alone(**timeouts: float) -> None:
        store = dist.MemoryStore()
        await dist.init_process_group(store=store, rank=0, world_size=2, timeout=90, **timeouts)

    with pytest.raises(dist.StoreTimeoutError, match=r"within 0\.1 s"):
        await meet_alone(init_timeout=0.1)
    monkeypatch.setenv("AIODIST_INIT_TIMEOUT", "0.2")
    with pytest.raises(dist.StoreTimeoutError, match=r"within 0\.2 s"):
        await meet_alone()
    with pytest.raises(dist.StoreTimeoutError, match=r"within 0\.1 s"):
        await meet_alone(init_timeout=0.1)


async def test_a_second_start_while_the_ranks_meet_is_told_so() -> None:
    init = partial(dist.init_process_group, rank=0, world_size=2, store=MemoryStore())
    starting = asyncio.create_task(init())
    await asyncio.sleep(0)
    with pytest.raises(dist.InvalidUsageError, match="initialize the default process group twice"):
        await init()
    starting.cancel()
    await asyncio.wait([starting])


async def test_the_time_to_meet_is_no_limit_of_operations() -> None:
    await dist.init_process_group(rank=0, world_size=1, timeout=None, init_timeout=50)
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.timeout == 30 * 60
    await dist.destroy_process_group()
    await dist.init_process_group(rank=0, world_size=1, timeout=math.inf, init_timeout=math.inf)
    assert dist.group.WORLD.timeout is None
    await dist.destroy_process_group()


async def test_the_buffer_of_messages_is_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_BUFFER_BYTES", str(1 << 20))
    for argument, bytes_kept in ((None, 1 << 20), (1 << 16, 1 << 16)):
        await dist.init_process_group(rank=0, world_size=1, buffer_bytes=argument)
        assert current_world().endpoint.window == bytes_kept
        await dist.destroy_process_group()
    with pytest.raises(
        dist.InvalidUsageError, match=r"must be at least 65536 and below 2\*\*63, not 9"
    ):
        await dist.init_process_group(rank=0, world_size=1, buffer_bytes=9)


async def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_TRANSPORT", "")
    monkeypatch.setenv("AIODIST_BUFFER_BYTES", "")
    monkeypatch.setenv("AIODIST_INIT_TIMEOUT", "")
    await dist.init_process_group(rank=0, world_size=1)
    await dist.destroy_process_group()


def test_a_loop_that_ended_without_destroy_is_named() -> None:
    async def start() -> None:
        use_world(world)
        await dist.init_process_group(rank=0, world_size=1)

    async def barrier() -> None:
        use_world(world)
        await dist.barrier()

    world = World()
    asyncio.run(start())
    with pytest.raises(dist.InvalidUsageError, match=r"has ended: .* within one asyncio.run"):
        asyncio.run(barrier())


def test_after_such_a_loop_all_starts_anew() -> None:
    async def life(end: bool) -> None:
        use_world(world)
        await dist.init_process_group(rank=0, world_size=1)
        await dist.barrier()
        if end:
            await dist.destroy_process_group()

    async def end() -> None:
        use_world(world)
        await dist.destroy_process_group()
        assert not dist.is_initialized()

    world = World()
    asyncio.run(life(end=False))
    asyncio.run(life(end=False))
    asyncio.run(end())
    asyncio.run(life(end=True))


def test_operations_and_groups_of_a_loop_that_ended_raise() -> None:
    worlds, store = [World(), World()], MemoryStore()

    async def life(rank: int) -> Any:
        use_world(worlds[rank])
        await dist.init_process_group(store=store, rank=rank, world_size=2)
        group = await dist.new_group()
        await group.barrier()
        return group, dist.irecv(np.ones(1), 1) if rank == 0 else None

    async def ranks() -> list[Any]:
        return await asyncio.gather(life(0), life(1))

    async def end(rank: int) -> None:
        use_world(worlds[rank])
        await dist.destroy_process_group()

    async def barrier(group: Any) -> None:
        use_world(worlds[0])
        await group.barrier()

    (group, receive), _ = asyncio.run(ranks())
    with pytest.raises(dist.InvalidUsageError, match="because its event loop has ended"):
        receive.wait()
    for rank in (0, 1):
        asyncio.run(end(rank))
    assert "has ended: call it, the operations" in str(receive.exception())
    with pytest.raises(dist.InvalidUsageError, match="has ended: call it, the operations"):
        asyncio.run(barrier(group))


async def test_a_backend_that_cannot_be_made_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(group: Any) -> None:
        raise RuntimeError("can't start new thread")

    meet = partial(dist.init_process_group, store=dist.MemoryStore(), rank=0, world_size=1)
    with monkeypatch.context() as patched:
        patched.setattr(registry, "bind", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            await meet()
    assert current_world().its_loop is None
    await meet()
    await dist.destroy_process_group()


async def test_a_start_that_is_cancelled_twice_leaves_an_empty_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        hangs.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(lifecycle, "exchange", hang)
    monkeypatch.setattr(lifecycle.Endpoint, "close", hang)
    starting = asyncio.create_task(dist.init_process_group(rank=0, world_size=1))
    for _ in range(2):  # in the exchange, and while the endpoint is closed
        await hangs.wait()
        hangs.clear()
        starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert current_world().its_loop is None


async def test_calls_from_elsewhere_are_told_where_the_group_lives() -> None:
    async def main(rank: int) -> None:
        with pytest.raises(dist.InvalidUsageError, match="called outside any event loop"):
            await asyncio.to_thread(dist.new_group)
        with pytest.raises(dist.InvalidUsageError, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, call())

    async def call() -> None:
        await dist.barrier()

    await run_ranks(1, main)


@pytest.mark.parametrize(
    ("variable", "arguments", "warned"),
    [
        ("1", {}, True),
        ("1", {"init_method": "env://"}, True),
        ("0", {}, False),
        ("1", {"store": MemoryStore()}, False),
        ("1", {"world_size": 1}, False),
    ],
)
async def test_a_replacement_that_does_not_rejoin_is_warned(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    arguments: dict[str, Any],
    warned: bool,
) -> None:
    monkeypatch.setenv("AIODIST_REPLACEMENT", variable)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(dist.InvalidUsageError):  # the ranks do not meet: no rank is known
        await dist.init_process_group(**arguments)
    assert ("call rejoin() in its place" in caplog.text) == warned


async def test_a_replacement_that_begins_anew_after_destroy_is_not_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await dist.init_process_group(rank=0, world_size=1)  # as rejoin() would
    await dist.destroy_process_group()
    monkeypatch.setenv("AIODIST_REPLACEMENT", "1")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(dist.InvalidUsageError):
        await dist.init_process_group()
    assert caplog.text == ""
