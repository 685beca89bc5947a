"""Where payloads go through memory that ranks share: all of a rank's bulk rings, and who works at them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from aiodist.errors import ProtocolError
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.shm.shared_memory import SharedMemory

TURN_SECONDS = 1e-3
"""How long copying may keep the loop busy before others have their turn."""

NEAR_SECONDS = 100e-6
"""How long a rank in the middle of a message looks for the next piece, or for a free chunk: the
other rank copies one meanwhile. Then it sleeps until it is told."""

_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class ProgressSource(Protocol):
    """One end of a bulk ring."""

    @property
    def is_busy(self) -> bool:
        """Whether there is more to be sent, or to come, of a message."""
        ...

    @property
    def owes(self) -> bool:
        """Whether there is more to be sent."""
        ...

    @property
    def is_near(self) -> bool:
        """Whether the next step may be a moment away: as far as known, the other rank is at it."""
        ...

    def step(self) -> bool:
        """Copy one piece, if one can be copied."""
        ...

    def rest(self) -> bool:
        """Ask to be woken; False where there is something to do after all."""
        ...

    def broken(self, error: ProtocolError) -> None:
        """The other rank does not keep to the protocol."""
        ...


class ShmProgress:
    """Of one rank."""

    def __init__(
        self,
        memory: SharedMemory | None,
        spin_policy: SpinPolicy,
    ) -> None:
        self.memory = memory
        self.soon = spin_policy.soon
        self.later = spin_policy.later
        self.hear = spin_policy.hear
        self._spin_policy = spin_policy
        self._busy: dict[ProgressSource, float] = {}  # and when a piece of it was copied
        self._working = False
        self._armed = False
        self._cleared: asyncio.Future[None] | None = None

    @property
    def is_wakeful(self) -> bool:
        """Whether looking takes no core away from another rank."""
        return self._spin_policy.active

    def enlist(self, source: ProgressSource) -> None:
        """Something is to be done at ``source``. Do it, or begin with it."""
        self._busy[source] = perf_counter()
        self.work()

    def work(self) -> None:
        """Copy pieces where it can be done, at most for a turn. From anywhere, at any time."""
        if self._busy and not self._working:
            self._working = True
            try:
                self._work()
            finally:
                self._working = False

    async def clear(self, seconds: float) -> None:
        """Wait until nothing is left to be sent, at most for so long."""
        if self._owes():
            self._cleared = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._cleared], timeout=seconds)

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        if self.memory is not None:
            self.memory.close()

    # -- inside

    def _work(self) -> None:
        busy = self._busy
        began = now = perf_counter()
        while True:
            moved = self._step(now)
            if not busy:
                break
            now = perf_counter()
            if moved:
                if now - began > TURN_SECONDS:
                    self._go_on_soon()
                    break
            elif self.is_wakeful and any(
                now - then < NEAR_SECONDS and source.is_near for source, then in busy.items()
            ):
                _give_way()
            elif all(self._try(source, source.rest) for source in list(busy)):
                break
        self.hear()
        if self._cleared is not None and not self._owes():
            cleared, self._cleared = self._cleared, None
            if not cleared.done():
                cleared.set_result(None)

    def _step(self, now: float) -> bool:
        moved = False
        for source in list(self._busy):
            if self._try(source, source.step):
                moved = True
                if source in self._busy:
                    self._busy[source] = now
            elif not source.is_busy and self._try(source, source.rest):
                self._busy.pop(source, None)
        return moved

    def _try(self, source: ProgressSource, do: Callable[[], bool]) -> bool:
        try:
            return do()
        except ProtocolError as error:
            source.broken(error)
            self._busy.pop(source, None)
            return True

    def _owes(self) -> bool:
        return any(source.owes for source in self._busy)

    def _go_on_soon(self) -> None:
        if not self._armed:
            self._armed = True
            self.soon(self._go_on)

    def _go_on(self) -> None:
        self._armed = False
        self.work()
