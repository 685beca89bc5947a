"""What a rank does in shared memory in equal calls of one collective.

Each collective begins with an exchange of slots: a rank publishes one, or none, and reads those of
some others. What does not fit into slots follows in chunks, by a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from aiodist.collectives.schedule import Schedule, Step
from aiodist.collectives.shm_layout import ShmLayout

Given = TypeVar("Given", contravariant=True)
"""The memory of one call."""
T = TypeVar("T")

Reads = Sequence[tuple[int, int]]
"""Ranks whose slots are read, in this order, and the bytes that each must have published.

-1 for the bytes: the slot itself says how much it has.
"""


class UnexpectedLength(Exception):
    """``rank`` has ``came`` bytes for this rank, which expects ``expected``."""

    def __init__(self, rank: int, came: int, expected: int) -> None:
        super().__init__(rank, came, expected)
        self.rank, self.came, self.expected = rank, came, expected


class Exchange(Generic[Given]):
    """An exchange of slots in which a rank publishes ``nbytes`` and reads ``reads``.

    This class publishes and reads flags alone.
    """

    __slots__ = ("knows_all", "nbytes", "pieces", "rank", "reads", "size", "spin_bytes")

    begins_early = False
    """Whether `schedule` needs nothing that others publish. Its first chunk may be written before."""

    def __init__(self, rank: int, size: int, nbytes: int, reads: Reads) -> None:
        """``nbytes``: -1 where the rank publishes nothing."""
        self.rank = rank
        self.size = size
        self.nbytes = nbytes
        self.reads = reads
        self.knows_all = len(reads) == size - 1
        self.spin_bytes = nbytes
        """For how long to look for the others, as the bytes for whose copies one would."""
        self.pieces: Sequence[slice] = ()
        """What is published in pieces by the one rank that publishes anything, and read so meanwhile."""

    def fill(self, slot: memoryview, given: Given) -> None:
        """Write what this rank publishes into its ``slot``."""

    def fill_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Write one of `pieces`."""

    def finish_piece(self, piece: slice, slot: memoryview, given: Given) -> None:
        """Take one of `pieces` out of another rank's ``slot``. May be done again, by `finish`."""

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        """Take what the others have published in their ``slots`` of that number, by rank.

        Returns whether steps in chunks follow, by `schedule`. May be done again. Raises UnexpectedLength
        before anything is taken.
        """
        return False

    def schedule(self, layout: ShmLayout, slots: Sequence[memoryview], given: Given) -> Schedule:
        """Return the steps in chunks."""
        return ()


def not_kept(given: object, steps: Iterator[Step]) -> Schedule:
    """Return ``steps``: no cache keeps them."""
    return steps


class InChunks(Exchange[Given]):
    """Everything goes in chunks; the slots say only that a rank is in the operation."""

    __slots__ = ("_keep", "_steps")

    begins_early = True

    def __init__(
        self,
        rank: int,
        size: int,
        steps: Callable[[ShmLayout, Given], Iterator[Step]],
        reads: Reads | None = None,
        keep: Callable[[Given, Iterator[Step]], Schedule] = not_kept,
    ) -> None:
        """Create the exchange.

        ``reads``: the ranks whose chunks are read; all others where None. ``keep``: returns the steps,
        or equal ones that are cached.
        """
        super().__init__(rank, size, 0, all_others(rank, size, 0) if reads is None else reads)
        self.spin_bytes = SPIN_BYTES
        self._steps = steps
        self._keep = keep

    def finish(self, number: int, slots: Sequence[memoryview], given: Given) -> bool:
        return True

    def schedule(self, layout: ShmLayout, slots: Sequence[memoryview], given: Given) -> Schedule:
        return self._keep(given, self._steps(layout, given))


SPIN_BYTES = 300_000
"""`Exchange.spin_bytes` of operations in chunks."""


class ShmContext(ShmLayout, Protocol):
    """Shared memory that one operation has to itself."""

    def run(self, exchange: Exchange[T], given: T) -> Coroutine[Any, Any, None]:
        """Carry out ``exchange``, and its steps in chunks.

        An operation over several hosts calls this for each of its stretches. A rank publishes a slot in
        the first one in which it has any, and none in later ones. Their steps are numbered on from those
        before. Raises what a `Channel` raises; afterwards the algorithm does not use the memory any more.
        """


def others_of(rank: int, size: int) -> list[int]:
    """Return all ranks but this one, the next one first, so that not all begin with the same."""
    return [(rank + distance) % size for distance in range(1, size)]


def all_others(rank: int, size: int, nbytes: int) -> list[tuple[int, int]]:
    """Return `Reads` of all others, each of ``nbytes``."""
    return [(other, nbytes) for other in others_of(rank, size)]
