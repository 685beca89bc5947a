"""Collectives that are prepared once and started many times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends.mixed import MixedBackend
from aiodist.backends.native import NativeBackend
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of
from tests.operations.batch import placing

Plan = dist.PersistentCollective
Like = Callable[[np.ndarray], Any]


def torch_like(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values)


def strided_like(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.stack([values, values])).T[:, 0]


def numpy_like(values: np.ndarray) -> np.ndarray:
    return values


async def every_kind(rank: int, size: int, like: Like, count: int = 1) -> None:
    """Run each of them three times on changing contents, beside what the ordinary function gives."""
    numbers = list(range(size))

    def several(number: float, times: int = 1) -> Any:
        return like(np.repeat(number + np.arange(times, dtype=np.float32), count))

    mine, whole = several(0), several(0, size)
    gathered, part = several(0, size), several(0)
    plans: dict[str, tuple[Plan, Any, Callable[[int], list[float]]]] = {
        "broadcast": (
            dist.broadcast_init(mine, size - 1),
            mine,
            lambda turn: [size - 1 + turn],
        ),
        "all_reduce": (
            dist.all_reduce_init(mine, "max"),
            mine,
            lambda turn: [size - 1 + turn],
        ),
        "reduce": (
            dist.reduce_init(mine, 0),
            mine,
            lambda turn: [sum(numbers) + size * turn if rank == 0 else rank + turn],
        ),
        "all_gather": (
            dist.all_gather_into_tensor_init(gathered, mine),
            gathered,
            lambda turn: [other + turn for other in numbers],
        ),
        "reduce_scatter": (
            dist.reduce_scatter_tensor_init(part, whole, "sum"),
            part,
            lambda turn: [sum(numbers) + size * (turn + rank)],
        ),
        "all_to_all": (
            dist.all_to_all_single_init(gathered, whole),
            gathered,
            lambda turn: [other + turn + rank for other in numbers],
        ),
    }
    barrier = dist.barrier_init()
    for turn in range(3):
        for name, (plan, result, expected) in plans.items():
            mine[...] = rank + turn
            whole[...] = several(rank + turn, size)
            assert await plan.start() is None
            found = [result[place * count] for place in range(len(result) // count)]
            assert [float(each) for each in found] == expected(turn), (name, turn)
        await barrier.start()


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "inproc"), (2, "inproc"), (2, "shm"), (3, "shm"), (2, "tcp")]
)
@pytest.mark.parametrize("like", [torch_like, strided_like, numpy_like])
@pytest.mark.parametrize("count", [1, 300_000])
async def test_every_kind_on_contents_that_change(
    size: int, transport: str, like: Like, count: int
) -> None:
    await run_ranks(size, lambda rank: every_kind(rank, size, like, count), transport)


async def test_over_another_backend() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor, group=group)
        for turn in (2, 4):
            await plan.start()
            assert tensor.tolist() == [turn] * 3

    await run_ranks(2, body)


async def test_other_ranks_may_call_the_ordinary_function() -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor)
        for _ in range(3):
            await (plan.start() if rank else dist.all_reduce(tensor))
        assert tensor.tolist() == [8] * 3

    await run_ranks(2, body, "shm")


def swapped(tensor: torch.Tensor) -> None:
    tensor.data = torch.ones(3)


def grown_and_shrunk(tensor: torch.Tensor) -> None:
    tensor.resize_(1 << 20).fill_(1)
    tensor.resize_(3)


@pytest.mark.parametrize("move", [swapped, grown_and_shrunk])
async def test_a_tensor_whose_memory_has_moved(move: Callable[[torch.Tensor], None]) -> None:
    async def body(rank: int) -> None:
        tensor = torch.zeros(3)
        plan = dist.all_reduce_init(tensor)
        await plan.start()
        before = tensor.data_ptr()
        held = tensor.detach()
        move(tensor)
        assert tensor.data_ptr() != before
        for turn in (2, 4):
            await plan.start()
            assert tensor.tolist() == [turn] * 3
        del held

    await run_ranks(2, body, "shm")


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_a_start_does_not_look_for_its_plan(
    is_mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        if is_mixed:  # as on a machine with a GPU
            engine_of().backend = MixedBackend("aiodist", {"cpu": NativeBackend(engine_of())})
        plan = dist.all_reduce_init(tensor)
        await plan.start()  # it opens the shared memory
        await dist.barrier()
        await dist.barrier()
        started: list[str] = []
        start = NativeBackend.start

        def noted(self: NativeBackend, operation: Any, timeout: float | None = None) -> Any:
            started.append(operation.kind)
            return start(self, operation, timeout)

        monkeypatch.setattr(NativeBackend, "start", noted)
        for _ in range(5):
            await plan.start()
        assert started == []
        assert tensor.tolist() == [64] * 3

    await run_ranks(2, body, "shm")


@pytest.mark.parametrize("count", [1, 300_000])
@pytest.mark.parametrize(
    ("transport", "backend"),
    [("shm", "aiodist"), ("hosts", "aiodist"), ("inproc", "aiodist"), ("inproc", "torch:gloo")],
)
async def test_several_starts_under_way_at_once(transport: str, backend: str, count: int) -> None:
    async def body(rank: int) -> None:
        tensors = [torch.full((count,), float(number)) for number in range(4)]
        plans = [dist.all_reduce_init(tensor) for tensor in tensors]
        works: list[Awaitable[None]] = [plan.start() for _ in range(3) for plan in plans]
        await asyncio.gather(*works)
        for number, tensor in enumerate(tensors):
            assert tensor.unique().tolist() == [27 * number]

    way, hosts = placing(transport, 3)
    await run_ranks(3, body, way, hosts=hosts, backend=backend)


async def test_a_start_behind_a_failed_one_is_a_new_operation() -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor)
        if rank == 0:
            works = [plan.start(timeout=0.05), plan.start()]
            with pytest.raises(dist.CollectiveTimeoutError):
                await works[0]
            await dist.send(torch.ones(1), 1)
        else:
            await dist.recv(torch.empty(1), 0)
            works = [plan.start(), plan.start()]
            with pytest.raises(dist.CollectiveTimeoutError):
                await works[0]
        await works[1]

    await run_ranks(2, body)


@pytest.mark.parametrize("transport", ["shm", "hosts", "inproc"])
async def test_a_start_that_fails_as_it_waits_lets_no_later_one_overtake(transport: str) -> None:
    async def body(rank: int) -> None:
        plan, go = dist.all_reduce_init(tensor := torch.ones(3)), torch.empty(1)
        if rank == 0:
            first, second = plan.start(), plan.start(timeout=0.05)
            with pytest.raises(dist.CollectiveTimeoutError):
                await second
            third = plan.start()
            await dist.send(go, 1)
        else:
            await dist.recv(go, 0)
            first, second, third = (plan.start() for _ in range(3))
            with pytest.raises(dist.CollectiveTimeoutError):
                await second
        await asyncio.gather(first, third)
        assert tensor.tolist() == [4] * 3

    way, hosts = placing(transport, 2)
    await run_ranks(2, body, way, hosts=hosts)


async def test_many_starts_under_way_end_when_a_rank_leaves() -> None:
    async def body(rank: int) -> None:
        plan = dist.all_reduce_init(torch.ones(3))
        if rank == 0:
            works = [plan.start() for _ in range(1000)]
            assert not any(work._is_awaited for work in works)
            await dist.send(torch.empty(1), 1)
            for work in works:
                with pytest.raises(dist.PeerLostError):
                    await work
        else:
            await dist.recv(torch.empty(1), 0)
            await dist.destroy_process_group()

    await run_ranks(2, body)


async def test_after_a_failure_the_next_start_is_a_new_operation() -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor)
        if rank == 0:
            with pytest.raises(dist.CollectiveTimeoutError):
                await plan.start(timeout=0.05)
        else:
            await asyncio.sleep(0.2)
            with pytest.raises(dist.CollectiveError):
                await plan.start()
        tensor.fill_(1)
        await plan.start()
        assert tensor.tolist() == [2] * 3

    await run_ranks(2, body, "shm")


@pytest.mark.parametrize("backend", ["aiodist", "torch:gloo"])
async def test_arguments_are_checked_when_it_is_prepared(backend: str) -> None:
    async def body(rank: int) -> None:
        for prepare, error, text in (
            (lambda: dist.all_reduce_init([1.0]), TypeError, "must be a torch"),
            (lambda: dist.all_reduce_init(torch.ones(2), "no"), TypeError, "not 'no'"),
            (lambda: dist.broadcast_init(torch.ones(2), 7), dist.InvalidUsageError, "7"),
            (
                lambda: dist.all_gather_into_tensor_init(torch.ones(3), torch.ones(2)),
                dist.InvalidUsageError,
                "output_tensor",
            ),
            (
                lambda: dist.all_reduce_init(torch.ones(2, dtype=torch.cfloat), "max"),
                TypeError,
                "MAX is not defined for complex64",
            ),
            (
                lambda: dist.all_reduce_init(torch.ones(2, device="meta")),
                dist.InvalidUsageError,
                "is on meta",
            ),
        ):
            with pytest.raises(error, match=text):
                prepare()
        plan = dist.all_reduce_init(torch.ones(2))
        assert repr(plan) == "<PersistentCollective all_reduce of 'default_pg'>"
        assert engine_of().n_started == 0

    await run_ranks(2, body, backend=backend)


async def test_in_a_thread_without_the_loop_it_starts_when_it_is_awaited() -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor)
        loop, group = asyncio.get_running_loop(), engine_of()

        def other_thread() -> None:
            with pytest.raises(dist.InvalidUsageError):
                dist.all_reduce_init(tensor)
            work = plan.start()
            assert group.n_started == 0
            asyncio.run_coroutine_threadsafe(work, loop).result(20)
            assert group.n_started == 1

        await asyncio.to_thread(other_thread)
        await plan.start()
        assert tensor.tolist() == [4] * 3

    await run_ranks(2, body, "shm")


async def test_several_starts_of_a_thread_without_the_loop() -> None:
    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        plan = dist.all_reduce_init(tensor)
        loop = asyncio.get_running_loop()

        def other_thread() -> None:
            works = [plan.start() for _ in range(3)]
            for started in [asyncio.run_coroutine_threadsafe(work, loop) for work in works]:
                started.result(20)

        await asyncio.to_thread(other_thread)
        assert tensor.tolist() == [8] * 3

    await run_ranks(2, body)


async def test_its_group_has_ended() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group()
        plan = dist.all_reduce_init(torch.ones(2), group=group)
        await plan.start()
        await dist.destroy_process_group(group)
        with pytest.raises(dist.DistError, match="destroyed"):
            await plan.start()

    await run_ranks(2, body, "shm")


async def test_in_a_thread_without_the_context_of_its_rank_it_starts_when_it_is_awaited() -> None:
    async def body(rank: int) -> None:
        tensor = torch.full((2,), rank + 1.0)
        plan = dist.all_reduce_init(tensor)
        loop, group = asyncio.get_running_loop(), engine_of()

        def other_thread() -> None:
            work = plan.start()
            assert group.n_started == 0, "it began outside the loop"
            asyncio.run_coroutine_threadsafe(work, loop).result(20)

        await loop.run_in_executor(None, other_thread)  # unlike `to_thread`, without the context
        assert tensor.tolist() == [3, 3]

    await run_ranks(2, body)
