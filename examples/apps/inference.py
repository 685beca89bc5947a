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
import math

import torch
from aiohttp import web
from torch import Tensor
from torch.nn import functional

import aiodist as dist

VOCABULARY, WIDTH, HIDDEN = 256, 64, 256
MOST_TOKENS = 64


class Shard:
    """A small language model: this rank has a slice of the hidden units. Equal on any number of ranks."""

    def __init__(self, rank: int, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
        up = torch.randn(HIDDEN, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
        down = torch.randn(WIDTH, HIDDEN, generator=generator, dtype=torch.float64) / HIDDEN**0.5
        self.up = up.tensor_split(size)[rank].clone()
        self.down = down.tensor_split(size, dim=1)[rank].clone()

    async def next_tokens(self, states: Tensor) -> Tensor:
        """The most likely next token for each of ``states``, after one all_reduce."""
        part = functional.relu(states @ self.up.T) @ self.down.T
        await dist.all_reduce(part)
        return ((states + part) @ self.embedding.T).argmax(1)


async def worker():
    """Load this rank's part; return what carries a batch out."""
    shard = Shard(dist.get_rank(), dist.get_world_size())

    async def generate(requests: list[dict]) -> list[list[int]]:
        texts = [list(request["prompt"]) for request in requests]
        for step in range(max(request["tokens"] for request in requests)):
            states = torch.stack([shard.embedding[text[-8:]].mean(0) for text in texts])
            found = await shard.next_tokens(states)
            for text, token, request in zip(texts, found.tolist(), requests, strict=True):
                if step < request["tokens"]:
                    text.append(token)
        return [
            text[len(request["prompt"]) :] for text, request in zip(texts, requests, strict=True)
        ]

    return generate


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
        facts = {"ranks": group.ranks, "generation": group.generation, "waiting": service.waiting}
        return web.json_response(facts, status=200 if service.is_serving else 503)

    async def end(request: web.Request) -> web.Response:
        stop.set()
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/generate", generate), web.get("/health", health)])
    app.add_routes([web.post("/stop", end)])
    return app


async def take_in(service: dist.Service) -> None:
    """Give lost ranks' places to the processes that the launcher starts for them."""
    while True:
        try:
            await service.grow(timeout=math.inf)
        except (dist.GroupEndedError, dist.CollectiveTimeoutError):
            pass  # another rank was lost meanwhile, or the newcomer was


async def accept_clients(service: dist.Service, port: int, limit: float) -> None:
    """Serve HTTP until a client asks for the end."""
    stop = asyncio.Event()
    runner = web.AppRunner(application(service, stop, limit))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    growing = asyncio.create_task(take_in(service))
    try:
        await stop.wait()
    finally:
        growing.cancel()
        await runner.cleanup()


async def main() -> None:
    """Join the service, and accept clients where this rank leads it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--limit", type=float, default=30.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    await (dist.rejoin() if dist.is_replacement() else dist.init_process_group())
    await dist.register_elastic()
    async with dist.serving(worker, max_batch=16) as service:
        if await service.until_leader():
            await accept_clients(service, arguments.port, arguments.limit)
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
