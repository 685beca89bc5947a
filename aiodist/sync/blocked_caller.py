"""A blocked thread that sleeps by itself, and finishes its operation itself when it is woken."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.shm_opening import until_next_look
from aiodist.p2p.spin_policy import DRIVE_SECONDS, LOOK_AGAIN_SECONDS, SUSPICION_SECONDS
from aiodist.sync.loop_handoff import LoopHandoff


class BlockedCaller:
    """The end of ``work`` for the thread that has started it, and holds the loop lock.

    The loop's thread sleeps on. The other rank rings the thread's own doorbell, so one thread wakes
    up for the answer, and acquires the loop lock to go on with the operation. If the loop's thread
    ends the operation, by an error or a timeout, it rings that doorbell as well.
    """

    def __init__(
        self,
        work: Any,
        sleeper: ShmCommunicator,
        loop: asyncio.AbstractEventLoop,
        handoff: LoopHandoff,
    ) -> None:
        self._work = work
        self._sleeper = sleeper
        self._doorbell = sleeper.doorbell
        self._loop = loop
        self._handoff = handoff
        self._thread = threading.get_ident()

    @classmethod
    def of(
        cls, work: Any, loop: asyncio.AbstractEventLoop, handoff: LoopHandoff
    ) -> BlockedCaller | None:
        """Fall asleep over ``work``; the caller keeps the loop lock. None: this thread must not.

        Raises nothing. ``work`` may have ended meanwhile.
        """
        sleeper = work._sleeper()
        if sleeper is None or handoff.sleeper is not None:
            return None
        handoff.sleeper = work
        # First: the thread may find that a peer is lost as it falls asleep, and then the doorbell is gone.
        caller = cls(work, sleeper, loop, handoff)
        if not sleeper.fall_asleep() and not work._done:
            handoff.sleeper = None
            return None
        work._when_done(caller._over)
        return caller

    def _over(self) -> None:
        if threading.get_ident() != self._thread:
            self._doorbell.ring()

    def acquire(self) -> None:
        """Return when the operation has ended. The calling thread does not hold the loop lock.

        It sleeps longer each time that no rank has rung. A ring may be for less than it waits for, and
        the one that matters is still to be looked for soon.
        """
        seconds = LOOK_AGAIN_SECONDS
        while not self._work._done:
            rung = self._doorbell.wait(seconds)
            if self._work._done or self._went_on(0.0 if rung else seconds) or rung:
                seconds = LOOK_AGAIN_SECONDS
            elif seconds < SUSPICION_SECONDS:
                seconds = SUSPICION_SECONDS
            else:
                seconds = until_next_look(2 * seconds)

    def _went_on(self, slept: float) -> bool:
        """Go on with the operation if it can, with the loop lock held meanwhile."""
        handoff = self._handoff
        held, went_on = handoff.interrupts.hold(), False
        try:
            if handoff.take():  # else the loop has ended, and with it the operation
                try:
                    asyncio._set_running_loop(self._loop)
                    went_on, sleeps = self._go_on(slept)
                finally:
                    asyncio._set_running_loop(None)
                # What does not wait for another rank waits for a turn of the loop.
                handoff.give_back() if sleeps else handoff.resume()
            if held:
                handoff.interrupts.release()
        except BaseException:
            try:
                handoff.abandon(held)
            finally:  # once more: a signal's handler may raise as it begins
                handoff.abandon(held)
            raise
        return went_on

    def _go_on(self, slept: float) -> tuple[bool, bool]:
        """Return whether the operation went on, and whether it has ended or sleeps over a word."""
        work, sleeper = self._work, self._sleeper
        if went_on := sleeper.look():
            work._spin(DRIVE_SECONDS)
        elif slept >= SUSPICION_SECONDS:
            sleeper.suspect()
        return went_on, work._done or sleeper.fall_asleep() or work._done
