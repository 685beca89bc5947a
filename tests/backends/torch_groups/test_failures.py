"""How operations over torch's Gloo end when they cannot end well."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.backends.torch_groups import messages
from aiodist.backends.torch_groups.kinds import Gloo
from aiodist.groups import group_engine
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks


async def test_a_timeout_names_the_missing_ranks_and_ends_the_group() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        tensor = torch.ones(1 << 18)
        if rank == 0:
            with pytest.raises(dist.CollectiveTimeoutError, match="rank 1 did not enter"):
                await dist.all_reduce(tensor, group=group, timeout=0.2)
            with pytest.raises(dist.GroupRevokedError, match=r"cannot call back.*; shrink"):
                await dist.all_reduce(tensor, group=group)
            await dist.send_object_list(["failed"], 1)
        else:
            await dist.recv_object_list([None], 0)
            with pytest.raises(dist.DistBackendError):
                await dist.all_reduce(tensor, group=group)
        assert tensor.sum() == 1 << 18  # nothing has been written, and nothing will be
        await dist.barrier()

    await run_ranks(2, body)


class Watched:
    """A torch group that notes its own timeouts."""

    def __init__(self, group: Any, limits: list[float]) -> None:
        self._group = group
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._limits.append(timeout.total_seconds())
        self._group._set_default_timeout(timeout)


async def test_torchs_own_timeout_comes_after_that_of_each_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: dict[int, list[float]] = {}
    original = Gloo.build

    def build(self: Gloo, store: Any, rank: int, size: int, seconds: float, options: Any) -> Any:
        limits[rank] = [seconds]
        return Watched(original(self, store, rank, size, seconds, options), limits[rank])

    monkeypatch.setattr(Gloo, "build", build)

    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo", timeout=50)
        tensor = torch.ones(4)
        for timeout in (None, 20, 70, 60):
            await dist.all_reduce(tensor, group=group, timeout=timeout)
        dist.set_timeout(80, group)
        await dist.all_reduce(tensor, group=group)
        if rank == 0:
            await dist.send(tensor, 1, group, timeout=90)
        else:
            await dist.recv(tensor, 0, group, timeout=90)
        await dist.all_reduce(tensor, group=group, timeout=math.inf)

    await run_ranks(2, body)
    a_year = 365 * 24 * 3600.0
    assert limits == {rank: [80.0, 100.0, 110.0, 120.0, a_year] for rank in (0, 1)}


async def test_a_cancelled_collective_fails_on_all_ranks() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        work = dist.all_reduce(torch.ones(4), group=group) if rank == 0 else None
        if work is not None:
            await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await dist.send_object_list(["cancelled"], 1)
        else:
            await dist.recv_object_list([None], 0)
            with pytest.raises(dist.DistBackendError, match="rank 0"):
                await dist.all_reduce(torch.ones(4), group=group)
        await dist.barrier()

    await run_ranks(2, body)


async def test_ranks_that_disagree_find_out_and_go_on() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        tensor = torch.ones(4 + (rank == 1))
        later = torch.ones(4)
        disputed = dist.all_reduce(tensor, group=group)
        work = dist.all_reduce(later, group=group)
        with pytest.raises(dist.CollectiveMismatchError, match="ranks disagree"):
            await disputed
        await work
        assert later.tolist() == [3] * 4
        await dist.all_reduce(later, group=group)
        assert later.tolist() == [9] * 4
        assert tensor.sum() == tensor.numel()
        await dist.barrier()

    await run_ranks(3, body)


async def test_a_group_whose_collective_has_failed_shrinks() -> None:
    """Also a rank that has not started that collective: it learns of the end by the group."""

    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        if rank == 0:
            with pytest.raises(dist.CollectiveTimeoutError):
                await dist.all_reduce(torch.ones(4), group=group, timeout=0.2)
        else:
            with pytest.raises(dist.GroupRevokedError, match=r"timed out after 0\.2 s on rank 0"):
                await dist.recv(src=3 - rank, group=group)
        group = await dist.shrink(group)
        assert dist.get_backend(group) == "torch:gloo"
        tensor = torch.ones(4)
        await dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [3] * 4
        await dist.barrier()

    await run_ranks(3, body)


@pytest.mark.parametrize("backend", ["torch:gloo", "cpu:torch:gloo,cuda:aiodist"])
async def test_a_failed_object_or_gather_of_new_tensors_does_not_end_the_group(
    backend: str,
) -> None:
    async def body(rank: int) -> None:
        works = [dist.all_gather_object([None] * 3, rank), dist.all_gather_new(torch.ones(4))]
        if rank != 1:
            for work in works:  # ended here by the time that the other rank's failure is known
                work.cancel()
        else:
            for work in works:
                with pytest.raises(dist.CollectiveCancelledError):
                    await work
        with pytest.raises(dist.CollectiveError if rank else TypeError, match="does not travel"):
            await dist.all_gather_object([None] * 3, rank if rank else object())
        tensor = torch.ones(4)
        await dist.all_reduce(tensor)
        assert tensor.tolist() == [3] * 4

    await run_ranks(3, body, backend=backend)


class OfThisProgram:
    """Travels by pickle alone."""


async def test_an_object_that_fails_long_after_the_root_has_sent_it_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_engine, "REMEMBERED", 4)

    async def body(rank: int) -> None:
        if rank == 0:
            await dist.broadcast_object_list([OfThisProgram()], 0, allow_pickle=True)
            for number in range(6):
                await dist.broadcast_object_list([number], 0)
            await dist.send_object_list(["all sent"], 1)
        else:
            await dist.recv_object_list([None], 0)
            with pytest.raises(TypeError, match="pickle"):
                await dist.broadcast_object_list([None], 0)
            for _ in range(6):
                await dist.broadcast_object_list([None], 0)
        tensor = torch.ones(4)
        await dist.all_reduce(tensor)
        assert tensor.tolist() == [2] * 4

    await run_ranks(2, body, backend="torch:gloo")


async def test_a_collective_that_ranks_disagree_about_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gloo would end the process in a thread of its own: more bytes come than a rank expects."""
    begun: list[object] = []

    def begin(*args: object) -> None:
        begun.append(args)
        raise RuntimeError("it has begun")

    monkeypatch.setattr(torch.distributed.ProcessGroupGloo, "allreduce", begin)

    async def body(rank: int) -> None:
        with pytest.raises(dist.CollectiveMismatchError, match="5 x float32"):
            await dist.all_reduce(torch.ones(5 if rank == 1 else 4))

    await run_ranks(3, body, backend="torch:gloo")
    assert begun == []


