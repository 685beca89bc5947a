"""Ranks of one host that share memory, on the simulated clock: a `ShmContext` that costs time.

A rank sets a flag at its own clock; a rank that waits for the flag goes on ``FLAG`` later. A write
or read costs the time of a copy, as all memory of a simulated rank does. Chunks are reused as the
real ones are: a writer waits until all peers have released them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiodist.collectives.schedule import ScheduleRun
from aiodist.collectives.shm_exchange import Exchange, T
from aiodist.completion import Pending
from aiodist.shm.group_area import CHUNK_BYTES, DEPTH, LARGEST_SLOT_BYTES

if TYPE_CHECKING:
    from aiodist.simulate.network import Rank

FLAG = 10e-6
"""Seconds until a flag is seen, and what a step of Python around it takes."""

_Wake = Callable[[float], None]


class Memory:
    """What the ranks of one host share for one operation."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: dict[int, float] = {}  # when each rank published its
        self.posts: dict[tuple[int, int, int], float] = {}
        self.gone: dict[int, list[tuple[int, float]]] = defaultdict(list)  # (steps, when)
        self.waiting: list[tuple[Callable[[], float | None], _Wake]] = []

    def changed(self) -> None:
        """Wake the ranks whose condition holds now."""
        waiting, self.waiting = self.waiting, []
        for known, wake in waiting:
            when = known()
            if when is None:
                self.waiting.append((known, wake))
            else:
                wake(when)

    def released_at(self, rank: int, steps: int) -> float | None:
        """Return when ``rank`` had released ``steps`` steps, or None if it has not yet."""
        return next((when for gone, when in self.gone[rank] if gone >= steps), None)


class SimulatedShm:
    """One rank's view of a `Memory`; see `collectives.shm_exchange.ShmContext`."""

    slot_bytes = LARGEST_SLOT_BYTES
    chunk_bytes = CHUNK_BYTES
    depth = DEPTH
    oversubscribed = False

    def __init__(self, memory: Memory, place: int, rank: Rank) -> None:
        """``place``: this rank's number on its host."""
        self.rank = place
        self.size = memory.size
        self.first = 0
        self._memory = memory
        self._rank = rank

    async def run(self, exchange: Exchange[T], given: T) -> None:
        memory, slot_bytes = self._memory, self.slot_bytes
        if self.rank not in memory.slots and exchange.nbytes >= 0:
            exchange.fill(self._rank.memory(slot_bytes), given)
            memory.slots[self.rank] = self._rank.clock
            memory.changed()
        for rank, _ in exchange.reads:
            waiting = self._until(partial(memory.slots.get, rank))
            if waiting is not None:
                await waiting
        slots = [self._rank.memory(slot_bytes)] * self.size
        if exchange.finish(0, slots, given):
            run = ScheduleRun(self, exchange.schedule(self, slots, given))
            while (waiting := run.advance()) is not None:
                await waiting
            self.first += run.released

    def chunk(self, rank: int, step: int) -> memoryview:
        return self._rank.memory(self.chunk_bytes)

    # -- collectives.shm_layout.ChunkWords

    def may_begin(self) -> bool:
        return False

    def free(self, step: int) -> Pending[None] | None:
        steps = step - self.depth + 1
        for rank in range(self.size if steps > 0 else 0):
            if rank != self.rank:
                waiting = self._until(partial(self._memory.released_at, rank, steps))
                if waiting is not None:
                    return waiting
        return None

    def post(self, step: int, phase: int = 0) -> None:
        self._memory.posts[self.rank, step, phase] = self._rank.clock
        self._memory.changed()

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None] | None:
        return self._until(lambda: self._memory.posts.get((rank, step, phase)))

    def release(self, steps: int) -> None:
        self._memory.gone[self.rank].append((steps, self._rank.clock))
        self._memory.changed()

    def turn(self) -> None:
        """Return None: no other callback waits in a simulated loop."""

    # -- waiting

    def _until(self, known: Callable[[], float | None]) -> Pending[None] | None:
        """Return what is done when ``known()`` says since when it is so; None if it says so now."""
        when = known()
        if when is not None:
            self._rank.clock = max(self._rank.clock, when + FLAG)
            return None
        pending: Pending[None] = Pending()

        def wake(when: float) -> None:
            self._rank.resume(when + FLAG, pending)

        self._memory.waiting.append((known, wake))
        return pending
