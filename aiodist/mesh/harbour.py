"""Where payloads go through memory that ranks share: all of a rank's lanes, and who works at them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from aiodist.errors import ProtocolError
from aiodist.mesh.lookout import Lookout
from aiodist.shared.memory import SharedMemory

TURN_SECONDS = 1e-3
"""How long copying may keep the loop busy before others have their turn."""

NEAR_SECONDS = 100e-6
"""How long a rank in the middle of a message looks for the next piece, or for a free chunk: the
other rank copies one meanwhile. Then it sleeps until it is told."""

_give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Dock(Protocol):
    """One end of a lane."""

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


class Harbour:
    """Of one rank."""

    def __init__(
        self,
        memory: SharedMemory | None,
        lookout: Lookout,
    ) -> None:
        self.memory = memory
        self.soon = lookout.soon
        self.later = lookout.later
        self.hear = lookout.hear
        self._lookout = lookout
        self._busy: dict[Dock, float] = {}  # and when a piece of it was copied
        self._working = False
        self._armed = False
        self._cleared: asyncio.Future[None] | None = None

    @property
    def is_wakeful(self) -> bool:
        """Whether looking takes no core away from another rank."""
        return self._lookout.active

    def enlist(self, dock: Dock) -> None:
        """Something is to be done at ``dock``. Do it, or begin with it."""
        self._busy[dock] = perf_counter()
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
                now - then < NEAR_SECONDS and dock.is_near for dock, then in busy.items()
            ):
                _give_way()
            elif all(self._try(dock, dock.rest) for dock in list(busy)):
                break
        self.hear()
        if self._cleared is not None and not self._owes():
            cleared, self._cleared = self._cleared, None
            if not cleared.done():
                cleared.set_result(None)

    def _step(self, now: float) -> bool:
        moved = False
        for dock in list(self._busy):
            if self._try(dock, dock.step):
                moved = True
                if dock in self._busy:
                    self._busy[dock] = now
            elif not dock.is_busy and self._try(dock, dock.rest):
                self._busy.pop(dock, None)
        return moved

    def _try(self, dock: Dock, do: Callable[[], bool]) -> bool:
        try:
            return do()
        except ProtocolError as error:
            dock.broken(error)
            self._busy.pop(dock, None)
            return True

    def _owes(self) -> bool:
        return any(dock.owes for dock in self._busy)

    def _go_on_soon(self) -> None:
        if not self._armed:
            self._armed = True
            self.soon(self._go_on)

    def _go_on(self) -> None:
        self._armed = False
        self.work()
