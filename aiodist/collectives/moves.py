"""What a rank does with chunks, said beforehand: a row of moves, each bound to the memory it is about.

While a chunk is copied everything else leaves the cache, and what a step has to make anew after
that, a slice, a view, a call with arguments, takes several times as long as in a loop of its own. A
row of moves has all of it made. Whoever carries out the same on the same memory again may keep it:
a chunk's place depends on the number of its step alone (`Board.chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from aiodist.collectives.board import Board

Copy = tuple[memoryview, memoryview]
"""What is written, and what is read: as long as each other."""
Do = Callable[[], object]
"""Reduces two stretches of memory into one, each time it is called."""

PUT, CHANGE, TAKE, TAKE_CHANGED, LET_GO = range(5)
"""What kind of move it is. Plain numbers in plain tuples: a row has thousands, made in the middle of
the work where it is made for one call alone.

``PUT``: once this rank's chunk of the step is free, write it and post it. ``CHANGE``: post it again, as
it has become since. ``TAKE``: once the other rank has posted its chunk, read it; ``TAKE_CHANGED``: once it
has done so again. ``LET_GO``: this rank reads nothing of the first so many steps any more; now others of
this process may have their turn.
"""

Move = tuple[int, int, int, Sequence[Copy], Sequence[Do]]
"""Kind, rank whose chunk it is, step (of ``LET_GO``: how many), and what to copy and reduce then."""
Moves = Iterable[Move]


async def carry_out(board: Board, moves: Moves, whom: Sequence[int] | None = None) -> None:
    """Do all ``moves``, in their order, when all are there; the first one may be done before.

    Whoever comes early has its first chunk there when the last one comes. ``whom``: the others whose
    chunks are read, where those are not all; nobody else is waited for.
    """
    try:
        moves = iter(moves)
        first = next(moves)
        await board.enter()
        if first[0] == PUT and board.may_begin():
            await _do(board, (first,))
        elif first[0] != PUT or not board.has_begun():
            moves = chain((first,), moves)
        await board.meet(whom)
        await _do(board, moves)
    except BaseException:
        # Who keeps the error keeps this frame, and is not to keep the memory that ranks share.
        moves = first = None  # type: ignore[assignment]
        raise


async def _do(board: Board, moves: Moves) -> None:
    try:
        for kind, rank, step, copies, reductions in moves:
            if kind == TAKE:
                await board.posted(rank, step)
            elif kind == PUT:
                await board.free(step)
            elif kind == TAKE_CHANGED:
                await board.posted(rank, step, 1)
            for into, data in copies:
                into[:] = data
            for reduction in reductions:
                reduction()
            if kind == LET_GO:
                board.let_go(step)
                await board.turn()
            elif kind == PUT:
                board.post(step)
            elif kind == CHANGE:
                board.post(step, 1)
    except BaseException:
        # As above.
        moves = copies = reductions = into = data = reduction = None  # type: ignore[assignment]
        raise


def operands_in_order(rank: int, size: int) -> list[tuple[int, slice]]:
    """For whom ``rank`` waits in turn to reduce what all have posted in the order of ranks.

    Beside each: which reductions it can do then, where the first one is of the operands of ranks 0
    and 1, and each later one adds the next rank's. Its own is at hand.
    """
    others = [other for other in range(size) if other != rank]
    ends = [following - 1 for following in (*others[1:], size)]
    return [
        (other, slice(start, end))
        for other, start, end in zip(others, (0, *ends), ends, strict=False)
    ]
