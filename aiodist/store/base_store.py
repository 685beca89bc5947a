"""The interface of key-value stores. Every implementation passes `testing.check_store`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from aiodist.deadline import Deadline

STORE_TIMEOUT = timedelta(minutes=5)
"""Of calls that wait for keys, where the caller gives no other (torch's default)."""

Timeout = float | timedelta | Deadline | None


class Store(ABC):
    """Keys are str, values bytes. Shared by all ranks of a job.

    Every call is safe to cancel: a cancelled call has either taken effect or not, and the store
    stays usable. Waiting calls raise StoreTimeoutError (naming the missing keys) when the
    timeout passes; a broken connection raises DistStoreError with the cause chained.

    A store of your own implements `get_until` and `wait_until`; `get` and `wait` call these.
    """

    timeout: float | timedelta = STORE_TIMEOUT
    """Of `get` and `wait` without one: seconds or a timedelta; ``math.inf`` is no limit."""

    @abstractmethod
    async def set(self, key: str, value: bytes) -> None:
        """Write ``value`` under ``key``, over what was there."""

    async def get(self, key: str, timeout: Timeout = None) -> bytes:
        """Return the value of ``key``; wait until a rank has set it.

        ``timeout``: seconds or a timedelta; ``math.inf`` means no limit, None the store's `timeout`.
        Raises StoreTimeoutError; TypeError or ValueError for a value that is no timeout.
        """
        return await self.get_until(key, self._deadline(timeout))

    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Return when all ``keys`` are there. ``timeout`` and errors: as of `get`."""
        await self.wait_until(keys, self._deadline(timeout))

    def _deadline(self, timeout: Timeout) -> Deadline:
        if isinstance(timeout, Deadline):
            return timeout
        return Deadline(self.timeout if timeout is None else timeout)

    @abstractmethod
    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        """Return the value of ``key``; wait for it until ``deadline``."""

    @abstractmethod
    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        """Return when all ``keys`` are there; wait for them until ``deadline``."""

    @abstractmethod
    async def add(self, key: str, amount: int) -> int:
        """Add to the counter ``key`` (absent counts as 0) atomically; returns the new value.

        A counter's stored bytes are its decimal digits, as in torch's stores.
        """

    @abstractmethod
    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write ``desired`` if the value is ``expected`` (empty: if the key is absent).

        Returns the value that is there afterwards (``expected`` if the key is still absent).
        """

    @abstractmethod
    async def check(self, keys: Sequence[str]) -> bool:
        """Return whether all ``keys`` are set, without waiting."""

    @abstractmethod
    async def delete_key(self, key: str) -> bool:
        """Remove ``key``. Returns whether it was set."""

    @abstractmethod
    async def num_keys(self) -> int:
        """Return how many keys the whole store holds."""

    async def bequeath(self, key: str, value: bytes) -> bool:
        """Leave a will: the store writes ``value`` under ``key`` if this handle ends before
        `renounce`.

        A handle ends with its process, its connection, or by ``close``. A key that is set by then
        stays as it is. Returns False, without effect, if the store does not support wills.
        """
        return False

    async def renounce(self, key: str) -> None:  # noqa: B027  # where there are no wills
        """Withdraw the will for ``key``, if there is one."""

    @abstractmethod
    async def close(self) -> None:
        """Close this handle's connection, server or file. Idempotent; never raises."""

    def close_in_child(self) -> None:  # noqa: B027  # most hold nothing that is shared
        """Release inherited sockets in a forked child without a message to the other side."""
