"""A worker's part of a service in one group: it executes the batches that the leader sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiodist.api.object_streams import open_stream
from aiodist.api.process_group import ProcessGroup
from aiodist.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    DistError,
    GroupRevokedError,
    StreamClosedError,
)
from aiodist.groups.collective_backend import ObjectStream
from aiodist.service.handlers import Handler
from aiodist.service.leading import GROW
from aiodist.service.outcomes import Outcome, outcome_of, stop

Grow = Callable[[Sequence[int]], Awaitable[ProcessGroup]]


async def follow(group: ProcessGroup, leader: int, handler: Handler, tag: int, grow: Grow) -> bool:
    """Serve ``leader`` until it ends the service, or a newcomer was taken in.

    Returns whether the leader has ended it. Raises GroupEndedError when the group has ended.
    """
    try:
        async with open_stream(leader, tag, group=group) as stream:
            return await _follow(group, stream, handler, grow)
    except StreamClosedError as error:
        raise GroupRevokedError(
            f"rank {leader} has left the service: {error}", group=group.group_name, rank=leader
        ) from None


async def _follow(group: ProcessGroup, stream: ObjectStream, handler: Handler, grow: Grow) -> bool:
    engine, rank = group._engine, group.global_rank
    reading = asyncio.ensure_future(anext(stream))
    try:
        while True:
            await asyncio.wait({reading})
            try:
                kind, argument = reading.result()
            except StopAsyncIteration:
                return True
            except (CollectiveError, StreamClosedError):  # of the group, or the leader has left
                raise
            except (TypeError, DistError) as error:
                # The object alone cannot be decoded. If the stream has failed, `send` raises its error.
                reading = asyncio.ensure_future(anext(stream))
                await stream.send(Outcome(rank, engine.n_started, error).encode())
                continue
            if kind == GROW:
                try:
                    if await grow(argument) is not group:
                        return False
                except CollectiveTimeoutError:  # no process came: the leader tells its caller
                    pass
                reading = asyncio.ensure_future(anext(stream))
                continue
            reading = asyncio.ensure_future(anext(stream))
            await stream.send((await _execute(handler, argument, reading, group)).encode())
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _execute(
    handler: Handler, values: list[Any], reading: asyncio.Future[Any], group: ProcessGroup
) -> Outcome:
    """Execute a batch. Nothing comes from the leader meanwhile, unless the group ends."""
    task = asyncio.ensure_future(handler(values))  # a task of its own can be stopped alone
    try:
        await asyncio.wait({task, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            reading.result()  # raises, as the group has ended or the leader has left
        return await outcome_of(task, group.global_rank, group._engine)
    finally:
        await stop(task)
