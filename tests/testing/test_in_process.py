"""`run_ranks`: what a body may do with the world that it finds."""

from __future__ import annotations

from typing import Any

import pytest

import aiodist as dist
from aiodist.testing import run_ranks
from aiodist.transport.base_transport import Transport


async def test_a_body_may_destroy_its_group_as_a_script_does() -> None:
    async def main(rank: int) -> int:
        await dist.destroy_process_group()
        return rank

    assert await run_ranks(2, main) == [0, 1]


@pytest.mark.parametrize(
    ("size", "fn", "words"),
    [
        ("2", lambda rank: dist.barrier(), "size must be an int, not str"),
        (2, 7, r"fn must be an async function to call as fn\(rank\), not 7"),
        (2, lambda rank: 7, r"fn\(0\) returned 7, which cannot be awaited: write `async def`"),
    ],
)
async def test_functions_that_cannot_run_are_refused(size: Any, fn: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        await run_ranks(size, fn)


async def test_an_unknown_transport_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(
        dist.InvalidUsageError, match=r"'tpc'; the known ones: tcp, unix, inproc, shm$"
    ):
        await run_ranks(2, lambda rank: dist.barrier(), "tpc")


async def test_a_rank_that_ends_by_what_it_cancelled_has_failed() -> None:
    async def body(rank: int) -> None:
        if rank == 1:
            await dist.recv_object(0)
        work = dist.recv_object(1)
        work.cancel()
        await work

    with pytest.raises(
        RuntimeError, match="ended with CancelledError, and its task was not"
    ) as caught:
        await run_ranks(2, body)
    assert caught.value.__notes__ == ["run_ranks: rank 0 of 2 raised this"]


async def test_an_error_before_the_body_is_raised_and_not_the_cancellation_of_the_others() -> None:
    def wrap(rank: int, transport: Transport) -> Transport:
        if rank == 1:
            raise KeyError("no such cable")
        return transport

    with pytest.raises(KeyError, match="no such cable") as raised:
        await run_ranks(3, lambda rank: dist.barrier(), wrap=wrap)
    assert raised.value.__notes__ == ["run_ranks: rank 1 of 3 raised this"]


async def test_numbers_of_hosts_and_bytes_are_checked_before_the_ranks_wait() -> None:
    for hosts in ([0], [0, 1, 2]):
        with pytest.raises(dist.InvalidUsageError, match="for each of 2 ranks"):
            await run_ranks(2, lambda rank: dist.barrier(), hosts=hosts)
    with pytest.raises(
        dist.InvalidUsageError,
        match=r"buffer_bytes must be at least 65536 and below 2\*\*63, not -1",
    ):
        await run_ranks(2, lambda rank: dist.barrier(), buffer_bytes=-1)


async def test_an_ordinary_function_may_return_an_awaitable() -> None:
    assert await run_ranks(2, lambda rank: dist.barrier()) == [None, None]


async def test_an_error_names_its_rank() -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            raise KeyError("x")
        await dist.barrier()

    with pytest.raises(KeyError) as caught:
        await run_ranks(3, main)
    assert caught.value.__notes__ == ["run_ranks: rank 1 of 3 raised this"]
