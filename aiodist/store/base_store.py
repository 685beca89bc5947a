"""The interface of key-value stores. Every implementation passes `testing.check_store`."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Self, SupportsIndex

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError

STORE_TIMEOUT = timedelta(minutes=5)
"""Of calls that wait for keys, where the caller gives no other (torch's default)."""

Timeout = float | timedelta | Deadline | None


def deadline_of(timeout: Timeout, default: float | timedelta) -> Deadline:
    """Return the deadline that is ``timeout`` from now, or ``default`` from now for None.

    A `Deadline` is returned as it is: aiodist's own callers pass the one of their operation.
    """
    if isinstance(timeout, Deadline):
        return timeout
    return Deadline(default if timeout is None else timeout)


def list_of_keys(keys: Sequence[str]) -> list[str]:
    """Return ``keys`` as a list. Raises TypeError unless they are several texts, also for one text.

    Raises DistStoreError as `text_key` does.
    """
    found = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else None
    if found is None or not all(isinstance(key, str) for key in found):
        raise TypeError(f"keys must be a list of str, such as ['a', 'b'], not {keys!r}")
    return [text_key(key) for key in found]


def text_key(key: str) -> str:
    """Return ``key``.

    Raises TypeError unless it is a text, DistStoreError for one that UTF-8 cannot carry to other ranks.
    """
    if not isinstance(key, str):
        raise TypeError(f"a store's key must be a str, not {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise DistStoreError(
                f"a store's key cannot be {key!r}, which UTF-8 cannot encode ({error.reason}); for the "
                "name of a file pass os.fsencode(name).hex()"
            ) from None
    return key


def whole_amount(amount: SupportsIndex) -> int:
    """Return what `Store.add` adds, as an int.

    Raises TypeError for what is no whole number, DistStoreError for one that 64 bits do not hold.
    """
    try:
        whole = operator.index(amount)
    except TypeError:
        raise TypeError(f"a counter's amount must be an int, not {amount!r}") from None
    if not -(2**63) <= whole < 2**63:
        raise DistStoreError(f"a counter's amount cannot be {whole}, which 64 bits do not hold")
    return whole


class Store(ABC):
    """Keys are str, values bytes; others raise TypeError. Shared by all ranks of a job.

    Every call is safe to cancel: a cancelled call has either taken effect or not, and the store
    stays usable. Waiting calls raise StoreTimeoutError (naming the missing keys) when the
    timeout passes; a broken connection raises DistStoreError with the cause chained.

    A store of your own implements `get_until` and `wait_until`; `get` and `wait` call these. Usable as
    an async context manager.
    """

    timeout: float | timedelta = STORE_TIMEOUT
    """Of `get` and `wait` without one: seconds or a timedelta; ``math.inf`` is no limit."""

    @abstractmethod
    async def set(self, key: str, value: bytes) -> None:
        """Write ``value`` under ``key``, over what was there.

        Args:
            key: The name of the entry.
            value: The bytes to store.

        Raises:
            DistStoreError: The store fails.
        """

    async def get(self, key: str, timeout: Timeout = None) -> bytes:
        """Return the value of ``key``; wait until a rank has set it.

        Args:
            key: The name of the entry.
            timeout: Seconds or a timedelta; None is the store's `timeout`, ``math.inf`` no limit.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """
        return await self.get_until(text_key(key), deadline_of(timeout, self.timeout))

    async def wait(self, keys: Sequence[str], timeout: Timeout = None) -> None:
        """Return when all ``keys`` are there.

        Args:
            keys: The names of the entries.
            timeout: Seconds or a timedelta; None is the store's `timeout`, ``math.inf`` no limit.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """
        await self.wait_until(list_of_keys(keys), deadline_of(timeout, self.timeout))

    @abstractmethod
    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        """Return the value of ``key``; wait for it until ``deadline``.

        Args:
            key: The name of the entry.
            deadline: When to give up.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        """Return when all ``keys`` are there; wait for them until ``deadline``.

        Args:
            keys: The names of the entries.
            deadline: When to give up.

        Raises:
            StoreTimeoutError: The time has passed.
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def add(self, key: str, amount: int) -> int:
        """Add to a counter atomically; return the new value.

        A counter's stored bytes are its decimal digits, as in torch's stores.

        Args:
            key: The name of the counter, which counts as 0 if it is absent.
            amount: What to add, also below 0.

        Raises:
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write ``desired`` if the value is ``expected``.

        Args:
            key: The name of the entry.
            expected: The bytes that have to be there; empty if the key has to be absent.
            desired: The bytes to write.

        Returns:
            The value that is there afterwards (``expected`` if the key is still absent).

        Raises:
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def check(self, keys: Sequence[str]) -> bool:
        """Return whether all ``keys`` are set, without waiting.

        Args:
            keys: The names of the entries.

        Raises:
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def delete_key(self, key: str) -> bool:
        """Remove ``key``. Return whether it was set.

        Args:
            key: The name of the entry.

        Raises:
            DistStoreError: The store fails.
        """

    @abstractmethod
    async def num_keys(self) -> int:
        """Return how many keys the whole store holds."""

    async def set_will(self, key: str, value: bytes) -> bool:
        """Leave a will: a value that the store writes if this handle ends before `clear_will`.

        A handle ends with its process, its connection, or by ``close``. A key that is set by then
        stays as it is.

        Args:
            key: The name of the entry.
            value: The bytes to write then.

        Returns:
            False, without effect, if the store does not support wills.
        """
        return False

    async def clear_will(self, key: str) -> None:  # noqa: B027  # where there are no wills
        """Withdraw the will for ``key``, if there is one.

        Args:
            key: The name of the entry.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close this handle's connection, server or file. Idempotent; never raises."""

    def close_in_child(self) -> None:  # noqa: B027  # most hold nothing that is shared
        """Release inherited sockets in a forked child without a message to the other side."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
