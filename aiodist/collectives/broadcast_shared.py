"""Broadcast over shared memory: the root publishes its data, all others copy it.

In a slot: one step, and the root does not wait for the others. In chunks: S = N / chunk steps, the
root a few chunks ahead of the slowest rank, for which it waits then. Bytes: the root writes N,
each other rank reads N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from aiodist.collectives.partition import segments_of
from aiodist.collectives.schedule import READ, RELEASE, WRITE, Step
from aiodist.collectives.shm_exchange import Exchange, Reads
from aiodist.collectives.shm_layout import ShmLayout
from aiodist.collectives.views import DataView
from aiodist.copying import AT_ONCE, copy

PIECE_BYTES = 128 << 10
"""Bytes that the root publishes in a slot before the others begin to copy."""


def read_from(rank: int, root: int, nbytes: int) -> Reads:
    """Return what ``rank`` reads: the slot of the ``root``, where that is another rank."""
    return () if rank == root else ((root, nbytes),)


class BroadcastSlots(Exchange[DataView]):
    """Broadcast of data that fits into a slot. The others copy out while the root copies in."""

    __slots__ = ("_length", "_root")

    def __init__(self, rank: int, size: int, nbytes: int, root: int) -> None:
        super().__init__(rank, size, nbytes if rank == root else -1, read_from(rank, root, nbytes))
        self._root = root
        self._length = nbytes
        if nbytes > PIECE_BYTES:
            stops = [*range(PIECE_BYTES, nbytes, PIECE_BYTES), nbytes]
            self.pieces = [slice(start, stop) for start, stop in pairwise([0, *stops])]
            self.spin_bytes = PIECE_BYTES

    def fill(self, slot: memoryview, given: DataView) -> None:
        if self._length <= AT_ONCE:  # without a call, whose cost counts for 4 bytes
            slot[: self._length] = given.view
        else:
            copy(slot[: self._length], given.view)

    def fill_piece(self, piece: slice, slot: memoryview, given: DataView) -> None:
        slot[piece] = given.view[piece]

    def finish_piece(self, piece: slice, slot: memoryview, given: DataView) -> None:
        given.view[piece] = slot[piece]

    def finish(self, number: int, slots: Sequence[memoryview], given: DataView) -> bool:
        if self.rank != self._root:
            copy(given.view, slots[self._root][: self._length])
        return False


def broadcast_chunks(shm: ShmLayout, root: int, data: memoryview) -> Iterator[Step]:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, width = shm.rank, shm.chunk_bytes
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        chunk = shm.chunk(root, step)[: len(part)]
        if rank == root:
            yield WRITE, rank, step, [(chunk, part)], ()
        else:
            yield READ, root, step, [(part, chunk)], ()
        yield RELEASE, rank, step + 1, (), ()
