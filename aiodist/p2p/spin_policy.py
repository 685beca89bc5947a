"""Decide how long a rank spins before it sleeps, and how it spins: for messages, words and turns.

A sleep in the selector and the wake-up cost tens of microseconds, and hundreds in a virtual
machine. The kernel also tends to wake a rank on the core of the rank that wrote to it. The two then
take turns while another core idles. So if each rank of a host has its own core, a waiting rank
spins for a while first.

How long is learned from earlier waits. A wait that spinning would have covered doubles the time; a
longer wait halves it. Adaptive locks do the same (Karlin, Li, Manasse and Owicki, "Empirical
studies of competitive spinning for a shared-memory multiprocessor", 1991). A rank that seldom
receives messages therefore hardly spins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Self

from aiodist.links.host import yield_core
from aiodist.p2p.core_placement import CorePlacement

SHORTEST = 50e-6
"""Seconds of spinning that are always worth it: about the cost of falling asleep."""

NEAR_SECONDS = 200e-6
"""Seconds to poll in the middle of a message or collective for the next step of a peer that is at work.
"""

_MOMENT = 1e-6
"""Seconds asked of `time.sleep`; the system makes about fifty times as much of it."""

LONGEST = 2e-3
"""The longest spin in seconds. A longer wait is spent asleep."""

TURN_SECONDS = 1e-3
"""Seconds that copying may keep the loop busy before other callbacks have their turn."""

TURN_NANOSECONDS = int(TURN_SECONDS * 1e9)
"""Interval at which a task yields to the loop although its operations complete without suspending.
"""

_YIELDS = 12
"""Calls of sched_yield before sleeping for the shortest possible time."""

AT_ONCE_SECONDS = 80e-6
"""How long to look for the others before an operation gets a context, a record and a driver.

About what those cost on a slow machine: a rank that looks for nothing loses as much again, and no more.
"""

OVERSUBSCRIBED_SECONDS = 1e-3
"""The same where ranks outnumber cores: giving way each time, so that the others get there."""

BYTE_SECONDS = 4e-10
"""More for each byte that a rank publishes, where each has a core: the others' copies take time too."""

DRIVE_SECONDS = 5e-3
"""How long a thread that has nothing else to do may look for the end of an operation. The loop does nothing
else meanwhile."""

LOOK_AGAIN_SECONDS = 1e-3
"""After falling asleep over a word: no store takes longer to be seen."""

SUSPICION_SECONDS = 50e-3
"""After this long a sleeper tells the others what it is in, over the streams."""


