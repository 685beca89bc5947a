"""Calls like those before: their plan completes them, before anything is made for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import (
    AllGatherSingle,
    AllReduce,
    AllToAllSingle,
    Barrier,
    Broadcast,
    Operation,
    Reduce,
    ReduceScatterSingle,
)
from aiodist.groups.world import current_world
from aiodist.shm.group_area import ASLEEP
from aiodist.testing.in_process import run_ranks
from tests.backends.at_once import at_once
from tests.engine.conftest import outcome, without_loop
from tests.limits import until

KINDS: dict[str, Callable[..., Operation[None]]] = {
    "barrier": Barrier,
    "broadcast": Broadcast,
    "all_reduce": AllReduce,
    "reduce": Reduce,
    "all_gather_into_tensor": AllGatherSingle,
    "reduce_scatter_tensor": ReduceScatterSingle,
    "all_to_all_single": AllToAllSingle,
}
"""By the name of the function: its operation, of the same arguments."""

SUM = dist.ReduceOp.SUM


def arguments(kind: str, rank: int) -> tuple[tuple[Any, ...], Callable[[], bool]]:
    """What a call of two ranks is made with, and whether it has done the right thing."""
    one, two = torch.full((2,), rank + 1.0), torch.full((4,), rank + 1.0)
    match kind:
        case "barrier":
            return (), lambda: True
        case "broadcast":
            return (one, 0), lambda: one.tolist() == [1, 1]
        case "all_reduce":
            return (one, SUM), lambda: one.tolist() == [3, 3]
        case "reduce":
            return (one, 1, SUM), lambda: one.tolist() == ([3, 3] if rank else [1, 1])
        case "all_gather_into_tensor":
            return (two, one), lambda: two.tolist() == [1, 1, 2, 2]
        case "reduce_scatter_tensor":
            return (one, two, SUM), lambda: one.tolist() == [3, 3]
    out = torch.zeros(4)
    return (out, two, None, None), lambda: out.tolist() == [1, 1, 2, 2]


def default() -> GroupEngine:
    return current_world().default_group()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_equal_call_is_over_where_the_others_are_there(kind: str) -> None:
    """It needs no running loop; its result, number and record are those of any other."""

    async def main(rank: int) -> None:
        call = getattr(dist, kind)
        for _ in range(3):
            await call(*arguments(kind, rank)[0])
        await dist.barrier()
        await dist.barrier()
        for last in range(2):
            args, is_right = arguments(kind, rank)
            if rank == last:
                await asyncio.sleep(0.01)  # the other one waits in it
                before = default().n_started
                ended = without_loop(lambda args=args: at_once(default(), KINDS[kind](*args)))
                assert ended is not None
                assert default().n_started == before + 1
                assert current_world().recorder.latest(1)[0].sequence == before
            else:
                await call(*args)
            assert is_right()
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_first_call_is_left_to_the_general_path(kind: str) -> None:
    """Nothing is started: the group's next operation is the one that would have been."""

    async def main(rank: int) -> None:
        before = default().n_started
        assert at_once(default(), KINDS[kind](*arguments(kind, rank)[0])) is None
        assert default().n_started == before
        args, is_right = arguments(kind, rank)
        await getattr(dist, kind)(*args)
        assert is_right()
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_an_equal_call_with_splits_is_another_one() -> None:
    async def main(rank: int) -> None:
        kind = "all_to_all_single"
        for _ in range(3):
            await dist.all_to_all_single(*arguments(kind, rank)[0])
        await dist.barrier()
        args, is_right = arguments(kind, rank)
        if rank == 0:
            await asyncio.sleep(0.01)  # the other one waits in it
            before = default().n_started
            assert at_once(default(), AllToAllSingle(*args[:2], [1, 3], [1, 3])) is None
            assert default().n_started == before
            assert without_loop(lambda: at_once(default(), AllToAllSingle(*args))) is not None
        else:
            await dist.all_to_all_single(*args)
        assert is_right()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_cached_call_that_has_to_wait_is_under_way() -> None:
    async def main(rank: int) -> None:
        for _ in range(4):
            await dist.barrier()
        if rank == 0:
            work = at_once(default(), Barrier())  # no other task has run yet
            assert isinstance(work, dist.Work)
            assert not work.is_completed()
            await work
        else:
            await asyncio.sleep(0.01)
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_arguments_without_a_plan_are_left_to_the_checks() -> None:
    async def main(rank: int) -> None:
        one, pg = torch.ones(2), default()
        assert at_once(pg, AllToAllSingle(one, one, [1, 1], [1, 1])) is None
        assert at_once(pg, AllReduce([1.0], SUM)) is None
        with pytest.raises(TypeError, match="must be a torch"):
            pg.backend.start(AllReduce([1.0], SUM))

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("reaches", [True, False], ids=["by its doorbell", "by a frame"])
async def test_a_sleeping_peer_is_woken_without_a_running_loop(reaches: bool) -> None:
    """Where its doorbell cannot be opened a frame is sent, and what sends it may ask which loop runs."""

    met = asyncio.Barrier(2)

    async def main(rank: int) -> None:
        for _ in range(4):
            await dist.barrier()
        await met.wait()  # the other one sleeps over the next barrier, not over the last of these
        if rank == 0:
            communicator = default().communicator
            assert communicator is not None
            asleep = communicator.words[1]
            await until(lambda: bool(asleep[ASLEEP]))  # the other one, over a word of this rank's
            loops: list[object] = []
            endpoint = current_world().endpoint
            memory, wake = endpoint.memory, endpoint.wake
            assert memory is not None
            if not reaches:
                memory.ring = lambda *args: False  # type: ignore[method-assign]
            endpoint.wake = lambda *args: (  # type: ignore[method-assign]
                loops.append(asyncio.get_running_loop()),
                wake(*args),
            )[-1]
            assert without_loop(lambda: at_once(default(), Barrier())) is not None
            assert set(loops) == (set() if reaches else {asyncio.get_running_loop()})
        else:
            await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


async def test_an_exception_counts_as_the_operation_and_fails_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> bool:
        raise ArithmeticError

    async def main(rank: int) -> None:
        data = torch.ones(2)
        for _ in range(4):
            await dist.all_reduce(data)
        if rank == 0:
            await dist.all_reduce(data)
        else:
            await asyncio.sleep(0.01)
            monkeypatch.setattr(AllReduceSlots, "finish", broken)
            work = at_once(default(), AllReduce(data, SUM))
            monkeypatch.undo()
            assert isinstance(work, dist.Work)
            assert isinstance(await outcome(work), ArithmeticError)
        data = torch.ones(2)
        await dist.all_reduce(data)
        assert data.tolist() == [2, 2]

    await run_ranks(2, main, "shm", timeout=20)
