"""Stores of the blocking API: names and meaning of torch's, over those of `aiodist.store`.

Values are str or bytes going in and bytes coming out. Waiting calls raise StoreTimeoutError, which
names the missing keys. A store closes by ``close()``, or with its last reference.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store import FileStore as AsyncFileStore
from aiodist.store import MemoryStore, TcpStore, TcpStoreServer
from aiodist.store import PrefixStore as AsyncPrefixStore
from aiodist.store import Store as AsyncStore
from aiodist.store.base_store import STORE_TIMEOUT
from aiodist.sync.loop_handoff import LINGER, LONGEST_LINGER
from aiodist.sync.portal import Portal, portal
from aiodist.unpicklable import Unpicklable

T = TypeVar("T")

_JOINED = "aiodist/joined"
_COMPLETE = "aiodist/complete"

_CLOSED = "this store was closed; make a new one"
_INHERITED = "this store belongs to the process that this one was forked from; make a new one here"


class Store(Unpicklable):
    """What all stores of the blocking API can do. Any thread may call; a call blocks its thread."""

    def __init__(self, inner: AsyncStore, timeout: timedelta, owner: Portal) -> None:
        """Not for users: make a `TCPStore`, `FileStore`, `HashStore` or `PrefixStore`.

        Args:
            inner: The store of the async API.
            timeout: How long to wait for keys.
            owner: The thread of the event loop.
        """
        self.inner = inner
        self._timeout = timeout
        self._portal = owner

    def set(self, key: str, value: str | bytes) -> None:
        """Write ``value`` under ``key``, over what was there.

        Args:
            key: The name of the entry.
            value: Text or bytes.

        Raises:
            DistStoreError: The store fails.
        """
        self._run(self.inner.set, key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of ``key``; wait for it until the store's timeout.

        Args:
            key: The name of the entry.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """
        return self._run(self.inner.get, key, Deadline(self.timeout))

    def wait(self, keys: Sequence[str], timeout: float | timedelta | None = None) -> None:
        """Return when all ``keys`` are there.

        Args:
            keys: The names of the entries.
            timeout: Seconds or a timedelta; None is the store's timeout.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """
        self._run(self.inner.wait, keys, Deadline(self.timeout if timeout is None else timeout))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its new value.

        Args:
            key: The name of the counter, which starts at 0.
            amount: What to add, also below 0.

        Raises:
            DistStoreError: The store fails.
        """
        return self._run(self.inner.add, key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write ``desired`` if the value is ``expected``.

        Args:
            key: The name of the entry.
            expected: Text or bytes that have to be there; empty if the key has to be absent.
            desired: Text or bytes.

        Returns:
            The value that is there afterwards (``expected`` if the key is still absent).

        Raises:
            DistStoreError: The store fails.
        """
        return self._run(self.inner.compare_set, key, _bytes(expected), _bytes(desired))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all ``keys`` exist, without waiting.

        Args:
            keys: The names of the entries.

        Raises:
            DistStoreError: The store fails.
        """
        return self._run(self.inner.check, keys)

    def delete_key(self, key: str) -> bool:
        """Remove ``key``; return whether it existed.

        Args:
            key: The name of the entry.

        Raises:
            DistStoreError: The store fails.
        """
        return self._run(self.inner.delete_key, key)

    def num_keys(self) -> int:
        """Return the number of keys; a `TCPStore` with a ``world_size`` adds two of its own."""
        return self._run(self.inner.num_keys)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set how long `get` and `wait` wait for keys.

        Args:
            timeout: Seconds or a timedelta; ``math.inf`` is no limit.
        """
        self._timeout = _as_timedelta(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait for keys."""
        return self._timeout

    def close(self) -> None:
        """Give up this handle's connection, server or file. Idempotent.

        Threads that wait in a call of it raise DistStoreError.
        """

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return self._portal.run(function, *args)


class _Opened(Store):
    """A store that holds something open on the portal's loop, until closed or forgotten."""

    def __init__(
        self, opening: Callable[[], Coroutine[Any, Any, _OpenedStore]], timeout: Any
    ) -> None:
        owner = portal()
        owner.enter()
        try:
            with owner.opening(lambda opened: opened) as run:
                opened: _OpenedStore = run(opening)
        finally:
            owner.leave()
        super().__init__(opened.store, _as_timedelta(timeout), owner)
        self._opened = opened
        # The garbage collector may run in any thread, the loop's too, so this must not wait.
        self._forgotten = weakref.finalize(self, owner.leave_soon, opened)
        self._forgotten.atexit = False  # the portal's end takes care of it

    def close(self) -> None:
        if self._forgotten.detach() is not None:
            try:
                self._portal.run(self._opened.leave)
            finally:
                self._portal.remove_user(self._opened)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        if not self._forgotten.alive:
            raise DistStoreError(_CLOSED)
        result: T = self._portal.run(self._opened.call, function, *args)
        return result


class _OpenedStore:
    """The async side of an opened store."""

    def __init__(self, store: AsyncStore, server: TcpStoreServer | None = None) -> None:
        self.store = store
        self.server = server
        self._why_closed = ""
        self._calls: set[asyncio.Task[Any]] = set()

    async def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Return what ``await function(*args)`` does, a call of the store.

        Raises DistStoreError if the store is closed, before or meanwhile: a store in this process's
        own memory has no connection whose end would tell those that wait.
        """
        if self._why_closed:
            raise DistStoreError(self._why_closed)
        task = asyncio.current_task()
        assert task is not None  # it is a coroutine
        self._calls.add(task)
        try:
            return await function(*args)
        except asyncio.CancelledError:
            if self._why_closed:
                raise DistStoreError(self._why_closed) from None
            raise
        finally:
            self._calls.discard(task)

    @property
    def longest_pause(self) -> float:
        return LONGEST_LINGER if self.server is None else LINGER

    async def leave(self) -> None:
        if self._why_closed:
            return
        self._why_closed = _CLOSED
        for task in self._calls:
            task.cancel()
        try:
            await self.store.close()
        finally:
            if self.server is not None:
                await self.server.close()

    def close_in_child(self) -> None:
        self._why_closed = _INHERITED
        self.store.close_in_child()
        if self.server is not None:
            self.server.close_in_child()


class TCPStore(_Opened):
    """A store served by one process to all others."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: float | timedelta | None = STORE_TIMEOUT,
        wait_for_workers: bool = True,
    ) -> None:
        """Serve a store, or connect to the process that serves it.

        Args:
            host_name: Where the store is served.
            port: The port; 0 takes a free one, see `port`.
            world_size: How many stores are made, the master's own included. None or below 1: any
                number.
            is_master: Whether this process serves the store.
            timeout: For this and for calls that wait for keys: seconds or a timedelta. None means
                5 minutes, ``math.inf`` no limit.
            wait_for_workers: Whether the master waits until ``world_size`` stores have been made.

        Raises:
            DistStoreError: The port is in use, or the name does not resolve.
            StoreTimeoutError: No server, or too few others, came in time.
        """
        waits = is_master and wait_for_workers

        async def opening() -> _OpenedStore:
            deadline = Deadline(STORE_TIMEOUT if timeout is None else timeout)
            if is_master:
                server = await TcpStoreServer.start(host_name, port)
                opened = _OpenedStore(server.store(), server)
            else:
                opened = _OpenedStore(await TcpStore.connect(host_name, port, deadline))
            try:
                if world_size is not None and world_size > 0:
                    await _join(opened.store, world_size, waits, deadline)
            except BaseException:
                await opened.leave()
                raise
            return opened

        super().__init__(opening, timeout)
        server = self._opened.server
        self._address = (host_name, port if server is None else server.port)

    @property
    def host(self) -> str:
        """Where the store is served, as it was named."""
        return self._address[0]

    @property
    def port(self) -> int:
        """The port that the store is served at."""
        return self._address[1]


