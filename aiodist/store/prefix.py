"""A part of a store: every key gets a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store.base_store import Store, list_of_keys, text_key
from aiodist.store.waiting import timed_out
from aiodist.unpicklable import Unpicklable


class PrefixStore(Unpicklable, Store):
    """``store`` with ``prefix + "/"`` before each key.

    A view: ``close`` leaves the store beneath open (its owner closes it), and ``num_keys`` counts
    the whole store. Timeouts name the keys as the caller of this view knows them. Its
    ``timeout`` is that of ``store``, until it is set.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        """Make a part of a store.

        Args:
            prefix: What goes before each key, with a ``/``.
            store: The whole store.
        """
        self.prefix = prefix
        self.store = store
        self._timeout: float | timedelta | None = None

    @property
    def timeout(self) -> float | timedelta:
        """Of `get` and `wait` without one."""
        return self.store.timeout if self._timeout is None else self._timeout

    @timeout.setter
    def timeout(self, timeout: float | timedelta) -> None:
        self._timeout = timeout

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{text_key(key)}"

    async def set(self, key: str, value: bytes) -> None:
        await self.store.set(self._key(key), value)

    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        try:
            return await self.store.get(self._key(key), deadline)
        except StoreTimeoutError as error:
            raise self._own(error, deadline) from error

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        try:
            await self.store.wait([self._key(key) for key in keys], deadline)
        except StoreTimeoutError as error:
            raise self._own(error, deadline) from error

    def _own(self, error: StoreTimeoutError, deadline: Deadline) -> StoreTimeoutError:
        return timed_out([key.removeprefix(f"{self.prefix}/") for key in error.keys], deadline)

    async def add(self, key: str, amount: int) -> int:
        return await self.store.add(self._key(key), amount)

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return await self.store.compare_set(self._key(key), expected, desired)

    async def check(self, keys: Sequence[str]) -> bool:
        return await self.store.check([self._key(key) for key in list_of_keys(keys)])

    async def delete_key(self, key: str) -> bool:
        return await self.store.delete_key(self._key(key))

    async def num_keys(self) -> int:
        return await self.store.num_keys()

    async def set_will(self, key: str, value: bytes) -> bool:
        return await self.store.set_will(self._key(key), value)

    async def clear_will(self, key: str) -> None:
        await self.store.clear_will(self._key(key))

    async def close(self) -> None:
        pass

    def close_in_child(self) -> None:
        self.store.close_in_child()
