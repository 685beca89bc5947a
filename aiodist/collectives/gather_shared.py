"""Gather and scatter over shared memory: the root copies what others publish, or the reverse.

Only the root knows all lengths. In a gather each rank publishes its length in a slot, with its data
where that fits. Longer data follows in chunks, which only the root reads. In a scatter the root's slot
holds the lengths of all blocks. It holds the blocks as well if all of them fit; otherwise they follow
in chunks that are cut into n parts. Bytes: everything is written once and read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiodist.collectives.barrier_slots import others_of
from aiodist.collectives.board import Board
from aiodist.collectives.layout import segments_of
from aiodist.collectives.moves import LET_GO, PUT, TAKE, Move, carry_out
from aiodist.collectives.slot_blocks import blocks_of, put_up_blocks
from aiodist.copying import copy

_ALIGN = 64


async def gather_shared(
    board: Board, root: int, data: memoryview, blocks: Sequence[memoryview] | None
) -> None:
    """Fill ``blocks[r]`` on ``root`` with rank r's ``data``; ``blocks`` is ignored elsewhere."""
    if board.rank == root:
        assert blocks is not None
        await _gather(board, data, blocks)
        return
    nbytes = len(data)
    board.let_go_all()
    own = await board.slot(min(nbytes, board.slot_bytes))
    if nbytes <= board.slot_bytes:
        copy(own, data)
    board.put_up(nbytes)
    if nbytes <= board.slot_bytes:
        return
    await board.slot_of(root, 0)  # the root is in the same operation: it will read
    board.begin_chunks()
    await carry_out(board, _sent(board, data))


def _sent(board: Board, data: memoryview) -> Iterator[Move]:
    rank, width = board.rank, board.chunk_bytes
    for step in range(segments_of(len(data), width)):
        part = data[step * width : (step + 1) * width]
        yield PUT, rank, step, [(board.chunk(rank, step)[: len(part)], part)], ()
        yield LET_GO, rank, 0, (), ()


async def _gather(board: Board, data: memoryview, blocks: Sequence[memoryview]) -> None:
    await board.slot(0)
    board.put_up(0)
    copy(blocks[board.rank], data)
    long = {}
    for other in others_of(board):
        place = blocks[other]
        slot = await board.slot_of(other, len(place))
        if len(place) <= board.slot_bytes:
            copy(place, slot)
        else:
            long[other] = place
    if long:
        board.begin_chunks()
        await carry_out(board, _gathered(board, long))


def _gathered(board: Board, places: Mapping[int, memoryview]) -> Iterator[Move]:
    width = board.chunk_bytes
    for step in range(segments_of(max(map(len, places.values())), width)):
        for other, place in places.items():
            part = place[step * width : (step + 1) * width]
            if len(part):
                yield TAKE, other, step, [(part, board.chunk(other, step)[: len(part)])], ()
        yield LET_GO, board.rank, step + 1, (), ()


async def scatter_shared(
    board: Board, root: int, blocks: Sequence[memoryview] | None, out: memoryview
) -> None:
    """Fill ``out`` on rank r with ``root``'s ``blocks[r]``; ``blocks`` is ignored elsewhere."""
    if board.rank == root:
        assert blocks is not None
        if not await put_up_blocks(board, blocks):
            board.begin_chunks()
            await carry_out(board, _scattered(board, blocks))
        copy(out, blocks[root])
        return
    lengths, block = await blocks_of(board, root)
    board.expect(root, lengths[board.rank], len(out))
    if block is not None:
        copy(out, block)
        return
    board.begin_chunks()
    await carry_out(board, _received(board, root, out))
    board.let_go_all()  # others may have longer blocks


def _scattered(board: Board, blocks: Sequence[memoryview]) -> Iterator[Move]:
    rank, width, others = board.rank, _part_of(board), others_of(board)
    for step in range(segments_of(max(len(blocks[other]) for other in others), width)):
        chunk = board.chunk(rank, step)
        copies = []
        for other in others:
            part = blocks[other][step * width : (step + 1) * width]
            copies.append((chunk[other * width : other * width + len(part)], part))
        yield PUT, rank, step, copies, ()
        yield LET_GO, rank, 0, (), ()


def _received(board: Board, root: int, out: memoryview) -> Iterator[Move]:
    width = _part_of(board)
    mine = board.rank * width
    for step in range(segments_of(len(out), width)):
        part = out[step * width : (step + 1) * width]
        theirs = board.chunk(root, step)[mine : mine + len(part)]
        yield TAKE, root, step, [(part, theirs)], ()
        yield LET_GO, board.rank, step + 1, (), ()


def _part_of(board: Board) -> int:
    """Bytes that each rank has of a chunk in a scatter."""
    return board.chunk_bytes // board.size // _ALIGN * _ALIGN
