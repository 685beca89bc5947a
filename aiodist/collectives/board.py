"""What an algorithm sees of ranks that share memory: a board on which each puts up what others read.

Nothing is sent. A rank writes into memory of its own and raises a flag; the others see the flag and
read. There are two kinds of place. A *slot* takes one small message for each operation. *Chunks*
take the steps of a large one, numbered from 0; step i is in chunk ``i % depth`` of its writer, so it
has to wait until all have let go of step ``i - depth``.

Awaiting raises what a `Channel` raises. Afterwards nothing of the board is touched any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from aiodist.completion import Pending


class Board(Protocol):
    """One operation's view of the memory that the ranks of a group share."""

    rank: int
    size: int

    slot_bytes: int
    """What a slot holds, on all ranks of the group."""

    chunk_bytes: int
    """What a chunk holds, on all ranks of the group."""

    depth: int
    """Chunks that a rank has: step i waits until step i - depth has been let go of."""

    crowded: bool
    """Whether the ranks have to share cores, as all of them say."""

    # -- slots

    async def slot(self, nbytes: int) -> memoryview:
        """Memory for this rank's message, of ``nbytes``; when nobody reads an older one any more."""
        ...

    def put_up(self, nbytes: int) -> None:
        """The slot is written: ``nbytes`` are there for the others."""
        ...

    def slot_of(self, rank: int, nbytes: int = -1) -> Awaitable[memoryview]:
        """The message of another rank, when it is there; to be read before the next wait but one.

        With ``nbytes`` a message of another length fails the operation with
        CollectiveMismatchError.
        """
        ...

    def expect(self, rank: int, came: int, expected: int) -> None:
        """``rank`` has ``came`` bytes for this rank: CollectiveMismatchError unless ``expected``."""
        ...

    # -- chunks

    async def enter(self) -> None:
        """Put up an empty slot. Nothing after `meet`, or where `begin_chunks` has said so."""
        ...

    def may_begin(self) -> bool:
        """Whether this rank may write its first chunk now, before it has met the others."""
        ...

    def has_begun(self) -> bool:
        """Whether it is there already: this operation has been begun before, and was left."""
        ...

    async def meet(self, whom: Sequence[int] | None = None) -> None:
        """Wait for ``whom``, all others where None, to `enter`: before a chunk of theirs is read."""
        ...

    def begin_chunks(self) -> None:
        """As `enter` and `meet`, for ranks that have seen by themselves that the others are there."""
        ...

    def free(self, step: int) -> Pending[None]:
        """Done, if this rank's chunk for ``step`` may be written.

        Else it is when another one of those that still read it has let go: then ask again.
        """
        ...

    def chunk(self, rank: int, step: int) -> memoryview:
        """The memory of a rank's chunk for ``step``; all of it."""
        ...

    def post(self, step: int, phase: int = 0) -> None:
        """This rank's chunk of ``step`` is there for the others. ``phase`` 1: again, changed."""
        ...

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None]:
        """Done when another rank has posted that."""
        ...

    def let_go(self, steps: int) -> None:
        """This rank reads nothing of the first ``steps`` steps any more."""
        ...

    def let_go_all(self) -> None:
        """This rank reads no step (any more)."""
        ...

    def turn(self) -> Pending[None]:
        """Between steps: done when others of this process have had their turn, from time to time."""
        ...
