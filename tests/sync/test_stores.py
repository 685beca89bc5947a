"""The blocking stores: torch's names and meaning."""

from __future__ import annotations

import gc
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import aiodist.sync as dist
from aiodist.sync.loop_handoff import LINGER, LONGEST_LINGER
from tests.limits import scaled

Make = Callable[[], dist.Store]


@pytest.fixture(params=["hash", "file", "tcp", "client", "prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dist.Store]:
    opened: list[dist.Store] = []
    made: dist.Store
    if request.param == "file":
        made = dist.FileStore(str(tmp_path / "store"), 1)
    elif request.param == "hash":
        made = dist.HashStore()
    else:
        made = dist.TCPStore("127.0.0.1", 0, None, True)
    opened.append(made)
    if request.param == "client":
        assert isinstance(made, dist.TCPStore)
        made = dist.TCPStore("127.0.0.1", made.port, timeout=timedelta(seconds=10))
        opened.append(made)
    elif request.param == "prefix":
        made = dist.PrefixStore("part", made)
    yield made
    for each in reversed(opened):
        each.close()


def test_the_loop_leaves_the_requests_to_a_server_unread_for_a_short_time_only() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True)
    client = dist.TCPStore("127.0.0.1", server.port)
    assert server._opened.longest_pause == LINGER
    assert client._opened.longest_pause == LONGEST_LINGER
    client.close()
    server.close()


def test_every_method(store: dist.Store) -> None:
    store.set("text", "value")
    store.set("bytes", b"\x00\xff")
    assert (store.get("text"), store.get("bytes")) == (b"value", b"\x00\xff")
    assert [store.add("counter", 1), store.add("counter", 6)] == [1, 7]
    assert store.get("counter") == b"7"
    assert store.check(["text", "counter"])
    assert not store.check(["text", "absent"])
    assert store.compare_set("text", "value", "new") == b"new"
    assert store.compare_set("text", "value", "newer") == b"new"
    assert store.compare_set("fresh", "", "first") == b"first"
    assert store.num_keys() == 4
    assert store.delete_key("fresh")
    assert not store.delete_key("fresh")
    store.wait(["text"], timedelta(seconds=1))
    store.wait(["text"], math.inf)
    store.set_timeout(math.inf)
    assert store.timeout == timedelta.max
    assert store.get("counter") == b"7"
    store.set_timeout(timedelta(milliseconds=20))
    assert store.timeout == timedelta(milliseconds=20)
    with pytest.raises(dist.StoreTimeoutError, match="absent"):
        store.get("absent")
    with pytest.raises(dist.StoreTimeoutError):
        store.wait(["absent"])
    with pytest.raises(TypeError, match="a store's value must be str or bytes, not int"):
        store.set("text", 1)  # type: ignore[arg-type]


def test_a_get_waits_for_a_set_of_another_thread(store: dist.Store) -> None:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(store.get("late")))
    thread.start()
    store.set("late", "here")
    thread.join()
    assert found == [b"here"]


def test_a_tcp_store_waits_for_its_workers() -> None:
    with pytest.raises(dist.StoreTimeoutError, match=r"1 of 2 processes .* within 0\.02 s"):
        dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(milliseconds=20))
    master = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    assert (master.host, master.port > 0) == ("127.0.0.1", True)
    worker = dist.TCPStore("127.0.0.1", master.port, 2)
    worker.set("a", "b")
    assert master.get("a") == b"b"
    worker.close()
    master.close()
    with pytest.raises(dist.DistStoreError, match="closed"):
        master.get("a")
    master.close()


def test_a_forgotten_store_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    before = set(threading.enumerate())
    store = dist.FileStore(path)
    store.set("a", "b")
    assert store.path == str(path)
    assert path.exists()
    (thread,) = (new for new in set(threading.enumerate()) - before if new.name == "aiodist")
    del store
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    assert not path.exists()


def test_a_group_keeps_the_store_that_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "store"
    dist.init_process_group(store=dist.FileStore(path), rank=0, world_size=1)
    gc.collect()
    assert path.exists()
    dist.destroy_process_group()


def test_a_prefix_needs_a_store_of_the_blocking_api() -> None:
    with pytest.raises(TypeError, match=r"aiodist\.sync"):
        dist.PrefixStore("a", object())  # type: ignore[arg-type]
    store = dist.HashStore()
    part = dist.PrefixStore("a", store)
    part.set("b", "c")
    assert store.get("a/b") == b"c"
    assert part.underlying_store is store
    store.close()


def test_a_prefix_waits_as_long_as_the_whole_store() -> None:
    store = dist.HashStore()
    part = dist.PrefixStore("b", dist.PrefixStore("a", store))
    store.set_timeout(0.01)
    assert part.timeout == timedelta(seconds=0.01)
    for wait in (partial(part.get, "never"), partial(part.wait, ["never"])):
        with pytest.raises(dist.StoreTimeoutError):
            wait()
    part.set_timeout(7)
    assert store.timeout == timedelta(seconds=7)
    store.close()


def test_a_store_without_a_timeout_has_the_usual_one() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=None)
    assert store.timeout == timedelta(minutes=5)
    store.close()
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=math.inf)
    store.set("key", b"value")
    assert store.get("key") == b"value"
    store.close()


def test_keys_and_amounts_of_a_wrong_type_are_refused(store: dist.Store) -> None:
    with pytest.raises(TypeError, match="keys must be a list of str"):
        store.wait("zz")
    with pytest.raises(TypeError, match="a counter's amount must be an int"):
        store.add("k", 1.5)  # type: ignore[arg-type]


def test_closing_frees_threads_that_wait_in_the_store(store: dist.Store) -> None:
    owner = store.underlying_store if isinstance(store, dist.PrefixStore) else store
    keeper = dist.HashStore()  # the loop ends in this thread, which restores the handler of Ctrl-C
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            store.get("never")
        except dist.DistStoreError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.set("ready", b"")  # behind the wait, most likely
    owner.close()
    waiting.join(scaled(10))
    assert not waiting.is_alive()
    keeper.close()
    (error,) = errors
    assert "this store was closed" in str(error)


def test_a_forked_child_cannot_use_its_parents_store(store: dist.Store) -> None:
    store.set("key", b"of the parent")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            store.set("key", b"of the child")
            os.write(writer, b"it was set")
        except dist.DistStoreError as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
            store.close()
            os.write(writer, b", and closed")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    assert text.startswith("DistStoreError: this store belongs to the process that this one was")
    assert text.endswith(", and closed")
    assert store.get("key") == b"of the parent"


def test_a_server_ends_although_its_own_store_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def close(_: object) -> None:
        raise OSError("lost")

    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setattr(type(store.inner), "close", close)
    with pytest.raises(OSError, match="lost"):
        store.close()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", store.port))