async def test_a_destroyed_group_is_forgotten_once_its_threads_have_ended() -> None:
    async def body(rank: int) -> None:
        gone = []
        for _ in range(3):
            group = await dist.new_group(backend="torch:gloo")
            await dist.barrier(group)
            torch_group = current_world().groups[-1].backend._messages.torch  # type: ignore[attr-defined]
            await dist.destroy_process_group(group)
            await torch_group.gone()
            gone.append(weakref.ref(torch_group))
            del group, torch_group
        gc.collect()
        assert [each() is None for each in gone] == [True, True, False]

    await run_ranks(2, body)


async def test_destroying_a_group_frees_waiting_callers() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        await dist.barrier(group)
        await dist.barrier()  # on no rank is the first one still under way
        if rank == 0:
            receiving = dist.irecv(torch.zeros(2), 1, group)
            reducing = dist.all_reduce(torch.zeros(2), group=group)
            group.abort()
            for work in (receiving, reducing):
                with pytest.raises(dist.GroupClosedError):
                    await work
        await dist.barrier()

    await run_ranks(2, body)


async def test_a_receive_is_taken_back_and_its_message_goes_to_the_next() -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            first, second = torch.zeros(3), torch.zeros(3)
            receiving = dist.irecv(first, 1, tag=5)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            with pytest.raises(dist.CollectiveTimeoutError, match="recv from rank 1"):
                await dist.recv(first, 1, tag=5, timeout=0.05)
            await dist.send_object_list(["go"], 1)
            assert await dist.recv(second, tag=5) == 1
            assert first.tolist() == [0, 0, 0]
            assert second.tolist() == [1, 1, 1]
        else:
            await dist.recv_object_list([None], 0)
            await dist.send(torch.ones(3), 0, tag=5)
        await dist.barrier()

    await run_ranks(2, body, backend="torch:gloo")


