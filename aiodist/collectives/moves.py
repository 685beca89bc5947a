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
from aiodist.completion import Pending
from aiodist.copying import copy

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


class Row:
    """Moves on their way: done here and now, as far as nobody has to be waited for.

    No coroutine, which would have to be made for each wait whether it is one or not.
    """

    __slots__ = ("_board", "_held", "_moves")

    def __init__(self, board: Board, moves: Moves) -> None:
        self._board = board
        self._moves = iter(moves)
        self._held: Move | None = None  # taken out of them, and not done yet

    def begin(self) -> None:
        """Before others are there: put up what comes first, if it is this rank's and has its place.

        Whoever comes early has it there when the last one comes.
        """
        first = next(self._moves)
        if first[0] == PUT and self._board.may_begin():
            self._do((first,))
        elif first[0] != PUT or not self._board.has_begun():
            self._held = first

    def go_on(self) -> Pending[None] | None:
        """Do the moves, in their order, when all are there. What the next one has to wait for, if it does.

        When that is done, go on once more. None: all moves are done.
        """
        held, self._held = self._held, None
        return self._do(self._moves if held is None else chain((held,), self._moves))

    def drop(self) -> None:
        """No move is done any more: who keeps this does not keep the memory that ranks share."""
        self._moves = iter(())
        self._held = None

    def _do(self, moves: Moves) -> Pending[None] | None:
        board = self._board
        try:
            for move in moves:
                kind, rank, step, copies, reductions = move
                if kind == TAKE:
                    waiting = board.posted(rank, step)
                elif kind == PUT:
                    waiting = board.free(step)
                elif kind == TAKE_CHANGED:
                    waiting = board.posted(rank, step, 1)
                else:
                    waiting = None
                if waiting is not None and not waiting.done:
                    self._held = move
                    return waiting
                for into, data in copies:
                    copy(into, data)
                for reduction in reductions:
                    reduction()
                if kind == PUT:
                    board.post(step)
                elif kind == LET_GO:
                    board.let_go(step)
                    waiting = board.turn()
                    if not waiting.done:
                        return waiting
                elif kind == CHANGE:
                    board.post(step, 1)
        except BaseException:
            # Who keeps the error keeps this frame, and is not to keep the memory that ranks share.
            self.drop()
            moves = move = copies = reductions = into = data = reduction = None  # type: ignore[assignment]
            raise
        return None


async def carry_out(board: Board, moves: Moves, whom: Sequence[int] | None = None) -> None:
    """Do all ``moves``, in their order, when all are there; the first one may be done before.

    ``whom``: the others whose chunks are read, where those are not all; nobody else is waited for.
    """
    row, moves = Row(board, moves), ()
    try:
        await board.enter()
        row.begin()
        await board.meet(whom)
        while (waiting := row.go_on()) is not None:
            await waiting
    except BaseException:
        row.drop()
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
