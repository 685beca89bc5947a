"""The schedule of a collective in chunks: steps in order, each bound to its memory (libNBC's term).

Copying a chunk evicts everything else from the cache. A slice, a view or a call that is made after it
takes several times as long as in a loop of its own. A schedule has all of them made. An equal
collective on the same memory may use the schedule again, because a chunk's place depends on the
number of its step alone (`ShmLayout.chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.shm_layout import ChunkWords, ShmLayout
from aiodist.completion import Pending
from aiodist.copying import copy

Copy = tuple[memoryview, memoryview]
"""What is written, and what is read: as long as each other."""
Do = Callable[[], object]
"""Reduces two stretches of memory into one, each time it is called."""

WRITE, REPOST, READ, READ_REPOSTED, RELEASE = range(5)
"""What kind of move it is. Plain numbers in plain tuples: a row has thousands, made in the middle of
the work where it is made for one call alone.

``WRITE``: once this rank's chunk of the step is free, write it and post it. ``REPOST``: post it
again, as it has become since. ``READ``: once the other rank has posted its chunk, read it;
``READ_REPOSTED``: once it has done so again. ``RELEASE``: this rank reads nothing of the first so
many steps any more; now others of this process may have their turn.
"""

ALL_STEPS = (1 << 24) - 2
"""As the steps of ``RELEASE``: all of the operation. No operation has as many."""

Step = tuple[int, int, int, Sequence[Copy], Sequence[Do]]
"""Kind, rank whose chunk it is, step (of ``RELEASE``: how many), and what to copy and reduce then."""
Schedule = Iterable[Step]


class ScheduleRun:
    """Steps in progress: carried out until a peer has to be waited for.

    It is no coroutine, because one would have to be made for each possible wait.
    """

    __slots__ = ("_held", "_schedule", "_shm", "released")

    def __init__(self, shm: ChunkWords, schedule: Schedule) -> None:
        self._shm = shm
        self._schedule = iter(schedule)
        self._held: Step | None = None  # taken out of them, and not done yet
        self.released = 0
        """The most steps that have been released: all of them in the end."""

    def begin(self) -> None:
        """Publish the first chunk before the peers arrive, if it is this rank's and its place is free.

        A rank that arrives early then has it ready for the last one. No rank reads it before it has
        seen this one's slot.
        """
        first = next(self._schedule)
        if first[0] == WRITE and self._shm.may_begin():
            self._do((first,))
        else:
            self._held = first

    def advance(self) -> Pending[None] | None:
        """Carry out the steps in order, after all ranks have arrived.

        Returns what the next step waits for: call again when that is done. None: all steps are done.
        """
        held, self._held = self._held, None
        return self._do(self._schedule if held is None else chain((held,), self._schedule))

    def drop(self) -> None:
        """Forget all further steps, so that this object no longer keeps the shared memory mapped."""
        self._schedule = iter(())
        self._held = None

    def _do(self, schedule: Schedule) -> Pending[None] | None:
        shm = self._shm
        start = shm.first
        try:
            for action in schedule:
                kind, rank, step, copies, reductions = action
                if kind == READ:
                    waiting = shm.posted(rank, start + step)
                elif kind == WRITE:
                    waiting = shm.free(start + step)
                elif kind == READ_REPOSTED:
                    waiting = shm.posted(rank, start + step, 1)
                else:
                    waiting = None
                if waiting is not None:
                    self._held = action
                    return waiting
                for into, data in copies:
                    copy(into, data)
                for reduction in reductions:
                    reduction()
                if kind == WRITE:
                    shm.post(start + step)
                elif kind == RELEASE:
                    self.released = max(self.released, step)
                    shm.release(start + step)
                    waiting = shm.turn()
                    if waiting is not None:
                        return waiting
                elif kind == REPOST:
                    shm.post(start + step, 1)
        except BaseException:
            # The error keeps this frame alive, and must not keep the shared memory mapped with it.
            self.drop()
            schedule = action = copies = reductions = into = data = reduction = None  # type: ignore[assignment]
            raise
        return None


def part_bytes(shm: ShmLayout, align: int = 64) -> int:
    """Return how many bytes each rank has of a chunk that is cut into a part for each."""
    return shm.chunk_bytes // shm.size // align * align


def write_parts(
    shm: ShmLayout, step: int, width: int, blocks: Sequence[memoryview], readers: Iterable[int]
) -> Step:
    """Return the step that writes the next ``width`` bytes of each reader's block to that one's part."""
    chunk = shm.chunk(shm.rank, step)
    copies = []
    for reader in readers:
        part = blocks[reader][step * width : (step + 1) * width]
        copies.append((chunk[reader * width : reader * width + len(part)], part))
    return WRITE, shm.rank, step, copies, ()


def reductions_in_order(
    reduce: Reduction, operands: Iterable[memoryview], out: memoryview
) -> list[Do]:
    """Return what makes ``out`` the ``operands`` reduced from the first on.

    ``out`` may be the memory of the first or second operand.
    """
    first, second, *others = operands
    return [reduce.of(first, second, out), *(reduce.of(out, other, out) for other in others)]


def operands_in_order(rank: int, size: int) -> list[tuple[int, slice]]:
    """Return the ranks that ``rank`` waits for in turn, to reduce all chunks in the order of ranks.

    Each comes with those of `reductions_in_order` that are possible then. The own operand is always
    there.
    """
    others = [other for other in range(size) if other != rank]
    ends = [following - 1 for following in (*others[1:], size)]
    return [
        (other, slice(start, end))
        for other, start, end in zip(others, (0, *ends), ends, strict=False)
    ]
