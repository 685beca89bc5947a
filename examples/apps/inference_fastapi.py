"""A tensor-parallel model behind FastAPI: the service is the application's lifespan.

    pip install 'aiodist[examples]'
    aiodist run -n 4 --max-restarts 8 examples/apps/inference_fastapi.py --port 8000
    curl -L localhost:8002/generate --json '{"prompt": [1, 2, 3], "tokens": 8}'
    curl localhost:8000/health
    curl -L -X POST localhost:8000/stop

Every rank runs the same application, rank 2 at port 8002. The leader answers, the others redirect to
it. A load balancer in front of them may look for the leader itself: `/health` is 200 there alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, Field
from sharded_model import MOST_TOKENS, VOCABULARY, take_in, worker

import aiodist as dist

LIMIT_SECONDS = 30.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Take part in the service as long as the server runs."""
    await (dist.rejoin() if dist.is_replacement() else dist.init_process_group())
    await dist.register_elastic()
    async with dist.serving(worker, max_batch=16) as service:
        app.state.service = service
        tasks = [asyncio.create_task(take_in(service)), asyncio.create_task(end_with(service))]
        yield
        for task in tasks:
            task.cancel()
    await dist.destroy_process_group()


async def end_with(service: dist.Service) -> None:
    """End this rank's server when the leader has ended the service."""
    try:
        await service.until_closed()
    finally:
        app.state.server.should_exit = True


app = FastAPI(lifespan=lifespan)


class Wanted(BaseModel):
    """The body of a request."""

    prompt: list[Annotated[int, Field(ge=0, lt=VOCABULARY)]] = Field(min_length=1)
    tokens: int = Field(1, gt=0, le=MOST_TOKENS)


def at_leader(request: Request) -> Response | None:
    """Return a redirection where another rank leads; None on the leader.

    Raises 503 while the ranks load, or make a new group.
    """
    service: dist.Service = app.state.service
    rank = service.group.global_rank
    if service.leader == rank:
        return None
    if not service.is_serving:
        raise HTTPException(503, "no rank leads now", {"Retry-After": "1"})
    assert request.url.port is not None
    return RedirectResponse(request.url.replace(port=request.url.port + service.leader - rank))


@app.post("/generate")
async def generate(wanted: Wanted, request: Request) -> Response:
    """Answer on the leader. A client that hangs up cancels its request."""
    if elsewhere := at_leader(request):
        return elsewhere
    call = asyncio.ensure_future(app.state.service.call(wanted.model_dump()))
    hang_up = asyncio.ensure_future(request.receive())  # the body is read: what comes is the end
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.wait({call, hang_up}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return Response(status_code=499)
            return JSONResponse({"tokens": call.result()})
    except (dist.GroupEndedError, dist.ServiceClosedError, TimeoutError) as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    finally:
        call.cancel()
        hang_up.cancel()


@app.get("/health")
async def health() -> Response:
    """Say which ranks serve: 200 on the leader, 503 on the others."""
    service: dist.Service = app.state.service
    group = service.group
    facts = {"ranks": group.ranks, "generation": group.generation, "leader": service.leader}
    ready = service.is_serving and service.leader == group.global_rank
    return JSONResponse(facts, 200 if ready else 503)


@app.post("/stop")
async def stop(request: Request) -> Response:
    """End the service on all ranks."""
    if elsewhere := at_leader(request):
        return elsewhere
    app.state.server.should_exit = True
    return Response()


def main() -> None:
    """Serve at the port of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    port = arguments.port + int(os.environ.get("RANK", "0"))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    app.state.server = server
    asyncio.run(server.serve())
    if server.lifespan.should_exit:  # it could not start, or not end in order
        sys.exit(1)


if __name__ == "__main__":
    main()
