"""The inference service, driven by real clients while its ranks are killed."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.examples.apps.waiting import until
from tests.limits import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def health(session, **wanted):
    """Wait until the service answers, with these facts."""
    async with asyncio.timeout(scaled(40)):
        while True:
            try:
                async with session.get("/health") as response:
                    facts = await response.json()
                    if response.status == 200 and wanted.items() <= facts.items():
                        return facts
            except (aiohttp.ClientError, OSError):
                pass  # it does not listen yet, or not any more
            await asyncio.sleep(0.05)


async def ask(session, prompt, tokens=4):
    """The status and the tokens of one request; status 0 where its connection broke."""
    try:
        async with session.post("/generate", json={"prompt": prompt, "tokens": tokens}) as response:
            found = (await response.json())["tokens"] if response.status == 200 else None
            return response.status, found
    except (aiohttp.ClientConnectionError, ConnectionResetError):
        return 0, None


async def load(session, answers, counts, stop):
    """Ask one question after the other, and compare each answer with the first one to it."""
    number = 0
    while not stop.is_set():
        prompt = [number % 50, 7]
        status, tokens = await ask(session, prompt)
        counts[status] += 1
        if status == 200:
            assert answers.setdefault(number % 50, tokens) == tokens
        else:
            await asyncio.sleep(0.02)
        number += 1


def client(port):
    timeout = aiohttp.ClientTimeout(total=scaled(40))
    return aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout)


async def test_clients_get_answers_and_errors_of_their_own(start, port):
    async with start(2, "inference.py", "--port", str(port)) as job, client(port) as session:
        await health(session, ranks=[0, 1])
        alone = [await ask(session, [n], 1 + n % 5) for n in range(20)]
        together = await asyncio.gather(*(ask(session, [n], 1 + n % 5) for n in range(20)))
        assert together == alone  # in whichever batch
        assert [len(tokens) for _, tokens in alone] == [1 + n % 5 for n in range(20)]
        for bad in ({}, [], {"prompt": []}, {"prompt": [256]}, {"prompt": [1], "tokens": 65}):
            async with session.post("/generate", json=bad) as response:
                assert response.status == 400
        leaving = [asyncio.create_task(ask(session, [n], 64)) for n in range(10)]
        await asyncio.sleep(0.01)
        for each in leaving[::2]:
            each.cancel()  # the client hangs up
        statuses = [status for status, _ in await asyncio.gather(*leaving[1::2])]
        assert statuses == [200] * 5
        assert await ask(session, [3], 4) == alone[3]
        await session.post("/stop")
        code, output = await job.end()
        assert code == 0, output


@pytest.mark.parametrize("dead", [1, 0])
async def test_a_rank_killed_under_load_leaves_no_request_without_an_answer(start, port, dead):
    options = ("--max-restarts", "3")
    async with (
        start(3, "inference.py", "--port", str(port), options=options) as job,
        client(port) as session,
    ):
        await health(session, ranks=[0, 1, 2])
        answers, counts, stop = {}, Counter(), asyncio.Event()
        clients = [asyncio.create_task(load(session, answers, counts, stop)) for _ in range(8)]
        await until(lambda: counts[200] >= 100)
        job.kill(dead)
        await health(session, ranks=[0, 1, 2], generation=2)  # one rank fewer, and one more again
        served = counts[200]
        await until(lambda: counts[200] >= served + 100)
        stop.set()
        await asyncio.gather(*clients)  # every request ended
        assert set(counts) <= ({200, 503} if dead else {200, 503, 0}), counts
        assert counts[503] <= 8  # one batch of eight clients at the most
        await session.post("/stop")
        await job.end()
