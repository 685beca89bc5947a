"""The programs of ranks in one thread, a greenlet each, and a drawn order in which they go on.

The rank that goes on is drawn anew after a drawn number of points, from one to hundreds. So a rank may
stand still at any place while another one goes far ahead. Most defects need few such places, so few seeds
find them (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010).
Equal seeds draw equal orders.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable

import pytest

from aiodist.p2p.spin_policy import LOOK_AGAIN_SECONDS
from tests.interleavings.clock import Clock
from tests.interleavings.memory import Memory

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    pytest.skip("greenlet may switch the GIL on for all other tests", allow_module_level=True)
greenlet = pytest.importorskip("greenlet", reason="needs greenlet, which is not installed")

STRETCHES = (1, 1, 1, 2, 4, 11, 41, 151)
"""Points for which a rank goes on, one of which is drawn."""

DELIVERIES = (1, 1, 2, 5, 1000)
"""Stores that the others see then, one of which is drawn."""

MOST_CHOICES = 100_000
LONGEST_SECONDS = 30.0
"""Beyond these a run does not end."""


class Stuck(Exception):
    """No rank can go on, or all of them go on for ever."""


class Timer:
    """What `Scheduler.call_later` returns."""

    def __init__(
        self, due: float, seconds: float, n_stores: int, callback: Callable[[], None]
    ) -> None:
        """``n_stores``: of all ranks before it began."""
        self.due = due
        self.seconds = seconds
        self.n_stores = n_stores
        self.callback = callback
        self.is_over = False
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_over = self.is_cancelled = True


class Program:
    """What one rank does. ``wakes_when``: it sleeps until that holds."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.greenlet = greenlet.greenlet(body)
        self.wakes_when: Callable[[], object] | None = None

    @property
    def is_ready(self) -> bool:
        return self.wakes_when is None or bool(self.wakes_when())


class Scheduler:
    """Runs programs, which share ``memory``."""

    def __init__(self, seed: int, n_ranks: int, clock: Clock, patience: float = 0.0) -> None:
        """``patience``: of timers that count when no rank can go on, the longest in seconds.

        A sleep of `LOOK_AGAIN_SECONDS` ends at any time after all ranks see what was stored before it.
        """
        self.random = random.Random(seed)
        self.memory = Memory(n_ranks, self.point)
        self.clock = clock
        clock.now = 0.0
        self._patience = patience
        self._programs: list[Program] = []
        self._timers: list[Timer] = []
        self._current: Program | None = None
        self._left = 0
        self._is_closed = False

    # -- for the programs

    def point(self) -> None:
        """Let another rank go on, if its turn has come."""
        if self._is_closed:
            raise greenlet.GreenletExit
        if self._left:
            self._left -= 1
        elif self._current is not None:
            self._hub.switch()

    def sleep_until(self, condition: Callable[[], object]) -> None:
        """Let others go on until ``condition()`` holds."""
        if self._is_closed:
            raise greenlet.GreenletExit
        assert self._current is not None
        self._current.wakes_when = condition
        self._hub.switch()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback()`` in ``seconds``."""
        timer = Timer(self.clock.now + seconds, seconds, self.memory.n_stores, callback)
        self._timers.append(timer)
        return timer

    # -- for the test

    def spawn(self, body: Callable[[], None]) -> None:
        """Let `run` run ``body``."""
        self._programs.append(Program(body))

    def run(self) -> None:
        """Run all programs to their ends. Raises what one of them raises, and `Stuck`."""
        self._hub = greenlet.getcurrent()
        try:
            for _ in range(MOST_CHOICES):
                self._programs = [p for p in self._programs if not p.greenlet.dead]
                if not self._programs:
                    return
                if self.clock.now > LONGEST_SECONDS:
                    break
                self._choose()
            raise Stuck("the run does not end")
        finally:
            self._close()

    def _choose(self) -> None:
        draw, memory = self.random, self.memory
        ready = [program for program in self._programs if program.is_ready]
        stored = memory.undelivered()
        self._timers = [timer for timer in self._timers if not timer.is_over]
        due = [timer for timer in self._timers if self._may_end(timer)]
        dice = draw.random()
        if due and (dice < 0.02 or not (ready or stored)):
            self._end(draw.choice(due))
        elif stored and (dice < 0.3 or not ready):
            memory.deliver(draw.choice(stored), draw.choice(DELIVERIES))
        elif ready:
            self._go_on(draw.choice(ready))
        else:
            self._end(self._next_timer())

    def _may_end(self, timer: Timer) -> bool:
        return timer.seconds <= LOOK_AGAIN_SECONDS and self.memory.has_delivered(timer.n_stores)

    def _next_timer(self) -> Timer:
        timers = [timer for timer in self._timers if timer.seconds <= self._patience]
        if not timers:
            raise Stuck("no rank can go on")
        return min(timers, key=lambda timer: timer.due)

    def _end(self, timer: Timer) -> None:
        timer.is_over = True
        self.clock.now = max(self.clock.now, timer.due)
        timer.callback()

    def _go_on(self, program: Program) -> None:
        self._left = self.random.choice(STRETCHES)
        program.wakes_when = None
        self._current = program
        try:
            program.greenlet.switch()
        finally:
            self._current = None
            self._left = 0

    def _close(self) -> None:
        """End the programs of a run that failed. What they call may hold a GreenletExit up."""
        self._is_closed = True
        for program in self._programs:
            while program.greenlet and not program.greenlet.dead:
                with contextlib.suppress(Exception):
                    program.greenlet.throw()
