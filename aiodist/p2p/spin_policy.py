"""How long a rank looks for messages before it sleeps.

To sleep in the selector and be woken costs tens of microseconds, hundreds in a virtual machine,
and the system tends to wake a rank on the core of the rank that wrote to it, where the two then
take turns while another core idles. So where each rank of a host has a core of its own, a rank
that waits goes on looking for a while. How long is learned from the waits before: a wait that
looking would have covered makes it twice as long, a longer one half as long, as adaptive locks do
it (Karlin, Li, Manasse and Owicki, "Empirical studies of competitive spinning for a shared-memory
multiprocessor", 1991). So a rank that is seldom spoken to hardly looks at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Self

from aiodist.links.host import have_cores
from aiodist.p2p.core_placement import CorePlacement

SHORTEST = 50e-6
"""Seconds of looking that are always worth it: about what falling asleep costs."""

_MOMENT = 1e-6
"""Seconds asked for; the system makes some fifty times as much of it."""

LONGEST = 2e-3
"""A wait of more seconds than this is slept through."""

TURN_NANOSECONDS = 1_000_000
"""So often the loop gets a turn from a task whose operations are all over before it would suspend."""

_YIELDS = 12
"""How often to ask the system for the next in turn before sleeping for the shortest time there is."""

AT_ONCE_SECONDS = 80e-6
"""How long to look for the others before an operation gets a context, a record and a driver.

About what those cost on a slow machine: a rank that looks for nothing loses as much again, and no more.
"""

CROWDED_SECONDS = 1e-3
"""The same where ranks outnumber cores: giving way each time, so that the others get there."""

BYTE_SECONDS = 4e-10
"""More for each byte that a rank publishes, where each has a core: the others' copies take time too."""

_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class SpinPolicy:
    """Of one rank. ``active``: every rank of this host has a core, so looking takes none away."""

    __slots__ = (
        "_call_soon",
        "_due",
        "_heard",
        "_looking",
        "_since",
        "_turn_due",
        "_turning",
        "_until",
        "_waiting",
        "active",
        "crowded",
        "neighbours",
        "window",
    )

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.active = False
        self.crowded = False
        """Whether ranks have to share cores, so that whoever looks keeps others from working."""
        self.neighbours = CorePlacement()
        self.window = LONGEST
        """Seconds of looking that the waits before have made worth it."""
        self._call_soon = call_soon
        self._due: list[Callable[[], None]] = []  # by who looks, since the loop has no turn
        self._heard = 0.0
        self._since = 0.0  # the last wait began
        self._turn_due = 0
        self._until = 0.0
        self._waiting = 0
        self._looking = False
        self._turning = False

    def meet(self, here: Sequence[int]) -> None:
        """The processes of this host's ranks; none where looking would keep others waiting."""
        self.active = len(here) > 0 and have_cores(here)
        self.crowded = len(here) > 0 and not self.active
        if self.active:
            self.neighbours.meet(here)

    def give_way(self, times: int) -> None:
        """Let others have this core between two looks; ``times``: how often in this wait before.

        To yield costs little and is enough where it reaches the other ranks. It does not where each
        has a session of its own, as launchers give them, and the system shares the cores between
        sessions (autogroup): there a rank has to sleep, for a moment.
        """
        if self.crowded and times >= _YIELDS:
            sleep(_MOMENT)
        else:
            _yield()

    def hear(self) -> None:
        """A message, or a part of a long one, has come or has gone; there may be more."""
        now = perf_counter()
        if self._waiting or self._looking:
            if now - max(self._heard, self._since) < LONGEST:
                self.window = min(self.window * 2, LONGEST)
            else:
                self.window = max(self.window / 2, SHORTEST)
            if self._waiting:
                self._turn_on(now)
        self._heard = now

    def soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when others have had their turn: of the loop, or of who looks."""
        if self._looking:
            self._due.append(callback)
        else:
            self._call_soon(callback)

    def later(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` in the next turn of the loop, which who looks keeps from turning."""
        self._call_soon(callback)

    def look(
        self,
        polls: Sequence[Callable[[], None]],
        is_done: Callable[[], bool],
        seconds: float,
        longest: float,
    ) -> None:
        """Call ``polls`` in turn until ``is_done()``, or nothing was heard for ``seconds``.

        At most ``longest`` seconds; the loop does nothing else meanwhile. Not in a callback.
        """
        self._since = start = perf_counter()
        self._looking = True
        times = 0
        try:
            while True:
                for poll in polls:
                    poll()
                if self._due:
                    due, self._due = self._due, []
                    for callback in due:
                        callback()
                if is_done():
                    return
                now = perf_counter()
                if now - max(start, self._heard) > seconds or now - start > longest:
                    return
                if now - start > SHORTEST / 2:
                    self.neighbours.move_to_idle_core(now)
                self.give_way(times)  # to the other rank, should it sit on the same core
                times += 1
        finally:
            self._looking = False
            due, self._due = self._due, []
            for callback in due:
                self._call_soon(callback)

    def turn_is_due(self, now: int) -> bool:
        """Whether a task that need not suspend, at ``now`` of `time.monotonic_ns`, is to let the loop
        turn all the same."""
        if now <= self._turn_due:
            return False
        self._turn_due = now + TURN_NANOSECONDS
        return True

    def begin(self) -> None:
        """Somebody waits: keep the loop awake for the window, and again whenever it hears."""
        self._since = now = perf_counter()
        self._waiting += 1
        self._turn_on(now)

    def end(self) -> None:
        """The counterpart of `begin`: that wait is over."""
        self._waiting -= 1

    def _turn_on(self, now: float) -> None:
        if self.active:
            self._until = now + self.window
            if not self._turning:
                self._turning = True
                self._call_soon(self._turn)

    def _turn(self) -> None:
        # A loop that has something to call does not sleep, and looks at every socket each turn.
        if self._waiting and (now := perf_counter()) < self._until:
            self.neighbours.move_to_idle_core(now)
            _yield()
            self._call_soon(self._turn)
        else:
            self._turning = False


class BoundedSpin:
    """A short look for words of other ranks, one after the other, with one limit in all."""

    __slots__ = ("_end", "_spin_bytes", "_spin_policy", "_times")

    def __init__(self, spin_policy: SpinPolicy) -> None:
        self._spin_policy = spin_policy
        self._times = 0
        self._end = 0.0  # of `time.perf_counter`; 0 before the first look
        self._spin_bytes = 0

    def begin(self, spin_bytes: int) -> Self:
        """Start anew, with the time for ``spin_bytes`` bytes; return this."""
        self._end = 0.0
        self._spin_bytes = spin_bytes
        return self

    def found_within(self, words: memoryview, word: int, least: int, most: int) -> bool:
        """Whether ``words[word]`` is between these two before the time is up."""
        return (words[word] >= least or self.finds(words, word, least)) and words[word] <= most

    def finds(self, words: memoryview, word: int, least: int) -> bool:
        """Whether ``words[word]`` is at least ``least`` before the time is up."""
        spin_policy = self._spin_policy
        if not (spin_policy.active or spin_policy.crowded):
            return words[word] >= least
        if not self._end:
            self._times = 0
            self._end = perf_counter() + (
                CROWDED_SECONDS
                if spin_policy.crowded
                else AT_ONCE_SECONDS + BYTE_SECONDS * self._spin_bytes
            )
        while words[word] < least:
            now = perf_counter()
            if now > self._end:
                spin_policy.neighbours.move_to_idle_core(now)
                return False
            if spin_policy.crowded:
                spin_policy.give_way(self._times)
                self._times += 1
        return True
