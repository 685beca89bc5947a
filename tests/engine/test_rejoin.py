"""Another process takes a lost rank's place: grow on the one side, rejoin on the other."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch.distributed

import aiodist as dist
from aiodist.api import recovery, rejoining
from aiodist.api.rejoining import _place_of, meeting_place
from aiodist.deadline import Deadline
from aiodist.groups.world import current_world
from aiodist.p2p.connector import Connector
from tests.engine.conftest import RunRanks, engine_of, newcomer, outcome, ranks_of
from tests.engine.deaths import barrier_of_all, die
from tests.limits import scaled, until
from tests.warm_python import WarmPython

State = dict[str, Any]


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_SOCKET_IFNAME", "lo")


@pytest.fixture
def store() -> dist.Store:
    return dist.MemoryStore()


@pytest.fixture(params=["memory", "file", "torch"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """What `grow` and `rejoin` take."""
    if request.param == "torch":
        yield torch.distributed.HashStore()
    elif request.param == "file":
        opened = await dist.FileStore.open(tmp_path / "store", None, Deadline(20))
        yield opened
        await opened.close()
    else:
        yield dist.MemoryStore()


@pytest.fixture(params=["tcp", "unix"])
def sockets(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    scaled: Callable[[float], float],
) -> RunRanks:
    """`run_ranks` over what a newcomer can reach."""
    monkeypatch.setenv("AIODIST_TRANSPORT", request.param)

    async def run(size: int, fn: Callable[[int], Awaitable[Any]], **options: Any) -> list[Any]:
        async with asyncio.timeout(scaled(20)):
            return await dist_run(size, fn, request.param, **options)

    from aiodist.testing.in_process import run_ranks as dist_run

    return run


async def all_work(size: int) -> None:
    assert dist.get_world_size() == size
    assert dist.get_rank() == current_world().rank
    for length in (3, 200_000):
        data = np.full(length, float(dist.get_rank()))
        await dist.all_reduce(data)
        assert (data == sum(range(size))).all()
    right, left = (dist.get_rank() + 1) % size, (dist.get_rank() - 1) % size
    got = np.zeros(1)
    work = dist.irecv(got, left, tag=4)
    await dist.send(np.full(1, float(dist.get_rank())), right, tag=4)
    await work
    assert got[0] == left
    for local in (False, True):
        made = await dist.new_group(range(size), use_local_synchronization=local)
        assert isinstance(made, dist.ProcessGroup)
        await dist.barrier(made)
    await dist.barrier()


@pytest.mark.parametrize("dead", [0, 1])
async def test_a_replacement_takes_the_place_of_the_lost(
    sockets: RunRanks, any_store: Any, dead: int
) -> None:
    store = any_store
    over = asyncio.Barrier(3)

    async def replacement() -> None:
        group = await dist.rejoin(store, dead, timeout=20)
        assert group.newcomers == (dead,)
        state: State = {"w": np.zeros(4), "old": 1}
        assert await dist.sync_state(state) is state
        assert list(state) == ["w", "step"]
        assert (state["w"] == 7).all()
        assert state["step"] == 3
        await all_work(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == dead:
            await die()
            await newcomer(replacement)
        else:
            assert isinstance(await outcome(dist.barrier()), dist.DistError)
            small = await dist.shrink()
            await dist.new_group(use_local_synchronization=True, ranks=small.ranks)
            group = await dist.grow(store, [dead])
            assert list(group.ranks) == [0, 1, 2]
            assert group.group_name == "default_pg~2"
            await dist.sync_state({"w": np.full(4, 7.0), "step": 3})
            await all_work(3)
        await over.wait()

    await sockets(3, main)


@pytest.mark.parametrize("seconds", [0, 7.5])
async def test_a_newcomer_takes_over_the_liveness_timeout_of_the_members(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setenv("AIODIST_LIVENESS_TIMEOUT", "3" if seconds else "0")

    async def member() -> None:
        meeting: State = {"store": dist.MemoryStore(), "rank": 0, "world_size": 1, "capacity": 2}
        await dist.init_process_group(**meeting, liveness_timeout=seconds)
        await dist.grow(store, [1])
        await dist.barrier()

    async def replacement() -> None:
        await dist.rejoin(store, 1, timeout=20)
        assert current_world().endpoint.liveness_timeout == seconds
        await dist.barrier()

    async with asyncio.timeout(scaled(20)):
        await asyncio.gather(newcomer(member), newcomer(replacement))


LIVES = """
    import asyncio, os, sys
    import aiodist as dist
    from aiodist.deadline import Deadline

    async def main():
        store = await dist.FileStore.open(sys.argv[1], None, Deadline(20))
        if sys.argv[2] == "0":
            meeting = {"store": dist.MemoryStore(), "rank": 0, "world_size": 1, "capacity": 2}
            await dist.init_process_group(**meeting, liveness_timeout=20)
            await dist.grow(store, [1], timeout=20)
        else:
            os.environ["AIODIST_LIVENESS_TIMEOUT"] = "0.2"
            await dist.rejoin(store, 1, timeout=20)
        await asyncio.sleep(0.5)  # the first heartbeats came; the next ones are due in 2.5 s
        await dist.barrier()
        await dist.destroy_process_group()
        await store.close()

    asyncio.run(main())
