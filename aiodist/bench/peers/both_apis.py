"""Both APIs of aiodist, each in a world of its own, so that all of them live in one process."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import Interval, Peer, Place, clock
from aiodist.bench.peers.torch_shaped import TorchShapedPeer, bind
from aiodist.launch.rank_function import environment_variables

VARIABLE = "AIODIST_TRANSPORT"
"""Names the transports of a world that is initialised; the default ones where it is not set."""


def _async_api() -> Any:
    """Return the functions of ``import aiodist`` that operations are made of."""
    from aiodist.api import blocks, closing, collectives, lifecycle, p2p

    return SimpleNamespace(
        init_process_group=lifecycle.init_process_group,
        destroy_process_group=closing.destroy_process_group,
        all_reduce=collectives.all_reduce,
        broadcast=collectives.broadcast,
        all_gather_into_tensor=blocks.all_gather_into_tensor,
        reduce_scatter_tensor=blocks.reduce_scatter_tensor,
        all_to_all_single=blocks.all_to_all_single,
        barrier=collectives.barrier,
        send=p2p.send,
        recv=p2p.recv,
    )


class AsyncApi(Peer):
    """``import aiodist``, on a uvloop that runs during this peer's turns only."""

    def __init__(self, name: str, transport: str | None) -> None:
        self.name = name
        self._transport = transport

    def open(self, place: Place) -> None:
        import uvloop

        from aiodist.groups.world import World, use_world

        self._dist = _async_api()
        self._context = contextvars.copy_context()
        self._context.run(use_world, World())
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with environment_variables({VARIABLE: self._transport}):
            self._runner.run(self._initialise(place), context=self._context)

    async def _initialise(self, place: Place) -> None:
        await self._dist.init_process_group(
            store=place.store, rank=place.rank, world_size=place.ranks
        )

    def turn(self, call: Call, numbers: range) -> list[Interval]:
        return self._runner.run(self._turn(call, numbers), context=self._context)

    async def _turn(self, call: Call, numbers: range) -> list[Interval]:
        operation, repeats = self._bind(call), range(call.repeats)
        intervals: list[Interval] = []
        for number in numbers:
            call.write(number)
            await self._dist.barrier()
            call.arrive(number)
            stamps = [clock()]
            for _ in repeats:
                await operation()
                stamps.append(clock())
            await self._dist.barrier()
            call.check(number, self.name)
            intervals += pairwise(stamps)
        await self._dist.barrier()
        # The loop stops after this; what it has put off to its next round goes out before.
        for _ in range(3):
            await asyncio.sleep(0)
        return intervals

    def _bind(self, call: Call) -> Callable[[], Awaitable[Any]]:
        if call.operation != "send_recv":
            return bind(self._dist, call)
        dist, source, target = self._dist, call.source, call.target

        async def ping() -> None:
            await dist.send(source, 1)
            await dist.recv(target, 1)

        async def pong() -> None:
            await dist.recv(target, 0)
            await dist.send(target, 0)

        return ping if call.rank == 0 else pong

    def close(self) -> None:
        self._runner.run(self._dist.destroy_process_group(), context=self._context)
        self._runner.close()


class BlockingApi(TorchShapedPeer):
    """``import aiodist.sync``, whose loop has a thread of its own."""

    def __init__(self, name: str, transport: str | None) -> None:
        self.name = name
        self._transport = transport

    def open(self, place: Place) -> None:
        import aiodist.sync
        from aiodist.groups.world import World, use_world

        self._dist = aiodist.sync
        self._context = contextvars.copy_context()
        self._context.run(use_world, World())
        with environment_variables({VARIABLE: self._transport}):
            self._context.run(
                self._dist.init_process_group,
                store=place.store,
                rank=place.rank,
                world_size=place.ranks,
                torch_group=False,
            )

    def turn(self, call: Call, numbers: range) -> list[Interval]:
        return self._context.run(super().turn, call, numbers)

    def close(self) -> None:
        self._context.run(self._dist.destroy_process_group)
