"""What an algorithm sees of ranks that share memory: each publishes what the others read.

Nothing is sent. A rank writes into memory of its own and raises a flag; the others see the flag and
read. There are two kinds of place. A *slot* takes one small message for each operation. *Chunks*
take the steps of a large one, numbered from 0. Step i is in chunk ``i % depth`` of its writer. So the
writer waits until all readers have released step ``i - depth``.

Awaiting raises what a `Channel` raises. Afterwards the algorithm does not use the memory any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from aiodist.completion import Pending


class ShmContext(Protocol):
    """One operation's view of the memory that the ranks of a group share."""

    rank: int
    size: int

    slot_bytes: int
    """What a slot holds, on all ranks of the group."""

    chunk_bytes: int
    """What a chunk holds, on all ranks of the group."""

    depth: int
    """Chunks that a rank has: step i waits until step i - depth is released."""

    crowded: bool
    """Whether the ranks have to share cores, as all of them say."""

    # -- slots

    async def slot(self, nbytes: int) -> memoryview:
        """Return memory for this rank's message of ``nbytes``, once no peer reads an older one."""
        ...

    def publish(self, nbytes: int) -> None:
        """Publish ``nbytes`` of the slot to the peers."""
        ...

    def slot_of(self, rank: int, nbytes: int = -1) -> Awaitable[memoryview]:
        """Return the message of another rank when it is published; read it before the next wait but
        one.

        With ``nbytes`` a message of another length fails the operation with
        CollectiveMismatchError.
        """
        ...

    def expect(self, rank: int, came: int, expected: int) -> None:
        """``rank`` has ``came`` bytes for this rank: CollectiveMismatchError unless ``expected``."""
        ...

    # -- chunks

    async def enter(self) -> None:
        """Publish an empty slot. Does nothing after `wait_for_peers`, or if `begin_chunks` was called."""
        ...

    def may_begin(self) -> bool:
        """Whether this rank may write its first chunk now, before it has met the others."""
        ...

    def has_begun(self) -> bool:
        """Return whether the first chunk is published: this operation has begun before, and was left."""
        ...

    async def wait_for_peers(self, peers: Sequence[int] | None = None) -> None:
        """Wait until ``peers`` (all others where None) have entered; only then read their chunks."""
        ...

    def begin_chunks(self) -> None:
        """Skip `enter` and `wait_for_peers`: this rank has seen that the others are in the operation."""
        ...

    def free(self, step: int) -> Pending[None]:
        """Return a `Pending` that is done if this rank's chunk for ``step`` may be written.

        Otherwise it completes when one more reader has released the chunk: then ask again.
        """
        ...

    def chunk(self, rank: int, step: int) -> memoryview:
        """The memory of a rank's chunk for ``step``; all of it."""
        ...

    def post(self, step: int, phase: int = 0) -> None:
        """This rank's chunk of ``step`` is there for the others. ``phase`` 1: again, changed."""
        ...

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None]:
        """Return a `Pending` that is done when ``rank`` has posted that step and phase."""
        ...

    def release(self, steps: int) -> None:
        """Release the first ``steps`` steps: this rank reads none of them any more."""
        ...

    def release_all(self) -> None:
        """Release all steps: this rank reads none (any more)."""
        ...

    def turn(self) -> Pending[None]:
        """Call between steps. From time to time it is done only after the loop has served others."""
        ...