"""


def test_a_newcomer_with_another_liveness_timeout_does_not_give_the_members_up(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    with ranks_of(LIVES, 2, tmp_path, python=warm_python.command) as processes:
        assert [process.wait(scaled(30)) for process in processes] == [0, 0]


async def test_grow_takes_the_dead_out_and_two_newcomers_in_at_once(
    sockets: RunRanks, store: dist.Store
) -> None:
    over = asyncio.Barrier(4)

    async def replacement(rank: int) -> None:
        await dist.rejoin(store, rank, timeout=20)
        await all_work(4)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank in (1, 3):
            await die()
            await newcomer(lambda: replacement(rank))
        else:
            await outcome(dist.barrier())
            await dist.grow(store, [1, 3])
            await all_work(4)
        await over.wait()

    await sockets(4, main)


@pytest.mark.parametrize("grows", [0, 1])
async def test_members_of_which_one_grows_and_one_shrinks_go_on_with_the_same_group(
    sockets: RunRanks, store: dist.Store, grows: int
) -> None:
    """A rank dies in a step that one member has made and the other has not."""
    over = asyncio.Barrier(3)

    async def replacement() -> None:
        await dist.rejoin(store, 2, timeout=20)
        await all_work(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 2:
            await die()
            await newcomer(replacement)
        else:
            group = await (dist.grow(store, [2]) if rank == grows else dist.shrink())
            if grows == 1:  # the coordinator shrinks, so the agreement waits for no newcomer
                assert list(group.ranks) == [0, 1]
                await dist.barrier()
                group = await dist.grow(store, [2])
            assert group.newcomers == (2,)
            await all_work(3)
        await over.wait()

    await sockets(3, main)


async def test_grow_without_a_newcomer_leaves_out_the_dead_and_names_them(
    sockets: RunRanks, store: dist.Store
) -> None:
    met = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        await barrier_of_all(met)
        if rank == 2:
            await die()
            return
        with pytest.raises(dist.CollectiveTimeoutError, match="no process came for rank 2"):
            await dist.grow(store, [2], timeout=scaled(0.3))
        await all_work(2)

    await sockets(3, main)


@pytest.mark.parametrize("transport", ["tcp", "shm,unix"])
async def test_capacity_lets_more_ranks_come_than_at_the_start(
    store: dist.Store,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
    scaled: Callable[[float], float],
) -> None:
    monkeypatch.setenv("AIODIST_TRANSPORT", transport)
    meeting, over = dist.MemoryStore(), asyncio.Barrier(4)

    async def member(rank: int) -> None:
        await dist.init_process_group(store=meeting, rank=rank, world_size=2, capacity=5)
        events = dist.membership()
        with pytest.raises(dist.InvalidUsageError, match="rank 4 is not in group"):
            dist.send(np.ones(1), 4)
        await all_work(2)
        group = await dist.grow(store)  # no process waits
        assert (group.ranks, group.lineage) == ((0, 1), (0, 1, 2, 3, 4))
        with pytest.raises(dist.InvalidUsageError, match="out of range"):
            await dist.grow(store, [5])
        with pytest.raises(TypeError, match="ranks must be a list of ints, not int"):
            await dist.grow(store, 0)  # type: ignore[arg-type]
        came = [newcomer(lambda new=new: later(new)) for new in (2, 3)] if rank == 0 else []
        group = await dist.grow(store, [2, 3])
        assert (group.ranks, group.newcomers) == ((0, 1, 2, 3), (2, 3))
        joined = [await anext(events) for _ in range(2)]
        assert [(event.kind, event.rank) for event in joined] == [("joined", 2), ("joined", 3)]
        await all_work(4)
        await over.wait()
        await asyncio.gather(*came)

    async def later(rank: int) -> None:
        await dist.rejoin(store, rank, timeout=20)
        await all_work(4)
        await over.wait()

    async with asyncio.timeout(scaled(20)):
        await asyncio.gather(*(newcomer(lambda rank=rank: member(rank)) for rank in (0, 1)))


async def test_a_capacity_below_the_ranks_is_refused(scaled: Callable[[float], float]) -> None:
    async def start() -> None:
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=1, capacity=0)

    async with asyncio.timeout(scaled(20)):
        with pytest.raises(dist.InvalidUsageError, match="at least the 1 ranks"):
            await newcomer(start)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"capacity": (2, 3)}, "capacity: rank 0 has 2, rank 1 has 3"),
        ({"group_name": ("", "w")}, "group_name: rank 0 has '', rank 1 has 'w'"),
        (
            {"backend": ("aiodist", "torch:gloo")},
            "backend: rank 0 has 'aiodist', rank 1 has 'torch:gloo'",
        ),
    ],
)
async def test_ranks_that_disagree_about_the_world_are_told_when_they_meet(
    values: dict[str, Sequence[Any]], told: str, scaled: Callable[[float], float]
) -> None:
    store = dist.MemoryStore()

    async def start(rank: int) -> None:
        own = {name: each[rank] for name, each in values.items()}
        await dist.init_process_group(store=store, rank=rank, world_size=2, **own)

    async with asyncio.timeout(scaled(20)):
        both = [newcomer(lambda rank=rank: start(rank)) for rank in (0, 1)]
        for error in await asyncio.gather(*both, return_exceptions=True):
            assert isinstance(error, dist.InvalidUsageError)
            assert f"the ranks disagree about {told}" in str(error)


async def test_the_coordinator_dies_before_it_has_welcomed_the_newcomer(
    sockets: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other members have the same welcome to give; the dead one is lost to all afterwards."""
    over = asyncio.Barrier(3)
    died = asyncio.Event()
    real = recovery.welcome

    async def welcome(place: dist.Store, newcomer: Any, group: dist.ProcessGroup) -> None:
        if current_world().rank == 0:
            await die()
            died.set()
            raise dist.DistStoreError("it is dead")
        await died.wait()
        await real(place, newcomer, group)

    monkeypatch.setattr(recovery, "welcome", welcome)
    monkeypatch.setattr(rejoining, "_GREETING_SECONDS", 0.2)

    async def go_on() -> None:
        with pytest.raises(dist.DistError):
            await dist.barrier()
        group = await dist.shrink()
        assert list(group.ranks) == [1, 2]
        await dist.barrier()

    async def replacement() -> None:
        group = await dist.rejoin(store, 1, timeout=20)
        assert list(group.ranks) == [0, 1, 2]
        await go_on()

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 1:
            await die()
            await newcomer(replacement)
        else:
            await outcome(dist.barrier())
            await dist.shrink()
            await dist.grow(store, [1])
            if rank == 2:
                await go_on()
        await over.wait()

    await sockets(3, main)


