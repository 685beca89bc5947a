"""Missing ranks: those that say so, those that cannot be asked, and those that stay silent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups import status_query
from aiodist.groups.status_query import Answers, StatusQuery
from aiodist.groups.world import current_world
from aiodist.p2p.endpoint_events import StatusAnswer
from aiodist.testing import run_ranks

THERE = StatusAnswer(entered=True)
ELSEWHERE = StatusAnswer(entered=False, last="barrier(), operation 3", now="is in no operation")


@pytest.fixture
def results() -> list[Answers]:
    return []


async def test_done_as_soon_as_all_have_answered(results: list[Answers]) -> None:
    call = StatusQuery(asyncio.get_running_loop(), [1, 2, 3], [4], results.append)
    call.answered(2, ELSEWHERE)
    call.answered(1, THERE)
    call.answered(1, ELSEWHERE)  # said once
    assert results == []
    call.answered(3, THERE)
    assert results == [{1: THERE, 2: ELSEWHERE, 3: THERE, 4: None}]
    assert list(results[0]) == [1, 2, 3, 4]
    call.answered(3, THERE)
    assert len(results) == 1


async def test_silence_is_no_answer(
    results: list[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_query, "ANSWER_SECONDS", 0.01)
    done = asyncio.Event()

    def finish(answers: Answers) -> None:
        results.append(answers)
        done.set()

    call = StatusQuery(asyncio.get_running_loop(), [1, 2], [], finish)
    call.answered(2, THERE)
    await done.wait()
    assert results == [{1: None, 2: THERE}]
    call.answered(1, THERE)  # too late: it has been told already
    assert len(results) == 1


async def test_a_query_without_ranks_to_ask(results: list[Answers]) -> None:
    StatusQuery(asyncio.get_running_loop(), [], [7], results.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert results == [{7: None}]


async def test_a_dropped_status_query_says_nothing(
    results: list[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_query, "ANSWER_SECONDS", 0.0)
    StatusQuery(asyncio.get_running_loop(), [1], [], results.append).drop()
    await asyncio.sleep(0.01)
    assert results == []


@pytest.mark.parametrize("operation", ["collective", "message"])
async def test_an_operation_with_two_timeouts_asks_once_and_leaves_no_query(operation: str) -> None:
    over = asyncio.Event()

    async def main(rank: int) -> None:
        if rank == 0:
            queries = current_world().default_group().status_queries
            work = dist.irecv(np.zeros(1), 1) if operation == "message" else dist.barrier()
            for seconds in (1, 2):  # that of a wait() and its own come in one turn of the loop
                work._expire(seconds)
            assert len(queries._by_number) == 1
            with pytest.raises(dist.CollectiveTimeoutError, match="timed out after 1 s"):
                await work
            assert not queries._by_number
            over.set()
        await over.wait()

    await run_ranks(2, main)
