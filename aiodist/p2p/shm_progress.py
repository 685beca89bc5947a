"""The progress engine: advance all long messages of a rank that it copies itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from aiodist.p2p.spin_policy import NEAR_SECONDS, TURN_SECONDS, SpinPolicy
from aiodist.shm.shared_memory import SharedMemory


class ProgressSource(Protocol):
    """A message that is being copied, or the messages in a ring."""

    @property
    def is_busy(self) -> bool:
        """Whether a message is incomplete: there is more to receive."""

    def step(self) -> bool:
        """Copy one piece if possible. Returns whether it did."""

    def arm(self) -> bool:
        """Ask to be woken. Returns False if there is something to do now."""


class HelperThreads:
    """Threads that copy beside the loop's thread, on cores that no rank uses meanwhile."""

    def __init__(self) -> None:
        self.limit = 0
        """How many there may be: so many cores are free."""
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def do(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do ``jobs``, which raise nothing, each in a thread, or as many as the system has threads for."""
        while len(self._threads) < len(jobs):
            thread = threading.Thread(target=self._work, name="aiodist-copy", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break
            self._threads.append(thread)
        for job in jobs[: len(self._threads)]:
            self._jobs.put(job)

    def end(self) -> None:
        """Return once all jobs are done. Idempotent."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class ShmProgress:
    """The progress engine of one rank."""

    def __init__(self, memory: SharedMemory | None, spin_policy: SpinPolicy) -> None:
        self.memory = memory
        self.call_after_turn = spin_policy.call_after_turn
        self.call_in_next_turn = spin_policy.call_in_next_turn
        self.note_progress = spin_policy.note_progress
        self.spin_policy = spin_policy
        self._busy: dict[ProgressSource, float] = {}  # with the time of its last copied piece
        self._working = False
        self._armed = False
        self.helpers = HelperThreads()

    def activate(self, source: ProgressSource) -> None:
        """Start or continue the work of ``source``, which has something to do."""
        self._busy[source] = perf_counter()
        self.work()

    def work(self) -> None:
        """Copy pieces where possible, for at most one turn. May be called anywhere in the loop's
        thread.
        """
        if self._busy and not self._working:
            self._working = True
            try:
                self._work()
            except BaseException:
                self._go_on_soon()  # what a signal's handler has struck
                raise
            finally:
                self._working = False

    def close(self) -> None:
        """Release the threads and the shared memory. Idempotent."""
        self.helpers.end()
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
            elif self.spin_policy.active and any(
                now - then < NEAR_SECONDS and source.is_busy for source, then in busy.items()
            ):
                self.spin_policy.yield_core(0)
            elif all(source.arm() for source in list(busy)):
                break
        self.note_progress()

    def _step(self, now: float) -> bool:
        moved = False
        for source in list(self._busy):
            if source.step():
                moved = True
                if source in self._busy:
                    self._busy[source] = now
            elif not source.is_busy and source.arm():
                self._busy.pop(source, None)
        return moved

    def _go_on_soon(self) -> None:
        if not self._armed:
            self._armed = True
            self.call_after_turn(self._go_on)

    def _go_on(self) -> None:
        self._armed = False
        self.work()