async def test_a_rank_may_be_replaced_again(sockets: RunRanks, store: dist.Store) -> None:
    over = asyncio.Barrier(2)

    async def replacement() -> None:
        await dist.rejoin(store, 1, timeout=20)
        await all_work(2)
        await over.wait()  # it has ended on the other rank too
        await die()

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 1:
            await die()
            for _ in range(2):
                await newcomer(replacement)
        else:
            for number in range(2):
                assert isinstance(await outcome(dist.barrier()), dist.PeerLostError)
                assert list((await dist.shrink()).ranks) == [0]
                group = await dist.grow(store, [1])
                assert group.generation == 2 * number + 2
                await all_work(2)
                await over.wait()
        await over.wait()

    await sockets(2, main)


async def test_grow_without_anybody_waiting_is_the_same_group(
    inproc: RunRanks, store: dist.Store
) -> None:
    async def main(rank: int) -> None:
        for _ in range(3):
            group = await dist.grow(store)
            assert engine_of(group) is current_world().default_group()
            assert group.generation == 0
            await dist.barrier()

    await inproc(3, main)


async def test_a_loop_that_calls_grow_in_every_step_keeps_a_limited_number_of_agreements(
    inproc: RunRanks, store: dist.Store
) -> None:
    async def main(rank: int) -> None:
        for _ in range(50):
            await dist.grow(store)
        agreements = current_world().default_group().agreements
        for kept in (agreements._agreements, agreements._decided, agreements._leads):
            assert len(kept) < 20

    await inproc(2, main)


