"""The inference services, driven by real clients while their ranks are killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from types import SimpleNamespace

import pytest
import uvicorn

from tests.examples.apps.conftest import APPS
from tests.examples.apps.load import BROKEN, Load, ask, connected, health
from tests.limits import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


RANKS = 3


async def check_answers(session):
    alone = [await ask(session, [n], 1 + n % 5) for n in range(20)]
    together = await asyncio.gather(*(ask(session, [n], 1 + n % 5) for n in range(20)))
    assert together == alone  # in whichever batch
    assert [len(tokens) for _, tokens in alone] == [1 + n % 5 for n in range(20)]
    for bad in ({}, [], {"prompt": []}, {"prompt": [256]}, {"prompt": [1], "tokens": 65}):
        async with session.post("/generate", json=bad) as response:
            assert response.status in (400, 422)


@pytest.mark.parametrize(
    "app",
    ["inference.py", pytest.param("inference_fastapi.py", marks=pytest.mark.examples)],
)
async def test_killed_ranks_leave_no_request_without_an_answer(start, ports, app):
    """First a worker is killed under load, then the leader."""
    options = ("--max-restarts", "4")
    doors = ports if app == "inference_fastapi.py" else ports[:1]
    async with (
        start(RANKS, app, "--port", str(ports[0]), options=options) as job,
        connected(*doors) as sessions,
    ):
        await health(sessions[0], ranks=[0, 1, 2])
        await check_answers(sessions[-1])
        leader = sessions[1 % len(sessions)]  # that of rank 1, after the second kill
        async with Load(sessions) as load:
            await load.answers(100)
            job.kill(1)
            await health(sessions[0], ranks=[0, 1, 2], generation=2)  # one rank fewer, one more
            assert set(load.counts) <= {200, 503}, load.counts
            await load.answers(100)
            job.kill(0)
            await health(leader, ranks=[0, 1, 2], generation=4, leader=1)
            await load.answers(100)
        assert set(load.counts) <= {200, 503, BROKEN}, load.counts
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

    async def until_closed(self):
        await asyncio.Event().wait()


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
        connected(ports[0]) as (session,),
    ):
        await listening(ports[0])
        asking = asyncio.create_task(ask(session, [1]))
        await service.came.wait()
        asking.cancel()
        await service.cancelled.wait()


class Failed(Waiting):
    """A service that an error has ended."""

    async def until_closed(self):
        raise RuntimeError("no memory for the model")


async def test_the_server_ends_when_its_service_has_ended(imported, ports):
    async with asyncio.timeout(scaled(30)):
        await imported("inference").accept_clients(Failed(), ports[0], limit=60)


async def listening(port):
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.01)
