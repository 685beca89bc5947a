"""Adapt torch.distributed's stores to aiodist's interface, without importing torch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import DistStoreError
from aiodist.store.base_store import Store, list_of_keys, text_key, whole_amount
from aiodist.store.waiting import check_value, closed, pauses, timed_out

T = TypeVar("T")

CALL_SECONDS = 300.0


class TorchStore(Store):
    """Wrap any ``torch.distributed.Store``: TCPStore, FileStore, HashStore, PrefixStore.

    torch's calls block, so they run one after the other in a thread of this object. None of them
    waits for keys. A wait polls with growing pauses of at most 20 ms, so it can be cancelled, and
    no thread is stuck in it when the interpreter ends. ``delete_key`` first asks whether the key is
    set, because torch's FileStore does not say. Two deletions at the same moment may both
    therefore return True.
    """

    def __init__(self, store: Any, *, call_timeout: float = CALL_SECONDS) -> None:
        """Wrap ``store``, which stays the caller's: its own timeout is not changed, and it is not closed.

        ``call_timeout``: seconds after which a call that does not wait for keys counts as failed.
        """
        self.store = store
        self._call_timeout = to_seconds(call_timeout)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="aiodist-torch-store")
        self._closed = False
        # A value that no other handle writes: see get().
        self._nothing = os.urandom(16).hex()

    async def set(self, key: str, value: bytes) -> None:
        name, given = text_key(key), check_value(value)

        def set_now() -> None:
            self.store.set(name, given)
            # torch's TCPStore sends a value without waiting for the server. Until the server has
            # answered the next call, other ranks may still read the former value.
            self.store.check([name])

        await self._call(set_now)

    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        # torch's get() blocks and cannot be cancelled. compare_set with an expected value that no
        # key has does not block: it writes nothing and returns the present value. Without one it
        # returns the expected value.
        nothing = self._nothing
        for pause in pauses():
            value: bytes = await self._call(self.store.compare_set, key, nothing, nothing)
            if value != nothing.encode():
                return value
            await self._pause(pause, [key], deadline)
        raise AssertionError("unreachable: pauses never end")

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        for pause in pauses():
            if await self.check(keys):
                return
            await self._pause(pause, keys, deadline)

    async def add(self, key: str, amount: int) -> int:
        total: int = await self._call(self.store.add, text_key(key), whole_amount(amount))
        return total

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        value: bytes = await self._call(
            self.store.compare_set, text_key(key), check_value(expected), check_value(desired)
        )
        return value

    async def check(self, keys: Sequence[str]) -> bool:
        there: bool = await self._call(self.store.check, list_of_keys(keys))
        return there

    async def delete_key(self, key: str) -> bool:
        name = text_key(key)

        def delete() -> bool:
            return bool(self.store.check([name]) and self.store.delete_key(name))

        return await self._call(delete)

    async def num_keys(self) -> int:
        count: int = await self._call(self.store.num_keys)
        return count

    async def close(self) -> None:
        """End this object's thread. The torch store stays open. Idempotent; never raises."""
        self._closed = True
        # Queued calls are not cancelled: they are short, and their callers get an answer.
        self._pool.shutdown(wait=False)

    async def _pause(self, pause: float, keys: Sequence[str], deadline: Deadline) -> None:
        left = deadline.remaining()
        if left > 0:
            await asyncio.sleep(min(pause, left))
        elif missing := [key for key in keys if not await self.check([key])]:
            raise timed_out(missing, deadline)
        # Else they came after the last look: the loop stood still meanwhile.

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise closed(f"the adapter of {type(self.store).__name__}")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._call_timeout):
                return await loop.run_in_executor(self._pool, function, *arguments)
        except TimeoutError as error:
            raise DistStoreError(
                f"torch's {type(self.store).__name__} did not answer within "
                f"{self._call_timeout:g} s; see whether the process that hosts it still runs"
            ) from error
        except (RuntimeError, ValueError) as error:
            # torch's DistStoreError and DistNetworkError are RuntimeErrors.
            raise DistStoreError(f"torch's {type(self.store).__name__} failed: {error}") from error
