"""Broadcast over shared memory: the root publishes its data, all others copy it.

In a slot: one step, and the root does not wait for the others. In chunks: S = N / chunk steps, the
root a few chunks ahead of the slowest rank, for which it waits then. Bytes: the root writes N,
each other rank reads N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.moves import LET_GO, PUT, TAKE, Move
from aiodist.copying import copy


async def broadcast_slots(board: Board, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it; at most a slot."""
    if board.rank == root:
        own = await board.slot(len(data))
        copy(own, data)
        board.put_up(len(data))
    else:
        copy(data, await board.slot_of(root, len(data)))


def whom_it_reads(rank: int, root: int) -> Sequence[int]:
    """Whose data ``rank`` copies: all that it has to meet."""
    return () if rank == root else (root,)


def broadcast_chunks(board: Board, root: int, data: memoryview) -> Iterator[Move]:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    rank, width = board.rank, board.chunk_bytes
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        chunk = board.chunk(root, step)[: len(part)]
        if rank == root:
            yield PUT, rank, step, [(chunk, part)], ()
        else:
            yield TAKE, root, step, [(part, chunk)], ()
        yield LET_GO, rank, step + 1, (), ()