async def test_grow_names_the_ranks_without_a_newcomer(inproc: RunRanks, store: dist.Store) -> None:
    over = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 1:
            await die()
        else:
            await outcome(dist.barrier())
            group = await dist.shrink()
            for _ in range(2):
                with pytest.raises(dist.CollectiveTimeoutError, match="no process came for rank 1"):
                    await dist.grow(store, [1], timeout=0.05)
                await dist.barrier(group)
        await over.wait()

    await inproc(3, main)


@pytest.mark.parametrize("trouble", ["failure", "silence", "nonsense", "no rank info"])
async def test_the_members_hear_why_the_coordinator_looks_no_more(
    inproc: RunRanks, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has no timeout."""
    monkeypatch.setattr(recovery, "_GRACE_SECONDS", 0.4)
    over = asyncio.Barrier(3)
    store = Troubled(trouble) if trouble in ("failure", "silence") else dist.MemoryStore()
    timeout = 0.1 if trouble == "silence" else None
    entry = b"what?" if trouble == "nonsense" else msgpack.packb([1, b"what?", b"a name"])
    await store.set(f"rejoin/{_place_of(1)}", entry)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 1:
            await die()
        else:
            await outcome(dist.barrier())
            group = await dist.shrink()
            with pytest.raises(dist.CollectiveTimeoutError, match="looks no more: "):
                await dist.grow(store, [1], timeout)
            await dist.barrier(group)
            await store.delete_key(f"rejoin/{_place_of(1)}")
            if trouble != "silence":
                assert await dist.grow(store) is group
        await over.wait()

    await inproc(3, main, timeout=math.inf)


class Troubled(dist.MemoryStore):
    """A store that another process served, which has ended, or was stopped."""

    def __init__(self, trouble: str) -> None:
        super().__init__()
        self.trouble = trouble

    async def check(self, keys: Sequence[str]) -> bool:
        if self.trouble == "silence":
            await asyncio.Event().wait()
        raise dist.DistStoreError("the store has gone")


async def test_an_entry_that_is_deleted_as_a_member_reads_it_is_none(
    monkeypatch: pytest.MonkeyPatch, scaled: Callable[[float], float]
) -> None:
    """The launcher does so when a process has ended that waited to be taken in."""
    monkeypatch.setattr(rejoining, "_ENTRY_SECONDS", 0.05)

    class Deleting(dist.MemoryStore):
        async def check(self, keys: Sequence[str]) -> bool:
            return await super().check(keys) and await super().delete_key(keys[0])

    store = Deleting()
    await store.set(_place_of(1), b"entry")
    async with asyncio.timeout(scaled(5)):
        assert await rejoining.waiting_at(store, [0, 1]) == []


async def test_a_process_without_the_jobs_secret_is_refused_and_the_next_one_is_taken_in(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIODIST_SECRET", "of the job")
    refused = asyncio.Event()

    async def member() -> None:
        meeting: State = {"store": dist.MemoryStore(), "rank": 0, "world_size": 1, "capacity": 2}
        await dist.init_process_group(**meeting)
        monkeypatch.delenv("AIODIST_SECRET")
        await dist.grow(store, [1])
        await all_work(2)

    async def stranger() -> None:
        await until(lambda: "AIODIST_SECRET" not in os.environ)
        with pytest.raises(
            dist.InvalidUsageError, match="rank 1: it does not know the job's secret"
        ):
            await dist.rejoin(store, 1, timeout=20)
        monkeypatch.setenv("AIODIST_SECRET", "of the job")
        refused.set()

    async def replacement() -> None:
        await refused.wait()
        await dist.rejoin(store, 1, timeout=20)
        await all_work(2)

    await asyncio.gather(newcomer(member), newcomer(stranger), newcomer(replacement))
    assert caplog.text.count("would become rank 1 does not know this job's secret") == 1


async def test_grow_waits_for_rank_0_of_an_array(inproc: RunRanks, store: dist.Store) -> None:
    """An array that holds 0 alone is false, and yet names a rank."""
    over = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 0:
            await die()
        else:
            await outcome(dist.barrier())
            await dist.shrink()
            with pytest.raises(dist.CollectiveTimeoutError, match="no process came for rank 0"):
                await dist.grow(store, np.array([0]), timeout=0.05)
        await over.wait()

    await inproc(3, main)


async def test_shrink_and_grow_meet(inproc: RunRanks, store: dist.Store) -> None:
    """Rank 0, which coordinates, sees no change; rank 1 has revoked the group."""

    async def main(rank: int) -> None:
        if rank == 1:
            group = await dist.shrink()
        else:
            group = await dist.grow(store)
            if group.generation == 0:
                with pytest.raises(dist.GroupRevokedError):
                    await dist.recv(np.zeros(1), 1)
                group = await dist.shrink()
        assert group.generation == 1
        await dist.barrier()

    await inproc(2, main)


async def test_shrink_has_one_deadline_though_it_agrees_twice(
    inproc: RunRanks, store: dist.Store
) -> None:
    """Rank 0 finds by `grow` that nothing has changed, and does not come to the second agreement."""
    over = asyncio.Event()

    async def main(rank: int) -> None:
        if rank == 0:
            await asyncio.sleep(0.4)
            await dist.grow(store)
            await over.wait()
            return
        began = asyncio.get_running_loop().time()
        with pytest.raises(dist.CollectiveTimeoutError, match=r"timed out after 0.5 s"):
            await dist.shrink(timeout=0.5)
        assert asyncio.get_running_loop().time() - began < 0.85
        over.set()

    await inproc(2, main)


async def test_rejoin_says_when_no_group_admits_it(store: dist.Store) -> None:
    async def alone() -> None:
        with pytest.raises(dist.StoreTimeoutError, match="no member has taken this process in"):
            await dist.rejoin(store, 1, timeout=0.05)
        assert not dist.is_initialized()

    await newcomer(alone)


async def test_a_rejoin_that_waits_long_says_so_once(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job may have ended, and the default timeout is 30 minutes."""
    monkeypatch.setattr(rejoining, "_LONG_WAIT_SECONDS", 0.0)

    async def alone() -> None:
        waiting = asyncio.create_task(dist.rejoin(store, 1))
        await until(lambda: "rank 1 has waited 0 s in rejoin() for a member" in caplog.text)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await newcomer(alone)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("end", ["timeout", "cancellation"])
async def test_grow_leaves_out_a_process_that_waits_no_more(
    any_store: Any, end: str, scaled: Callable[[float], float]
) -> None:
    async def gives_up() -> None:
        # In time it says that it waits, and then gives up.
        await dist.rejoin(any_store, 1, timeout=scaled(0.2) if end == "timeout" else 20)

    async def member() -> None:
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=1, capacity=2)
        group = await dist.grow(any_store)
        assert list(group.ranks) == [0]

    async with asyncio.timeout(scaled(20)):
        waiting = newcomer(gives_up)
        async with meeting_place(current_world(), any_store, Deadline(20)) as place:
            await place.wait([_place_of(1)], Deadline(20))
        if end == "cancellation":
            waiting.cancel()
        with pytest.raises((dist.StoreTimeoutError, asyncio.CancelledError)):
            await waiting
        await newcomer(member)


