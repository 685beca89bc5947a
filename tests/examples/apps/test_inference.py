"""The inference services, driven by real clients while their ranks are killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections import Counter
from types import SimpleNamespace

import aiohttp
import pytest
import uvicorn

from tests.examples.apps.conftest import APPS
from tests.examples.apps.waiting import until
from tests.limits import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


RANKS = 3


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


async def load(sessions, answers, counts, stop):
    """Ask one question after the other, and compare each answer with the first one to it.

    After a connection that broke, the next question goes to the next of ``sessions``.
    """
    number = turn = 0
    while not stop.is_set():
        prompt = [number % 50, 7]
        status, tokens = await ask(sessions[turn % len(sessions)], prompt)
        counts[status] += 1
        if status == 200:
            assert answers.setdefault(number % 50, tokens) == tokens
        else:
            turn += status == 0
            await asyncio.sleep(0.02)
        number += 1


@contextlib.asynccontextmanager
async def clients(*ports):
    timeout = aiohttp.ClientTimeout(total=scaled(40))
    async with contextlib.AsyncExitStack() as stack:
        made = [aiohttp.ClientSession(f"http://127.0.0.1:{p}", timeout=timeout) for p in ports]
        yield [await stack.enter_async_context(session) for session in made]


async def check_answers(session):
    alone = [await ask(session, [n], 1 + n % 5) for n in range(20)]
    together = await asyncio.gather(*(ask(session, [n], 1 + n % 5) for n in range(20)))
    assert together == alone  # in whichever batch
    assert [len(tokens) for _, tokens in alone] == [1 + n % 5 for n in range(20)]
    for bad in ({}, [], {"prompt": []}, {"prompt": [256]}, {"prompt": [1], "tokens": 65}):
        async with session.post("/generate", json=bad) as response:
            assert response.status in (400, 422)


@pytest.mark.parametrize("app", ["inference.py", "inference_fastapi.py"])
async def test_killed_ranks_leave_no_request_without_an_answer(start, ports, app):
    """First a worker is killed under load, then the leader."""
    options = ("--max-restarts", "4")
    doors = ports if app == "inference_fastapi.py" else ports[:1]
    async with (
        start(RANKS, app, "--port", str(ports[0]), options=options) as job,
        clients(*doors) as sessions,
    ):
        await health(sessions[0], ranks=[0, 1, 2])
        await check_answers(sessions[-1])
        answers, counts, stop = {}, Counter(), asyncio.Event()
        asking = [asyncio.create_task(load(sessions, answers, counts, stop)) for _ in range(8)]
        await until(lambda: counts[200] >= 100)
        job.kill(1)
        await health(sessions[0], ranks=[0, 1, 2], generation=2)  # one rank fewer, one more again
        assert set(counts) <= {200, 503}, counts
        served = counts[200]
        await until(lambda: counts[200] >= served + 100)
        job.kill(0)
        leader = sessions[1 % len(sessions)]  # rank 1 leads now
        await health(leader, ranks=[0, 1, 2], generation=4)
        served = counts[200]
        await until(lambda: counts[200] >= served + 100)
        stop.set()
        await asyncio.gather(*asking)  # every request ended
        assert set(counts) <= {200, 503, 0}, counts
        await leader.post("/stop")
        _, output = await job.end()
    assert "then ended" not in output, output  # no rank but the killed ones


class Waiting:
    """A service whose requests are never answered: says when one came, and when it was cancelled."""

    leader = 0
    is_serving = True
    group = SimpleNamespace(global_rank=0)

    def __init__(self):
        self.came, self.cancelled = asyncio.Event(), asyncio.Event()

    async def call(self, request):
        self.came.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def until_leader(self):
        return False


@pytest.fixture
def imported(monkeypatch):
    """``imported(app)``: the module of an example."""
    monkeypatch.syspath_prepend(APPS)
    names = []

    def module(name):
        names.extend((name, "sharded_model"))
        return importlib.import_module(name)

    yield module
    for name in names:
        sys.modules.pop(name, None)


@contextlib.asynccontextmanager
async def aiohttp_server(module, service, port):
    task = asyncio.create_task(module.accept_clients(service, port, limit=60))
    yield
    task.cancel()
    await asyncio.wait({task})


@contextlib.asynccontextmanager
async def uvicorn_server(module, service, port):
    module.app.state.service = service
    server = uvicorn.Server(uvicorn.Config(module.app, port=port, lifespan="off"))
    task = asyncio.create_task(server.serve())
    yield
    server.should_exit = True
    await task


@pytest.mark.parametrize(
    ("app", "server"), [("inference", aiohttp_server), ("inference_fastapi", uvicorn_server)]
)
async def test_a_client_that_hangs_up_cancels_its_request(imported, ports, app, server):
    service = Waiting()
    async with (
        asyncio.timeout(scaled(30)),
        server(imported(app), service, ports[0]),
        clients(ports[0]) as (session,),
    ):
        await listening(ports[0])
        asking = asyncio.create_task(ask(session, [1]))
        await service.came.wait()
        asking.cancel()
        await service.cancelled.wait()


async def listening(port):
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.01)
