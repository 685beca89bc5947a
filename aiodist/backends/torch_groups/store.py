"""One of our stores as torch's groups know a store: blocking, for calls from their own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store as TorchStore

from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.store import Store

T = TypeVar("T")


class BlockingStore(TorchStore):
    """``store``, which lives on ``loop``, for torch's threads. Never call it in the loop's thread.

    torch finds the methods below by their names, and passes values as bytes. A wait ends after
    ``seconds`` if torch names no time, and when the store is closed; errors are the store's own.

    The caller must keep this object for as long as torch may use it: torch holds only the C++ half,
    which loses its methods with this object.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        super().__init__()
        self._store = store
        self._loop = loop
        self._seconds = seconds

    def clone(self) -> BlockingStore:
        return self  # calls may come from several threads

    def set(self, key: str, value: Any) -> None:
        self._call(self._store.set(key, bytes(value)))

    def get(self, key: str) -> bytes:
        return self._call(self._store.get(key, Deadline(self._seconds)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._call(self._store.wait(keys, Deadline(seconds)))

    def add(self, key: str, amount: int) -> int:
        return self._call(self._store.add(key, amount))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._call(self._store.compare_set(key, bytes(expected), bytes(desired)))

    def check(self, keys: Sequence[str]) -> bool:
        return self._call(self._store.check(keys))

    def delete_key(self, key: str) -> bool:
        return self._call(self._store.delete_key(key))

    def num_keys(self) -> int:
        return self._call(self._store.num_keys())

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except RuntimeError as error:
            call.close()
            if self._loop.is_closed():
                raise InvalidUsageError("the event loop of this process group has ended") from error
            raise
