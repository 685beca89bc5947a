"""The end of one of several ranks in a process, as the others see the end of a real one."""

from __future__ import annotations

import asyncio

import aiodist as dist
from aiodist.groups.world import current_world


async def barrier_of_all(ranks: asyncio.Barrier) -> None:
    """A barrier that has ended on every rank, not on this one alone, before any of them goes on.

    An operation fails on the ranks that are still in it when another one dies.
    """
    await dist.barrier()
    await ranks.wait()


async def die() -> None:
    """No goodbye: its listeners go and its streams break. The rank must do nothing more."""
    endpoint = current_world().endpoint
    endpoint._closed = True
    for listener in endpoint._listeners:
        await listener.close()
    for peer in endpoint._peers.values():
        if peer.connecting is not None:
            peer.connecting.cancel()
    for connection in [*endpoint.connections(), *(link.connection for link in endpoint._pending)]:
        connection.abort()