class SpinPolicy:
    """The spin policy of one rank.

    ``active``: every rank of this host has a core, so spinning takes none away.
    """

    __slots__ = (
        "_call_soon",
        "_due",
        "_last_arrival",
        "_looking",
        "_since",
        "_turn_due",
        "_turning",
        "_until",
        "_waiting",
        "active",
        "lent",
        "neighbours",
        "oversubscribed",
        "window",
    )

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.active = False
        self.oversubscribed = False
        """Whether ranks share cores, so that a spinning rank keeps others from working."""
        self.lent = 0
        """Announced messages that their receivers may read just now, best with this rank's core as well."""
        self.neighbours = CorePlacement()
        self.window = LONGEST
        """Seconds of spinning that earlier waits have made worthwhile."""
        self._call_soon = call_soon
        self._due: list[Callable[[], None]] = []  # called by `look`, since the loop does not turn
        self._last_arrival = 0.0
        self._since = 0.0  # the last wait began
        self._turn_due = 0
        self._until = 0.0
        self._waiting = 0
        self._looking = False
        self._turning = False

    def meet(self, here: Sequence[int], *, have_cores: bool) -> None:
        """Set the process ids of this host's ranks; empty if spinning would block other ranks.

        ``have_cores``: whether each has a core.
        """
        self.active = len(here) > 0 and have_cores
        self.oversubscribed = len(here) > 0 and not self.active
        if self.active:
            self.neighbours.meet(here)

    @property
    def may_spin(self) -> bool:
        """Whether spinning takes no core away from another rank now."""
        return self.active and not self.lent

    def yield_core(self, times: int) -> None:
        """Yield the core between two polls. ``times``: the earlier calls in this wait.

        A sched_yield costs little and is enough if it reaches the other ranks. It does not reach
        ranks in another session if the kernel shares the cores between sessions (autogroup), and
        launchers give each rank its own session. In that case the rank has to sleep for a moment.
        """
        if self.oversubscribed and times >= _YIELDS:
            sleep(_MOMENT)
        else:
            yield_core()

    def note_progress(self) -> None:
        """Record that a message, or a part of one, has come or gone; more may follow."""
        now = perf_counter()
        if self._waiting or self._looking:
            self.learn(now - max(self._last_arrival, self._since))
            if self._waiting and self.may_spin:
                self._turn_on(now)
        self._last_arrival = now

    def learn(self, waited: float) -> None:
        """Adapt the window to a wait of ``waited`` seconds that has ended."""
        if waited < LONGEST:
            self.window = min(self.window * 2, LONGEST)
        else:
            self.window = max(self.window / 2, SHORTEST)

    def call_after_turn(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` after the other callbacks had their turn: in the loop, or in `look`."""
        if self._looking:
            self._due.append(callback)
        else:
            self._call_soon(callback)

    def call_in_next_turn(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` in the next turn of the loop. `look` keeps the loop from turning."""
        self._call_soon(callback)

    def look(
        self,
        polls: Sequence[Callable[[], None]],
        is_done: Callable[[], bool],
        seconds: float,
        longest: float,
    ) -> None:
        """Call ``polls`` in turn until ``is_done()``, or until nothing has arrived for ``seconds``.

        Spins for at most ``longest`` seconds; the loop does nothing else meanwhile. Must not be
        called from a callback.
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
                if now - max(start, self._last_arrival) > seconds or now - start > longest:
                    return
                if now - start > SHORTEST / 2:
                    self.neighbours.move_to_idle_core(now)
                self.yield_core(times)  # to the other rank, which may be on the same core
                times += 1
        finally:
            self._looking = False
            due, self._due = self._due, []
            for callback in due:
                self._call_soon(callback)

    def turn_is_due(self, now: int) -> bool:
        """Return whether a task that need not suspend should yield to the loop nevertheless.

        ``now``: of `time.monotonic_ns`.
        """
        if now <= self._turn_due:
            return False
        self._turn_due = now + TURN_NANOSECONDS
        return True

    def begin(self) -> None:
        """Begin a wait: keep the loop awake for the window, and again after each message."""
        self._since = now = perf_counter()
        self._waiting += 1
        if self.may_spin:
            self._turn_on(now)

    def end(self) -> None:
        """End a wait that `begin` began."""
        self._waiting -= 1

    def _turn_on(self, now: float) -> None:
        self._until = now + self.window
        if not self._turning:
            self._turning = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        # A loop with a scheduled callback does not sleep, and polls every socket each turn.
        self._turning = False  # first: a signal's handler may raise in here
        if self._waiting and not self.lent and (now := perf_counter()) < self._until:
            self.neighbours.move_to_idle_core(now)
            yield_core()
            self._turning = True
            self._call_soon(self._turn)


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

    def finds_near(self, words: memoryview, word: int, least: int, most: int) -> bool:
        """Whether ``words[word]`` gets between these two soon: a step of a rank that is at work.

        Not looked for where the spin policy is not active.
        """
        spin_policy = self._spin_policy
        if not spin_policy.active:
            return False
        end, times = perf_counter() + NEAR_SECONDS, 0
        while perf_counter() < end:
            spin_policy.yield_core(times)
            times += 1
            if least <= words[word] <= most:
                return True
        return False

    def finds(self, words: memoryview, word: int, least: int) -> bool:
        """Whether ``words[word]`` is at least ``least`` before the time is up."""
        spin_policy = self._spin_policy
        if not (spin_policy.active or spin_policy.oversubscribed):
            return words[word] >= least
        if not self._end:
            self._times = 0
            self._end = perf_counter() + (
                OVERSUBSCRIBED_SECONDS
                if spin_policy.oversubscribed
                else AT_ONCE_SECONDS + BYTE_SECONDS * self._spin_bytes
            )
        while words[word] < least:
            now = perf_counter()
            if now > self._end:
                spin_policy.neighbours.move_to_idle_core(now)
                return False
            if spin_policy.oversubscribed:
                spin_policy.yield_core(self._times)
                self._times += 1
        return True