async def test_a_missing_argument_of_rejoin_is_named(
    inproc: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "AIODIST_REJOIN_STORE"):
        monkeypatch.delenv(name, raising=False)

    async def alone() -> None:
        with pytest.raises(dist.InvalidUsageError, match="pass rank="):
            await dist.rejoin(store)
        with pytest.raises(dist.InvalidUsageError, match="rank=-2 is impossible"):
            await dist.rejoin(store, -2)
        with pytest.raises(TypeError, match="rank must be an int, not str"):
            await dist.rejoin(store, "1")  # type: ignore[arg-type]
        with pytest.raises(dist.StoreTimeoutError):
            await dist.rejoin(store, np.int64(1), timeout=0.05)  # type: ignore[arg-type]
        with pytest.raises(dist.InvalidUsageError, match="--max-restarts"):
            await dist.rejoin(rank=1)
        with pytest.raises(dist.NotInitializedError):
            await dist.grow(store)

    await newcomer(alone)

    async def main(rank: int) -> None:
        with pytest.raises(dist.InvalidUsageError, match="--max-restarts"):
            await dist.grow()
        with pytest.raises(dist.InvalidUsageError, match="a rank already"):
            await dist.rejoin(store, 1)
        with pytest.raises(dist.InvalidUsageError, match="out of range"):
            await dist.grow(store, [5])
        with pytest.raises(TypeError, match="ranks must be a list of ints, not int"):
            await dist.grow(store, 0)  # type: ignore[arg-type]
        assert not await dist.register_elastic()
        assert not dist.is_replacement()
        assert dist.get_restart_count() == 0

    await inproc(2, main)


