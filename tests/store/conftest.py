"""Every kind of store as a maker: a coroutine function that gives another handle to one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aiodist.store import MemoryStore, PrefixStore, Store

Make = Callable[[], Awaitable[Store]]


async def memory(stack: AsyncExitStack, tmp_path: Path) -> Make:
    store = MemoryStore()

    async def make() -> Store:
        return store

    return make


async def prefix(stack: AsyncExitStack, tmp_path: Path) -> Make:
    base = MemoryStore()

    async def make() -> Store:
        return PrefixStore("outer", PrefixStore("inner", base))

    return make


KINDS = {kind.__name__: kind for kind in (memory, prefix)}


@pytest.fixture(params=KINDS)
async def make_store(request, tmp_path):
    async with AsyncExitStack() as stack:
        yield await KINDS[request.param](stack, tmp_path)
