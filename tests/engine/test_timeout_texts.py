"""A timeout says what the ranks that it waited for were in instead, as they told when they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups import status_query
from aiodist.groups.world import current_world
from aiodist.p2p.endpoint import Endpoint
from tests.engine.conftest import RunRanks, outcome

SHORT = 0.05


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch, scaled: Callable[[float], float]) -> None:
    """A rank that answers is waited for, however busy the machine is."""
    monkeypatch.setattr(status_query, "ANSWER_SECONDS", scaled(10.0))


def what_rank_1_does(error: BaseException | None) -> str:
    """By the error of rank 0, which waits for it alone."""
    assert isinstance(error, dist.CollectiveTimeoutError)
    assert error.waiting_for == (1,)
    (doing,) = error.doing
    return doing


async def test_two_groups_in_opposite_order(ranks: RunRanks) -> None:
    over = asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        one, other = await dist.new_group(group_desc="one"), await dist.new_group()
        data = np.ones(3, np.float32)
        if rank == 0:
            error = await outcome(dist.all_reduce(data, group=one, timeout=SHORT))
            over.set()
            await dist.all_reduce(data, group=other)
            return error
        await dist.all_reduce(data, group=other)  # which rank 0 calls second
        await over.wait()
        assert isinstance(
            await outcome(dist.all_reduce(data, group=one)), dist.CollectiveTimeoutError
        )
        return None

    error, _ = await ranks(2, main)
    doing = what_rank_1_does(error)
    assert doing.startswith("is in all_reduce(3 x float32, SUM) (operation 0 of ")
    assert doing.endswith(" s")
    assert isinstance(error, dist.CollectiveTimeoutError)
    assert error.group not in doing
    assert f"rank 1 did not enter it (it {doing})" in str(error)


async def test_a_receive_names_the_current_operation_of_the_sender(streams: RunRanks) -> None:
    async def main(rank: int) -> BaseException | None:
        await dist.barrier()  # connects them: a rank without a connection is not asked
        if rank == 0:
            error = await outcome(dist.irecv(np.zeros(2), 1, tag=4, timeout=SHORT))
            await dist.barrier()
            return error
        await dist.barrier()
        return None

    error, _ = await streams(2, main)
    doing = what_rank_1_does(error)
    assert doing.startswith("is in barrier() (operation 1 of 'default_pg') for ")
    assert f"still waiting for rank 1; it {doing};" in str(error)


@pytest.mark.parametrize("start", [dist.barrier, lambda **options: dist.recv(src=1, **options)])
async def test_a_rank_that_has_destroyed_its_handle_of_the_group(
    start: Callable[..., Any], ranks: RunRanks
) -> None:
    destroyed, over = asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        group = await dist.new_group()
        await dist.barrier()
        error = None
        if rank == 0:
            await destroyed.wait()
            error = await outcome(start(group=group, timeout=SHORT))
            over.set()
        await dist.destroy_process_group(group)
        destroyed.set()
        await over.wait()
        return error

    error, _ = await ranks(2, main)
    doing = what_rank_1_does(error)
    assert doing == "destroyed its handle of the group, and is in no operation"
    assert f"it {doing}" in str(error)


async def test_the_operations_that_the_rank_started_first(streams: RunRanks) -> None:
    async def main(rank: int) -> BaseException | None:
        if rank == 0:
            await dist.recv(np.zeros(1), 1)
            error = await outcome(dist.irecv(np.zeros(2), 1, tag=4, timeout=SHORT))
            for tag in range(3):
                await dist.send(np.zeros(2), 1, tag=tag)
            return error
        works = []
        for tag in range(3):
            works.append(dist.irecv(np.zeros(2), 0, tag=tag))
            await asyncio.sleep(SHORT)
        await dist.send(np.zeros(1), 0)
        for work in works:
            await work
        return None

    error, _ = await streams(2, main)
    doing = what_rank_1_does(error)
    first, second = (f"recv(from rank 0, 2 x float64, tag {tag}) in 'default_pg'" for tag in (0, 1))
    listed, seconds = doing.split(" for ")
    assert listed == f"is in {first}, {second} and 1 more"
    assert float(seconds.removesuffix(" s")) >= 2 * SHORT


async def test_a_send_says_that_the_receiver_failed_before(streams: RunRanks) -> None:
    receive_failed, send_failed = asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()  # connects them: a rank without a connection is not asked
        if rank == 0:
            await receive_failed.wait()
            error = await outcome(dist.send(np.zeros(1 << 20), 1, timeout=SHORT))
            send_failed.set()
            return error
        failed = dist.irecv(np.zeros(2), 0, tag=9, timeout=SHORT)
        assert isinstance(await outcome(failed), dist.CollectiveTimeoutError)
        receive_failed.set()
        await send_failed.wait()  # to answer what rank 0 asks after its timeout
        return None

    error, _ = await streams(2, main, buffer_bytes=1 << 16)
    failed = "recv(from rank 0, 2 x float64, tag 9) in 'default_pg' failed there"
    assert what_rank_1_does(error) == f"is in no operation, after {failed}"


async def test_a_rank_that_does_not_answer(
    streams: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_query, "ANSWER_SECONDS", 0.0)  # sooner than any can

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        error = None
        if rank == 0:
            error = await outcome(dist.irecv(np.zeros(2), 1, timeout=SHORT))
        await dist.barrier()
        return error

    error, _ = await streams(2, main)
    assert what_rank_1_does(error) == ""
    assert "still waiting for rank 1; it does not answer; " in str(error)


async def test_a_receive_from_any_rank_sends_no_status_query(streams: RunRanks) -> None:
    async def main(rank: int) -> BaseException | None:
        error = None
        if rank == 0:
            error = await outcome(dist.irecv(np.zeros(2), timeout=SHORT))
        await dist.barrier()
        return error

    error, *_ = await streams(3, main)
    assert isinstance(error, dist.CollectiveTimeoutError)
    assert (error.waiting_for, error.doing) == ((1, 2), ())
    assert "still waiting for ranks 1, 2;" in str(error)


async def test_a_message_that_comes_while_the_others_are_asked_has_come(
    streams: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    monkeypatch.setattr(Endpoint, "status_queried", lambda *_: asked.set())

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            into = np.zeros(2)
            await dist.recv(into, 1, timeout=SHORT)
            assert into.tolist() == [7, 7]
            assert (
                not current_world().default_group().status_queries._by_number
            )  # the call is over as well
        else:
            await asked.wait()
            await dist.send(np.full(2, 7.0), 0)

    await streams(2, main)
