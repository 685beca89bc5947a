"""All-gather over shared memory: each rank puts its block up, all others copy it.

In slots: one step. In chunks: as many steps as the longest block has chunks. Bytes: a rank writes
its own block and reads all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.moves import LET_GO, PUT, TAKE, Move
from aiodist.copying import copy


async def all_gather_slots(board: Board, blocks: Sequence[memoryview]) -> None:
    """Fill every ``blocks[r]`` with rank r's block, each at most a slot."""
    mine = blocks[board.rank]
    own = await board.slot(len(mine))
    copy(own, mine)
    board.put_up(len(mine))
    for other in others_of(board):
        copy(blocks[other], await board.slot_of(other, len(blocks[other])))


def all_gather_chunks(
    board: Board, blocks: Sequence[memoryview], readers: Sequence[int] | None = None
) -> Iterator[Move]:
    """Fill every ``blocks[r]`` with rank r's block, on ``readers``, or everywhere where None."""
    rank = board.rank
    others = others_of(board) if readers is None or rank in readers else []
    width = board.chunk_bytes
    steps = max(segments_of(len(block), width) for block in blocks)
    for step in range(steps + 1):
        if step < steps:
            part = blocks[rank][step * width : (step + 1) * width]
            yield PUT, rank, step, [(board.chunk(rank, step)[: len(part)], part)], ()
        if step:
            for other in others:
                part = blocks[other][(step - 1) * width : step * width]
                chunk = board.chunk(other, step - 1)[: len(part)]
                yield TAKE, other, step - 1, [(part, chunk)], ()
            yield LET_GO, rank, step, (), ()
