"""Receivers and callbacks that a check can wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class _Noticed:
    """Something whose changes can be waited for."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def _changed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class Sent(_Noticed):
    """An ``on_sent`` that counts: ``count`` calls, of which ``errors`` failed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.errors: list[BaseException] = []

    def __call__(self, error: BaseException | None) -> None:
        self.count += 1
        if error is not None:
            self.errors.append(error)
        self._changed()

    async def all_of(self, count: int) -> None:
        """Wait for ``count`` calls."""
        await self._until(lambda: self.count >= count)
        assert self.count == count, f"on_sent was called {self.count} times for {count} sends"


class _Ending(_Noticed):
    """A receiver's ``lost``: ``ends`` has what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[BaseException | None] = []

    def lost(self, error: BaseException | None) -> None:
        self.ends.append(error)
        self._changed()

    async def ended(self) -> None:
        """Wait for ``lost``."""
        await self._until(lambda: bool(self.ends))


class Sink(_Ending):
    """A receiver that keeps whatever comes, in ``data``."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = memoryview(bytearray(1 << 16))
        self.data = bytearray()

    def get_buffer(self) -> memoryview:
        return self._scratch

    def received(self, count: int) -> None:
        assert 0 < count <= len(self._scratch)
        self.data += self._scratch[:count]
        self._changed()

    async def holds(self, count: int) -> None:
        """Wait for ``count`` bytes."""
        await self._until(lambda: len(self.data) >= count)


class Memory(_Ending):
    """A receiver with memory for ``size`` bytes, which the transport must fill in place.

    ``pieces``: the sizes of the buffers it hands out, in turn (all that is left where empty).
    ``then``: called from within ``received`` once full. ``keep=False``: hands out the same
    memory again and again, to take in more than it could hold.
    """

    def __init__(
        self,
        size: int,
        *,
        pieces: Sequence[int] = (),
        then: Callable[[], None] | None = None,
        keep: bool = True,
    ) -> None:
        super().__init__()
        self._memory = bytearray(size if keep else min(size, 1 << 20))
        self._size = size
        self._at = 0
        self._keep = keep
        self._pieces = pieces
        self._calls = 0
        self._handed = 0
        self._then = then

    @property
    def data(self) -> bytes:
        """What is in the memory so far."""
        return bytes(memoryview(self._memory)[: self._at])

    def get_buffer(self) -> memoryview:
        left = self._size - self._at
        if not left:  # a transport may ask before it knows whether there is more
            self._handed = 0
            return memoryview(bytearray(1))
        if self._pieces:
            left = min(left, self._pieces[self._calls % len(self._pieces)])
            self._calls += 1
        at = self._at if self._keep else 0
        buffer = memoryview(self._memory)[at : at + left]
        self._handed = len(buffer)
        return buffer

    def received(self, count: int) -> None:
        assert 0 < count <= self._handed, "more bytes than were sent, or than there was room for"
        self._at += count
        if self._at == self._size:
            self._changed()
            if self._then is not None:
                self._then()

    async def full(self) -> None:
        """Wait for the last byte."""
        await self._until(lambda: self._at == self._size or bool(self.ends))
        assert self._at == self._size, f"ended after {self._at} of {self._size} B: {self.ends}"
