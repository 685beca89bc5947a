import asyncio
import subprocess
import sys
import threading
import time

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store import TorchStore, exchange, join, torch_store
from tests.limits import scaled

distributed = pytest.importorskip("torch.distributed")


def soon() -> Deadline:
    return Deadline(20)


async def test_torch_sees_keys_that_we_set_and_the_other_way_round():
    theirs = distributed.HashStore()
    async with TorchStore(theirs) as ours:
        await ours.set("a", b"1")
        assert theirs.get("a") == b"1"
        theirs.add("b", 41)
        assert await ours.add("b", 1) == 42


async def test_waiting_does_not_occupy_the_thread():
    async with TorchStore(distributed.HashStore()) as store:
        waits = [asyncio.create_task(store.get("k", soon())) for _ in range(20)]
        assert await store.add("counter", 1) == 1
        await store.set("k", b"v")
        assert await asyncio.gather(*waits) == [b"v"] * 20


@pytest.mark.parametrize("wait", ["get", "wait"])
async def test_a_key_that_came_while_the_loop_stood_still_is_found_after_the_timeout(wait):
    class Stale(distributed.HashStore):
        """Its first answer is from before the key came, and is read after the timeout."""

        looks = 0

        def answer(self, first, later):
            self.looks += 1
            if self.looks == 1:
                time.sleep(0.2)
                return first
            return later

        def check(self, keys):
            return self.answer(False, True)

        def compare_set(self, key, expected, desired):
            return self.answer(expected.encode(), b"v")

    async with TorchStore(Stale()) as store:
        if wait == "get":
            assert await store.get("k", Deadline(0.1)) == b"v"
        else:
            await store.wait(["k"], Deadline(0.1))


async def test_get_writes_nothing():
    async with TorchStore(distributed.HashStore()) as store:
        with pytest.raises(StoreTimeoutError):
            await store.get("k", Deadline(0.01))
        assert not await store.check(["k"])
        assert await store.num_keys() == 0


async def test_close_ends_waits_and_the_thread_and_leaves_the_torch_store_open():
    theirs = distributed.HashStore()
    store = TorchStore(theirs)
    waiting = asyncio.create_task(store.get("absent", Deadline.never()))
    await store.set("k", b"")
    threads = [t for t in threading.enumerate() if t.name.startswith("aiodist-torch-store")]
    await store.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()
    with pytest.raises(DistStoreError, match=r"adapter of HashStore is closed"):
        await waiting
    with pytest.raises(DistStoreError, match=r"closed"):
        await store.add("k", 1)
    assert theirs.check(["k"])


async def test_torch_errors_become_ours():
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = distributed.TCPStore("127.0.0.1", server.port, is_master=False)
    async with TorchStore(client) as store:
        await store.set("k", b"")
        del server
        with pytest.raises(DistStoreError, match="torch's TCPStore failed") as caught:
            await store.add("k", 1)
        assert isinstance(caught.value.__cause__, RuntimeError)


async def test_call_that_hangs_is_given_up():
    release = threading.Event()

    class Hanging:
        def add(self, key: str, amount: int) -> int:
            release.wait()
            return 0

    async with TorchStore(Hanging(), call_timeout=0.02) as store:
        with pytest.raises(DistStoreError, match=r"Hanging did not answer within 0\.02 s"):
            await store.add("k", 1)
        release.set()


async def test_a_wait_at_a_store_that_hangs_ends_after_its_timeout(monkeypatch):
    release = threading.Event()

    class Hanging:
        def check(self, keys: list[str]) -> bool:
            return release.wait()

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return b"%d" % release.wait()

    monkeypatch.setattr(torch_store, "_ANSWER_SECONDS", 0.02)
    async with asyncio.timeout(scaled(5)), TorchStore(Hanging()) as store:
        try:
            for waiting in (store.get("k", 0.02), store.wait(["k"], 0.02)):
                with pytest.raises(StoreTimeoutError, match=r"key 'k' in the store within 0\.02 s"):
                    await waiting
        finally:
            release.set()


HANGING = """
import asyncio, threading
from aiodist.store import TorchStore

class Hanging:
    def num_keys(self):
        threading.Event().wait()

async def main():
    asyncio.create_task(TorchStore(Hanging()).num_keys())
    await asyncio.sleep(0.1)

asyncio.run(main())
"""


def test_the_interpreter_ends_although_a_call_hangs():
    subprocess.run([sys.executable, "-c", HANGING], check=True, timeout=scaled(20))


async def test_ranks_meet_over_prefixed_torch_stores():
    base = distributed.PrefixStore("job", distributed.HashStore())

    async def rank_main(rank: int) -> list[bytes]:
        async with TorchStore(base) as ours:
            store = await join(ours, rank, 3, soon())
            return await exchange(store, rank, 3, b"%d" % rank, soon())

    assert await asyncio.gather(*map(rank_main, range(3))) == [[b"0", b"1", b"2"]] * 3


UNCLOSED = """
import asyncio
from torch.distributed import HashStore
from aiodist.deadline import Deadline
from aiodist.store import TorchStore

async def main():
    store = TorchStore(HashStore())
    asyncio.create_task(store.get("absent", Deadline.never()))
    await store.set("k", b"")

asyncio.run(main())
"""


@pytest.mark.slow
def test_interpreter_ends_without_close():
    subprocess.run([sys.executable, "-c", UNCLOSED], check=True, timeout=scaled(40))


def test_the_package_does_not_import_torch():
    code = "import aiodist.store, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


LATE_SECONDS = 0.1


async def test_a_remote_set_is_visible_when_it_returns():
    """torch's TCPStore sends a value and waits for nothing; here it comes late to the server."""
    master = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    async def pass_on(reader, writer, seconds):
        while data := await reader.read(1 << 16):
            await asyncio.sleep(seconds)
            writer.write(data)
        writer.close()

    ended = asyncio.Event()

    async def connect(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", master.port)
        await asyncio.gather(pass_on(reader, there[1], LATE_SECONDS), pass_on(there[0], writer, 0))
        ended.set()

    async with (
        await asyncio.start_server(connect, "127.0.0.1", 0) as road,
        TorchStore(master) as here,
    ):
        port = road.sockets[0].getsockname()[1]
        far = await asyncio.to_thread(distributed.TCPStore, "127.0.0.1", port, is_master=False)
        async with TorchStore(far) as there:
            await here.set("key", b"old")
            await there.set("key", b"new")
            assert await here.get("key", soon()) == b"new"
        del far, there  # its connection ends, and then the road's do
        await ended.wait()