async def _join(store: AsyncStore, size: int, waits: bool, deadline: Deadline) -> None:
    if await store.add(_JOINED, 1) == size:
        await store.set(_COMPLETE, b"")
    elif waits:
        try:
            await store.wait([_COMPLETE], deadline)
        except StoreTimeoutError:
            made = await store.add(_JOINED, 0)
            raise StoreTimeoutError(
                f"{made} of {size} processes have made the store within {deadline.timeout:g} s, this "
                "one included: see whether the others were started with this host, port and world_size"
            ) from None


class FileStore(_Opened):
    """A store in a file, for processes that share a file system. The file grows by each write."""

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        """Join the store in a file, which is made if absent, and removed when its last user closes it.

        Args:
            file_name: The file, on a file system that all ranks share.
            world_size: torch's parameter; it has no effect.

        Raises:
            DistStoreError: The store fails.
        """

        async def opening() -> _OpenedStore:
            return _OpenedStore(await AsyncFileStore.open(file_name))

        super().__init__(opening, STORE_TIMEOUT)
        self._path = os.fspath(file_name)

    @property
    def path(self) -> str:
        """The file."""
        return self._path


class HashStore(_Opened):
    """A store in this process's memory, for its threads."""

    def __init__(self) -> None:
        async def opening() -> _OpenedStore:
            return _OpenedStore(MemoryStore())

        super().__init__(opening, STORE_TIMEOUT)


class PrefixStore(Store):
    """A part of ``store``: every key gets ``prefix + "/"`` before it."""

    def __init__(self, prefix: str, store: Store) -> None:
        """Make a part of a store.

        Args:
            prefix: What goes before each key, with a ``/``.
            store: The whole store, one of `aiodist.sync`.

        Raises:
            TypeError: ``store`` is another object.
        """
        if not isinstance(store, Store):
            raise TypeError(f"store must be a store of aiodist.sync, not {type(store).__name__}")
        self._beneath = store
        super().__init__(AsyncPrefixStore(prefix, store.inner), store.timeout, store._portal)

    @property
    def underlying_store(self) -> Store:
        """The store that this is a part of."""
        return self._beneath

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set how long ``get`` and ``wait`` of the whole store wait for keys.

        Args:
            timeout: Seconds or a timedelta; ``math.inf`` is no limit.
        """
        self._beneath.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long ``get`` and ``wait`` wait for keys: the timeout of the whole store."""
        return self._beneath.timeout

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        return self._beneath._run(function, *args)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a store's value must be str or bytes, not {type(value).__name__}")


def _as_timedelta(timeout: float | timedelta | None) -> timedelta:
    """Return a store's timeout as torch has it: `STORE_TIMEOUT` where None, and no limit as the longest."""
    seconds = to_seconds(STORE_TIMEOUT if timeout is None else timeout)
    longest = timedelta.max
    if seconds is None or seconds >= longest.total_seconds():
        return longest
    return timedelta(seconds=seconds)
