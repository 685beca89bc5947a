"""A store in this process's memory, for ranks that share one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiodist.deadline import Deadline
from aiodist.store.base_store import Store, list_of_keys, text_key, whole_amount
from aiodist.store.table import KeyTable
from aiodist.store.waiting import check_value, limit, timed_out
from aiodist.unpicklable import Unpicklable


class MemoryStore(Unpicklable, Store):
    """A store that all ranks of one loop hold in common. Waiters are futures; nothing is polled.

    A handle holds no resources, so ``close`` does nothing: the other ranks go on using it.
    """

    def __init__(self, table: KeyTable | None = None) -> None:
        """Create a store.

        Args:
            table: Keys to share with another holder, the TCP server's own rank; None makes new
                ones.
        """
        self._table = KeyTable() if table is None else table

    async def set(self, key: str, value: bytes) -> None:
        self._table.set(text_key(key), check_value(value))

    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        return (await self._values([key], deadline))[0]

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        await self._values(keys, deadline)

    async def _values(self, keys: Sequence[str], deadline: Deadline) -> list[bytes]:
        table = self._table
        ready: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def take() -> None:
            # Read inside the set that completed them, before another caller can delete them.
            if not ready.done():
                ready.set_result([table.get(key) or b"" for key in keys])

        watch = table.watch(keys, take)
        if ready.done():
            return ready.result()
        try:
            await asyncio.wait({ready}, timeout=limit(deadline))
            if ready.done():
                return ready.result()
            raise timed_out(watch.missing(), deadline)
        finally:
            watch.cancel()
            ready.cancel()

    async def add(self, key: str, amount: int) -> int:
        return self._table.add(text_key(key), whole_amount(amount))

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        given = check_value(expected), check_value(desired)
        return self._table.compare_set(text_key(key), *given)

    async def check(self, keys: Sequence[str]) -> bool:
        return not self._table.missing(list_of_keys(keys))

    async def delete_key(self, key: str) -> bool:
        return self._table.delete(text_key(key))

    async def num_keys(self) -> int:
        return len(self._table)

    async def close(self) -> None:
        pass
