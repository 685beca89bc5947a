"""Every kind of store as a maker: a coroutine function that gives another handle to one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from aiodist.deadline import Deadline
from aiodist.store import (
    FileStore,
    MemoryStore,
    PrefixStore,
    Store,
    TcpStore,
    TcpStoreServer,
    TorchStore,
)

Make = Callable[[], Awaitable[Store]]


@pytest.fixture(scope="session", autouse=True)
def _libuv_pipes() -> None:
    """libuv opens a pipe at its first use and keeps it; uvloop and torch have one libuv each."""
    if find_spec("uvloop"):
        import uvloop

        uvloop.new_event_loop().close()
    if find_spec("torch"):
        from torch.distributed import TCPStore

        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


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


async def tcp(stack: AsyncExitStack, tmp_path: Path) -> Make:
    server = await stack.enter_async_context(await TcpStoreServer.start("127.0.0.1"))

    async def make() -> Store:
        return await TcpStore.connect("127.0.0.1", server.port, Deadline(20))

    return make


async def tcp_and_its_host(stack: AsyncExitStack, tmp_path: Path) -> Make:
    server = await stack.enter_async_context(await TcpStoreServer.start("localhost"))
    hosted = iter([server.store()])

    async def make() -> Store:
        return next(hosted, None) or await TcpStore.connect("localhost", server.port, Deadline(20))

    return make


async def file(stack: AsyncExitStack, tmp_path: Path) -> Make:
    async def make() -> Store:
        return await FileStore.open(tmp_path / "store")

    return make


async def torch_hash(stack: AsyncExitStack, tmp_path: Path) -> Make:
    distributed = pytest.importorskip("torch.distributed")
    base = distributed.HashStore()

    async def make() -> Store:
        return TorchStore(base)

    return make


async def torch_tcp(stack: AsyncExitStack, tmp_path: Path) -> Make:
    distributed = pytest.importorskip("torch.distributed")
    # Its server ends when the object goes; pytest keeps make() beyond the check for left-overs.
    servers = [distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    stack.callback(servers.clear)
    port = servers[0].port

    async def make() -> Store:
        return TorchStore(distributed.TCPStore("127.0.0.1", port, is_master=False))

    return make


async def torch_file(stack: AsyncExitStack, tmp_path: Path) -> Make:
    distributed = pytest.importorskip("torch.distributed")

    async def make() -> Store:
        return TorchStore(distributed.FileStore(str(tmp_path / "torch"), -1))

    return make


async def torch_prefix(stack: AsyncExitStack, tmp_path: Path) -> Make:
    distributed = pytest.importorskip("torch.distributed")
    base = distributed.PrefixStore("p", distributed.HashStore())

    async def make() -> Store:
        return PrefixStore("q", TorchStore(base))

    return make


KINDS = {
    kind.__name__: kind
    for kind in (
        memory,
        prefix,
        tcp,
        tcp_and_its_host,
        file,
        torch_hash,
        torch_tcp,
        torch_file,
        torch_prefix,
    )
}


@pytest.fixture(params=KINDS)
async def make_store(request, tmp_path):
    async with AsyncExitStack() as stack:
        yield await KINDS[request.param](stack, tmp_path)
