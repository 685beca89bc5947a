"""What `Store.get` and `Store.wait` take as a timeout, on every kind of store."""

import asyncio
import math
from datetime import timedelta

import pytest

from aiodist import FileStore, PrefixStore, StoreTimeoutError, TcpStore, TcpStoreServer, sync
from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.store import MemoryStore
from tests.limits import scaled


@pytest.mark.parametrize("limit", [0.02, timedelta(milliseconds=20), Deadline(0.02)])
async def test_get_and_wait_end_after_seconds_a_timedelta_or_a_deadline(make_store, limit):
    store = await make_store()
    async with asyncio.timeout(scaled(5)):
        with pytest.raises(StoreTimeoutError):
            await store.get("absent", limit)
        with pytest.raises(StoreTimeoutError) as caught:
            await store.wait(["absent"], timeout=limit)
    assert tuple(caught.value.keys) == ("absent",)


async def test_without_a_timeout_the_stores_own_applies(make_store):
    store = await make_store()
    store.timeout = 0.02
    async with asyncio.timeout(scaled(5)):
        with pytest.raises(StoreTimeoutError, match=r"0\.02 s"):
            await store.get("absent")
        with pytest.raises(StoreTimeoutError):
            await store.wait(["absent"], None)


async def test_infinity_waits_until_the_key_is_there(make_store):
    store, other = await make_store(), await make_store()
    store.timeout = 0.001
    waiting = asyncio.ensure_future(store.get("late", math.inf))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await other.set("late", b"here")
    async with asyncio.timeout(scaled(5)):
        assert await waiting == b"here"
        await store.wait(["late"], timeout=math.inf)


@pytest.mark.parametrize(
    ("limit", "error"),
    [(0, ValueError), (-1, ValueError), (math.nan, ValueError), ("5", TypeError)],
)
async def test_an_invalid_timeout_raises_and_the_store_stays_usable(limit, error):
    store = MemoryStore()
    with pytest.raises(error):
        await store.get("absent", limit)
    with pytest.raises(error):
        await store.wait(["absent"], limit)
    await store.set("there", b"1")
    assert await store.get("there") == b"1"


def test_a_part_of_a_store_has_its_timeout_and_so_has_the_blocking_api():
    store = MemoryStore()
    assert store.timeout == sync.HashStore().timeout == timedelta(minutes=5)
    store.timeout = 3
    assert PrefixStore("part", store).timeout == 3


@pytest.mark.parametrize("limit", [5, 0.5, timedelta(seconds=5), math.inf, None])
async def test_stores_are_made_with_the_timeouts_that_get_takes(tmp_path, limit):
    async with await TcpStoreServer.start("127.0.0.1") as server:
        async with await TcpStore.connect("127.0.0.1", server.port, limit) as store:
            await store.set("k", b"v")
        async with await TcpStore.connect("127.0.0.1", server.port, timeout=limit) as store:
            assert await store.get("k") == b"v"
    async with await FileStore.open(tmp_path / "store", timeout=limit) as file:
        await file.set("k", b"v")


async def test_making_a_store_refuses_a_wrong_timeout(tmp_path):
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        await TcpStore.connect("127.0.0.1", 1, timeout="soon")
    with pytest.raises(InvalidUsageError, match="timeout must be positive"):
        await FileStore.open(tmp_path / "store", timeout=-1)


@pytest.mark.parametrize(
    ("cls", "call"),
    [
        (FileStore, r"FileStore\.open\(path\)"),
        (TcpStore, r"TcpStore\.connect\(host, port\)"),
        (TcpStoreServer, r"TcpStoreServer\.start\(host, port\)"),
    ],
)
async def test_a_class_that_is_called_directly_says_how_to_make_it(cls, call):
    for arguments in ([], ["f"], ["f", 0]):
        with pytest.raises(TypeError, match=f"make it with `await {call}`"):
            cls(*arguments)
