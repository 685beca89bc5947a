"""The memory that ranks share, as an algorithm sees it: each publishes what the others read.

Nothing is sent. A rank writes into memory of its own and raises a flag; the others see the flag and
read. There are two kinds of place. A *slot* takes one small message for each operation. *Chunks*
take the steps of a large one, numbered from 0. Step i is in chunk ``i % depth`` of its writer. So the
writer waits until all readers have released step ``i - depth``.
"""

from __future__ import annotations

from typing import Protocol

from aiodist.completion import Pending


class ShmLayout(Protocol):
    """The memory that the ranks of a group share, as one rank of them sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """What a slot holds, on all ranks of the group."""

    @property
    def chunk_bytes(self) -> int:
        """What a chunk holds, on all ranks of the group."""

    @property
    def depth(self) -> int:
        """Chunks that a rank has: step i waits until step i - depth is released."""

    @property
    def oversubscribed(self) -> bool:
        """Whether the ranks have to share cores, as all of them say."""

    def chunk(self, rank: int, step: int) -> memoryview:
        """Return the memory of a rank's chunk for ``step``; all of it."""


class ChunkWords(Protocol):
    """The words of chunks, by which ranks wait for each other.

    ``first``: the steps that earlier stretches of the operation have used. The steps here are the
    operation's, those of `ShmLayout.chunk` the stretch's.
    """

    first: int

    def may_begin(self) -> bool:
        """Whether this rank may write its first chunk now, before it has read the others' slots."""

    def free(self, step: int) -> Pending[None] | None:
        """Return None if this rank's chunk for ``step`` may be written, else what to wait for.

        That completes when one more reader has released the chunk: then ask again.
        """

    def post(self, step: int, phase: int = 0) -> None:
        """Publish this rank's chunk of ``step`` to the others. ``phase`` 1: again, changed."""

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None] | None:
        """Return None if ``rank`` has posted that step and phase, else what to wait for."""

    def release(self, steps: int) -> None:
        """Release the first ``steps`` steps: this rank reads none of them any more."""

    def turn(self) -> Pending[None] | None:
        """Call between steps. From time to time it returns what is done when the loop has served others."""
