"""A tensor-parallel model behind HTTP: aiohttp on the leader, a part of each layer on every rank.

    pip install 'aiodist[examples]'
    aiodist run -n 4 --max-restarts 8 examples/apps/inference.py --port 8000
    curl -X POST localhost:8000/generate -d '{"prompt": [1, 2, 3], "tokens": 8}'
    curl localhost:8000/health
    curl -X POST localhost:8000/stop

Concurrent requests are answered in batches. When a rank is lost, the requests of its batch get 503,
and the others go on with larger parts. The launcher starts another process, which is taken in.
"""

from __future__ import annotations

import argparse
import asyncio

from aiohttp import web
from sharded_model import MOST_TOKENS, VOCABULARY, take_in, worker

import aiodist as dist


def checked(request: object) -> dict:
    """A request of a client, or 400."""
    if isinstance(request, dict):
        prompt, tokens = request.get("prompt"), request.get("tokens", 1)
        if isinstance(prompt, list) and prompt and isinstance(tokens, int):
            valid = all(isinstance(token, int) and 0 <= token < VOCABULARY for token in prompt)
            if valid and 0 < tokens <= MOST_TOKENS:
                return {"prompt": prompt, "tokens": tokens}
    raise web.HTTPBadRequest(text='{"prompt": [0 to 255, ...], "tokens": 1 to 64} is wanted')


def application(service: dist.Service, stop: asyncio.Event, limit: float) -> web.Application:
    """The routes of the leader. ``limit``: seconds for a request."""

    async def generate(request: web.Request) -> web.Response:
        wanted = checked(await request.json())
        try:
            async with asyncio.timeout(limit):
                return web.json_response({"tokens": await service.call(wanted)})
        except (dist.GroupEndedError, dist.ServiceClosedError, TimeoutError) as error:
            raise web.HTTPServiceUnavailable(
                text=str(error), headers={"Retry-After": "1"}
            ) from error

    async def health(request: web.Request) -> web.Response:
        group = service.group
        facts = {"ranks": group.ranks, "generation": group.generation, "leader": service.leader}
        return web.json_response(facts, status=200 if service.is_serving else 503)

    async def end(request: web.Request) -> web.Response:
        stop.set()
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/generate", generate), web.get("/health", health)])
    app.add_routes([web.post("/stop", end)])
    return app


async def accept_clients(service: dist.Service, port: int, limit: float) -> None:
    """Serve HTTP until a client asks for the end, or the service ends by an error.

    A client that hangs up cancels its request.
    """
    stop = asyncio.Event()
    runner = web.AppRunner(application(service, stop, limit), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    tasks = [asyncio.create_task(wait) for wait in (stop.wait(), service.until_closed())]
    growing = asyncio.create_task(take_in(service))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (growing, *tasks):
            task.cancel()
        await asyncio.gather(growing, *tasks, return_exceptions=True)
        await runner.cleanup()


async def main() -> None:
    """Join the service, and accept clients where this rank leads it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--limit", type=float, default=30.0)
    arguments = parser.parse_args()

    await (dist.rejoin() if dist.is_replacement() else dist.init_process_group())
    await dist.register_elastic()
    async with dist.serving(worker, max_batch=16) as service:
        if await service.until_leader():
            await accept_clients(service, arguments.port, arguments.limit)
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