async def outlives_rank_2(
    rank: int, met: asyncio.Barrier, replacement: Callable[[], Awaitable[None]]
) -> bool:
    """Rank 2 dies and is replaced, which returns False; the others shrink, which returns True."""
    await barrier_of_all(met)
    if rank == 2:
        await die()
        await newcomer(replacement)
        return False
    assert isinstance(await outcome(dist.barrier()), dist.DistError)
    await dist.shrink()
    return True


async def test_a_member_follows_late_by_a_second_call_of_grow(
    sockets: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer connects to it meanwhile, and the member still counts that place as empty."""
    monkeypatch.setattr(recovery, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(rejoining, "_GREETING_SECONDS", 0.2)
    timed_out, is_in = asyncio.Event(), asyncio.Event()

    met = asyncio.Barrier(3)

    async def replacement() -> None:
        await dist.rejoin(store, 2, timeout=20)
        is_in.set()
        await all_work(3)

    async def main(rank: int) -> None:
        if not await outlives_rank_2(rank, met, replacement):
            return
        if rank == 1:
            with pytest.raises(dist.CollectiveTimeoutError, match="a later call goes on"):
                await dist.grow(store, [2], timeout=0.1)
            timed_out.set()
            await is_in.wait()
            await asyncio.sleep(0.5)  # the newcomer dials this rank
        else:
            await timed_out.wait()
        assert list((await dist.grow(store, [2])).ranks) == [0, 1, 2]
        await all_work(3)

    await sockets(3, main)


async def test_grow_that_is_cancelled_while_it_welcomes_is_called_again(
    sockets: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcome, welcomes = recovery.welcome, asyncio.Event()

    async def slow(place: Any, newcomer: Any, group: Any) -> None:
        if dist.get_rank() == 1 and not welcomes.is_set():
            welcomes.set()
            await asyncio.Event().wait()
        await welcome(place, newcomer, group)

    monkeypatch.setattr(recovery, "welcome", slow)

    met = asyncio.Barrier(3)

    async def replacement() -> None:
        await dist.rejoin(store, 2, timeout=20)
        await all_work(3)

    async def main(rank: int) -> None:
        if not await outlives_rank_2(rank, met, replacement):
            return
        growing = asyncio.ensure_future(dist.grow(store, [2]))
        if rank == 1:
            await welcomes.wait()
            growing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await growing
            growing = asyncio.ensure_future(dist.grow(store, [2]))
        assert list((await growing).ranks) == [0, 1, 2]
        await all_work(3)

    await sockets(3, main)


async def test_grow_ends_in_time_where_the_store_no_longer_answers_a_welcome(
    sockets: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_GRACE_SECONDS", 0.2)
    welcome = recovery.welcome

    async def frozen(place: Any, newcomer: Any, group: Any) -> None:
        await welcome(place, newcomer, group)
        await asyncio.Event().wait()

    monkeypatch.setattr(recovery, "welcome", frozen)

    met = asyncio.Barrier(3)

    async def replacement() -> None:
        await dist.rejoin(store, 2, timeout=20)
        await all_work(3)

    async def main(rank: int) -> None:
        if await outlives_rank_2(rank, met, replacement):
            assert list((await dist.grow(store, [2], timeout=2)).ranks) == [0, 1, 2]
            await all_work(3)

    await sockets(3, main)


async def test_grow_that_is_cancelled_in_any_turn_of_the_loop_is_called_again(
    inproc: RunRanks, store: dist.Store, scaled: Callable[[float], float]
) -> None:
    async def main(rank: int) -> None:
        for turns in range(20):
            growing = asyncio.ensure_future(dist.grow(store))
            if rank == 0:  # it looks for newcomers
                for _ in range(turns):
                    await asyncio.sleep(0)
                if growing.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await growing
                    growing = asyncio.ensure_future(dist.grow(store))
            await growing
            await dist.barrier()

    async with asyncio.timeout(scaled(5)):
        await inproc(2, main)


async def test_a_member_stops_dialling_a_process_that_is_replaced(
    sockets: RunRanks, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the other members have noticed its end, and they agree on the next process."""
    connect, dials, gave_up = Connector.connect, asyncio.Event(), asyncio.Event()

    async def slow(connector: Connector, peer: Any, own: Any) -> Any:
        if (own.rank, peer.rank) == (1, 2) and not dials.is_set():
            dials.set()
            try:
                await asyncio.Event().wait()
            finally:
                gave_up.set()
        return await connect(connector, peer, own)

    monkeypatch.setattr(Connector, "connect", slow)

    async def replacement() -> None:
        await dist.rejoin(store, 2, timeout=20)
        await all_work(3)

    async def main(rank: int) -> None:
        if rank == 2:
            await dials.wait()
            await die()
            await newcomer(replacement)
            return
        work = dist.recv(None, 2) if rank == 0 else dist.send(np.ones(1), 2)
        assert isinstance(await outcome(work), dist.DistError)
        await dist.shrink()
        await dist.grow(store, [2])
        await all_work(3)
        assert gave_up.is_set()

    await sockets(3, main)
