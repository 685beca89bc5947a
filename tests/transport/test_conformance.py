"""Every transport keeps the promises of transport/base_transport.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiodist.testing.check_transport import TRANSPORT_CHECKS, Make, connected, pattern
from aiodist.testing.sinks import Memory
from aiodist.transport.base_transport import Transport


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_promise(
    check: Callable[[Make], Awaitable[None]],
    make_pair: Callable[[], tuple[Transport, Transport]],
    scaled: Callable[[float], float],
) -> None:
    async def make() -> tuple[Transport, Transport]:
        return make_pair()

    async with asyncio.timeout(scaled(20)):
        await check(make)


async def test_a_stream_that_stays_on_its_host_goes_on(
    make_pair: Callable[[], tuple[Transport, Transport]], scaled: Callable[[float], float]
) -> None:
    """Told in the middle of its bytes, at both ends."""

    async def make() -> tuple[Transport, Transport]:
        return make_pair()

    data = pattern(600_000)
    async with asyncio.timeout(scaled(20)), connected(make) as ends:
        memories = [Memory(len(data)), Memory(len(data))]
        for end, memory in zip(ends, memories, strict=True):
            end.start(memory)
            end.send([data[:300_000]])
            end.leaves_host()
            end.send([data[300_000:]])
        for memory in memories:
            await memory.full()
            assert memory.data == data
