"""Adapt torch.distributed's stores to aiodist's interface, without importing torch."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store.base_store import Store, list_of_keys, text_key, whole_amount
from aiodist.store.waiting import check_value, closed, in_time, pauses, timed_out
from aiodist.worker_thread import Worker

T = TypeVar("T")

CALL_SECONDS = 300.0

_ANSWER_SECONDS = 5.0
"""Seconds after the deadline of a wait for the answer whether the keys are there."""


class TorchStore(Store):
    """Wrap any ``torch.distributed.Store``: TCPStore, FileStore, HashStore, PrefixStore.

    torch's calls block, so they run one after the other in a thread of this object. None of them
    waits for keys. A wait polls with growing pauses of at most 20 ms, so it can be cancelled. The
    interpreter ends although a call hangs in the thread. ``delete_key`` first asks whether the key is
    set, because torch's FileStore does not say. Two deletions at the same moment may both
    therefore return True.
    """

    def __init__(self, store: Any, *, call_timeout: float = CALL_SECONDS) -> None:
        """Wrap ``store``, which stays the caller's: its own timeout is not changed, and it is not closed.

        ``call_timeout``: seconds after which a call that does not wait for keys counts as failed.
        """
        self.store = store
        self._call_timeout = to_seconds(call_timeout)
        self._worker = Worker("aiodist-torch-store")
        self._end = weakref.finalize(self, self._worker.close)
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
            value: bytes = await self._ask(
                [key], deadline, self.store.compare_set, key, nothing, nothing
            )
            if value != nothing.encode():
                return value
            await self._pause(pause, [key], deadline)
        raise AssertionError("unreachable: pauses never end")

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        for pause in pauses():
            if await self._ask(keys, deadline, self.store.check, list(keys)):
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
        self._end()  # after the calls in the queue: they are short, and their callers get an answer

    async def _pause(self, pause: float, keys: Sequence[str], deadline: Deadline) -> None:
        left = deadline.remaining()
        if left > 0:
            await asyncio.sleep(min(pause, left))
            return
        missing = [
            key for key in keys if not await self._ask(keys, deadline, self.store.check, [key])
        ]
        if missing:
            raise timed_out(missing, deadline)
        # Else they came after the last look: the loop stood still meanwhile.

    async def _ask(
        self, keys: Sequence[str], deadline: Deadline, function: Callable[..., T], *arguments: Any
    ) -> T:
        """Call ``function``. Raises StoreTimeoutError for ``keys`` if it hangs beyond ``deadline``."""
        try:
            return await in_time(self._call(function, *arguments), deadline, _ANSWER_SECONDS)
        except StoreTimeoutError as error:
            raise timed_out(keys, deadline) from error

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise closed(f"the adapter of {type(self.store).__name__}")
        result: Future[T] = Future()
        self._worker.put(partial(_make_call, result, partial(function, *arguments)))
        try:
            async with asyncio.timeout(self._call_timeout):
                return await asyncio.wrap_future(result)
        except TimeoutError as error:
            raise DistStoreError(
                f"torch's {type(self.store).__name__} did not answer within "
                f"{self._call_timeout:g} s; see whether the process that hosts it still runs"
            ) from error
        except (RuntimeError, ValueError) as error:
            # torch's DistStoreError and DistNetworkError are RuntimeErrors.
            raise DistStoreError(f"torch's {type(self.store).__name__} failed: {error}") from error


def _make_call(result: Future[T], function: Callable[[], T]) -> None:
    """Make the call whose result ``result`` is to hold. Runs in the thread."""
    if not result.set_running_or_notify_cancel():
        return
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001  # raised where the call is awaited
        result.set_exception(error)
    else:
        result.set_result(value)