async def test_a_send_is_taken_back_before_its_receive() -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            sending = dist.isend(torch.zeros(3), 1, tag=4)
            await dist.send_object_list(["announced"], 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await dist.send(torch.ones(3), 1, tag=4)
        else:
            await dist.recv_object_list([None], 0)
            tensor = torch.full((3,), 7.0)
            assert await dist.recv(tensor, 0, tag=4) == 0
            assert tensor.tolist() == [1, 1, 1]
        await dist.barrier()

    await run_ranks(2, body, backend="torch:gloo")


async def test_a_message_that_does_not_fit_is_dropped_and_its_sender_goes_on() -> None:
    async def body(rank: int) -> None:
        if rank == 0:
            await dist.send(torch.ones(3), 1)
            await dist.send(torch.ones(2), 1)
        else:
            with pytest.raises(dist.InvalidUsageError, match=r"rank 0 sent float32\[3\]"):
                await dist.recv(torch.zeros(2), 0)
            await dist.recv(torch.zeros(2), 0)
        await dist.barrier()

    await run_ranks(2, body, backend="torch:gloo")


async def test_many_messages_both_ways_at_once() -> None:
    async def body(rank: int) -> None:
        other = 1 - rank
        n = 40
        received = [torch.zeros(1 << 10) for _ in range(n)]
        works = [dist.irecv(received[i], other, tag=i % 3) for i in range(n)]
        works += [dist.isend(torch.full((1 << 10,), float(i)), other, tag=i % 3) for i in range(n)]
        await asyncio.gather(*works)
        assert [int(tensor[-1]) for tensor in received] == list(range(n))

    await run_ranks(2, body, backend="torch:gloo")


async def test_the_loop_goes_on_during_a_large_collective() -> None:
    async def body(rank: int) -> int:
        work = dist.all_reduce(torch.ones(1 << 24))
        turns = 0
        while not work.is_completed():
            await asyncio.sleep(0)
            turns += 1
        await work
        return turns

    assert min(await run_ranks(2, body, backend="torch:gloo")) > 10


async def test_a_group_that_cannot_be_built_raises() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo", pg_options="not what torch takes")
        with pytest.raises(dist.DistBackendError, match="torch:gloo could not be started"):
            await dist.all_reduce(torch.ones(2), group=group)
        await dist.barrier()

    await run_ranks(2, body)


async def test_no_rank_may_leave_before_all_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo connects every pair of ranks; the end of one would fail the others' beginning."""
    order: list[str] = []
    make = torch.distributed.ProcessGroupGloo

    def made_late(store: object, rank: int, *rest: object, **options: object) -> object:
        made = make(store, rank, *rest, **options)  # type: ignore[arg-type,call-overload]
        if rank == 1:
            time.sleep(0.1)  # rank 0 has all it needs by now, and must not think so
            order.append("rank 1 is connected")
        return made

    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", made_late)

    async def leave(rank: int) -> None:
        order.append("a rank may leave")

    await run_ranks(3, leave, backend="torch:gloo")
    assert order == ["rank 1 is connected", *["a rank may leave"] * 3]


async def test_a_cancelled_operation_keeps_its_tensors_until_torch_is_done_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device may still work on them, and must not find another tensor there."""
    ends: list[Callable[[BaseException | None], None]] = []
    is_followed = asyncio.Event()

    def follow(self: Gloo, work: Any, finish: Any, loop: Any, waiter: Any, done: Any) -> None:
        ends.append(done)
        loop.call_soon_threadsafe(is_followed.set)

    monkeypatch.setattr(Gloo, "follow", follow)

    async def body(rank: int) -> None:
        tensor = torch.ones(3)
        known = weakref.ref(tensor)
        work = dist.all_reduce(tensor)
        await is_followed.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        del tensor, work
        gc.collect()
        assert known() is not None
        ends.pop()(None)
        while known() is not None:  # some turns of the loop let go of it
            await asyncio.sleep(0)
            gc.collect()

    await run_ranks(1, body, backend="torch:gloo")


async def test_a_receive_without_room_leaves_nothing_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message is on the way when there turns out to be no memory for it."""

    def refuse(*arguments: object) -> None:
        raise MemoryError("no room")

    async def body(rank: int) -> None:
        if rank == 1:
            sending = [dist.isend(torch.full((3,), float(number)), 0) for number in range(2)]
            await dist.recv_object_list([None], 0)
            for work in sending:
                work.cancel()
            return
        monkeypatch.setattr(messages, "empty_like_message", refuse)
        with pytest.raises(MemoryError, match="no room"):
            await dist.recv(src=1)
        with pytest.raises(dist.DistBackendError):
            await dist.recv(torch.zeros(3), 1)
        await dist.send_object_list(["done"], 1)

    await run_ranks(2, body, backend="torch:gloo")
