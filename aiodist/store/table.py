"""The keys and the operations on them: one dictionary, no I/O, no asyncio.

The memory store, the TCP server and the file store's replica each hold one of these, so counters
and compare-and-set behave the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aiodist.errors import DistStoreError


class Watch:
    """A wait for keys. It fires once, inside the call that sets the last of them."""

    __slots__ = ("_keys", "_missing", "_on_ready", "_table")

    def __init__(self, table: KeyTable, keys: Sequence[str], on_ready: Callable[[], None]) -> None:
        self._table = table
        self._keys = tuple(keys)
        self._missing: set[str] = set()
        self._on_ready: Callable[[], None] | None = on_ready
        self._arm()

    def missing(self) -> list[str]:
        """Return the keys that are not set now, in the order of the request."""
        return self._table.missing(self._keys)

    def cancel(self) -> None:
        """Cancel the wait. Does nothing after it fired."""
        self._on_ready = None
        for key in self._missing:
            self._table._unwatch(key, self)
        self._missing.clear()

    def _arm(self) -> None:
        self._missing = set(self._table.missing(self._keys))
        for key in self._missing:
            self._table._watch(key, self)
        if not self._missing:
            on_ready, self._on_ready = self._on_ready, None
            if on_ready is not None:
                on_ready()

    def _arrived(self, key: str) -> None:
        self._missing.discard(key)
        if not self._missing and self._on_ready is not None:
            # A key that was set early may have been deleted meanwhile: check all of them again.
            self._arm()


class KeyTable:
    """Keys (str), values (bytes), and the waits for them. Belongs to one thread."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self.watches: dict[str, dict[Watch, None]] = {}
        """The waits for each key that is not set."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def missing(self, keys: Iterable[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._values]

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for watch in self.watches.pop(key, ()):
            watch._arrived(key)

    def sum(self, key: str, amount: int) -> int:
        """Return what ``add`` would make of the counter ``key``, without changing it."""
        value = self._values.get(key, b"0")
        try:
            total = int(value) + amount
        except ValueError:
            raise DistStoreError(
                f"key {key!r} is no counter: it holds {_short(value)}, and add() works only on "
                "keys that add() made or that hold decimal digits"
            ) from None
        if not -(2**63) <= total < 2**63:
            raise DistStoreError(f"counter {key!r} would be {total}, which 64 bits do not hold")
        return total

    def add(self, key: str, amount: int) -> int:
        total = self.sum(key, amount)
        self.set(key, b"%d" % total)
        return total

    def matches(self, key: str, expected: bytes) -> bool:
        """Return whether ``compare_set`` would write."""
        return self._values.get(key, b"") == expected

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self.matches(key, expected):
            self.set(key, desired)
        return self._values.get(key, expected)

    def delete(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def clear(self) -> None:
        self._values.clear()

    def watch(self, keys: Sequence[str], on_ready: Callable[[], None]) -> Watch:
        """Call ``on_ready`` when all ``keys`` are set: now, or inside a later ``set``."""
        return Watch(self, keys, on_ready)

    def _watch(self, key: str, watch: Watch) -> None:
        self.watches.setdefault(key, {})[watch] = None

    def _unwatch(self, key: str, watch: Watch) -> None:
        watches = self.watches.get(key)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self.watches[key]


def _short(value: bytes) -> str:
    return repr(value) if len(value) <= 32 else f"{value[:32]!r}... ({len(value)} bytes)"
