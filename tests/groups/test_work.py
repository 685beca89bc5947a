"""A work is waited for as a future is."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.work import Work
from aiodist.testing import run_ranks


async def test_asyncio_waits_for_the_first_of_several_works() -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            await dist.send(np.ones(3), 0, tag=1)
            await dist.barrier()
            await dist.send(np.ones(3), 0, tag=2)
            return
        works = {asyncio.ensure_future(dist.irecv(np.zeros(3), 1, tag=tag)) for tag in (1, 2)}
        done, rest = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == len(rest) == 1
        (first,), (second,) = done, rest
        assert first.done()
        assert first.result() == 1
        assert not second.done()
        await dist.barrier()
        assert await asyncio.wait_for(second, 60) == 1
        assert await asyncio.gather(first, second) == [1, 1]

    await run_ranks(2, main)


async def test_nothing_of_an_abandoned_operation_is_written_any_more() -> None:
    """As in a forked child, which shares memory with the other ranks and may run the loop on."""

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.irecv(np.zeros(3), 1)
            context = work._context
            work._abandon(dist.GroupClosedError("forked", group="g"), calls_back=False)
            work._fail(dist.PeerLostError("rank 1 has left", rank=1))
            assert work._context is context  # it was not closed
            assert isinstance(work.exception(), dist.GroupClosedError)

    await run_ranks(2, main)


class EndsMeanwhile:
    """An attribute that another thread sets to None after the first look at it."""

    def __init__(self, value: object) -> None:
        self._values = [value]

    def __get__(self, instance: object, owner: type) -> object:
        return self._values.pop() if self._values else None


def test_another_thread_may_ask_what_an_operation_waits_for_while_it_ends() -> None:
    waits = SimpleNamespace(waiting_for=lambda: [3], is_opening=False, rank=1)
    work = {"_context": EndsMeanwhile(waits)}
    assert Work._waiting_for(type("Ending", (), work)()) == [3]
    context = {"communicator": EndsMeanwhile(waits), "shm": waits, "topology": None}
    assert CollectiveContext.waiting_for(type("Ending", (), context)()) == [3]
    communicator = {"_wait": EndsMeanwhile(waits), "members": [2, 3]}
    assert ShmCommunicator.waiting_for(type("Ending", (), communicator)()) == [3]


async def test_callbacks_get_the_work_and_can_be_taken_back() -> None:
    async def main(rank: int) -> None:
        from_peer: list[Work[None]] = []
        never: list[Work[None]] = []
        other = 1 - rank
        work = dist.irecv(np.zeros(3), other)
        work.add_done_callback(from_peer.append)
        work.add_done_callback(never.append)
        assert work.remove_done_callback(never.append) == 1
        assert work.remove_done_callback(never.append) == 0
        await dist.send(np.ones(3), other)
        await work
        await asyncio.sleep(0)
        assert from_peer == [work]
        assert not never
        assert not work.cancelled()
        given_up = dist.irecv(np.zeros(3), other)
        given_up.cancel()
        assert given_up.cancelled()
        await dist.barrier()

    await run_ranks(2, main)


async def test_a_callback_runs_in_a_context_that_is_given_or_the_one_it_was_added_in() -> None:
    which = ContextVar("which", default="none")

    async def main(rank: int) -> None:
        from_peer: list[str] = []
        work = dist.irecv(np.zeros(3), 1 - rank)
        which.set("added")
        work.add_done_callback(lambda _: from_peer.append(which.get()))
        work.add_done_callback(lambda _: from_peer.append(which.get()), context=Context())
        which.set("later")
        await dist.send(np.ones(3), 1 - rank)
        await work
        work.add_done_callback(lambda _: from_peer.append(which.get()))
        which.set("last")
        await asyncio.sleep(0)
        assert from_peer == ["added", "none", "later"]

    await run_ranks(2, main)


async def test_a_callback_that_is_taken_back_as_the_operation_ends_is_called() -> None:
    """As if the loop's thread ended it while another thread looks for the callback."""
    called: list[dist.Work[int]] = []

    class EndsWhenCompared:
        def __init__(self, work: dist.Work[int]) -> None:
            self.work = work

        def __call__(self, work: dist.Work[int]) -> None:
            called.append(work)

        def __eq__(self, other: object) -> bool:
            self.work.cancel()
            return self is other

        __hash__ = None  # type: ignore[assignment]

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.irecv(np.zeros(1), 1)
            callback = EndsWhenCompared(work)
            work.add_done_callback(callback)
            assert work.remove_done_callback(callback) == 0
            await asyncio.sleep(0)
            assert called == [work]
        await dist.barrier()

    await run_ranks(2, main)


@pytest.mark.parametrize(
    ("timeout", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError)]
)
async def test_an_invalid_timeout_is_refused_also_by_a_completed_work(
    timeout: Any, error: type[Exception]
) -> None:
    async def main(rank: int) -> None:
        work = dist.barrier()
        await work
        with pytest.raises(error, match="timeout must be"):
            work.wait(timeout)
        assert work.wait(5)

    await run_ranks(2, main)


def test_a_work_has_public_names_only() -> None:
    names = {name for name in dir(dist.Work) if not name.startswith("_")}
    assert names == {
        "add_done_callback",
        "cancel",
        "cancelled",
        "close",
        "done",
        "exception",
        "get_future",
        "is_completed",
        "is_success",
        "remove_done_callback",
        "result",
        "send",
        "source_rank",
        "synchronize",
        "throw",
        "wait",
    }
