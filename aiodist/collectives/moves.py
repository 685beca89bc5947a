"""The schedule of a collective in chunks: steps in order, each bound to its memory (libNBC's term).

Copying a chunk evicts everything else from the cache. A slice, a view or a call that is made after it
takes several times as long as in a loop of its own. A schedule has all of them made. An equal
collective on the same memory may use the schedule again, because a chunk's place depends on the
number of its step alone (`Board.chunk`).
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

``PUT``: once this rank's chunk of the step is free, write it and post it. ``CHANGE``: post it
again, as it has become since. ``TAKE``: once the other rank has posted its chunk, read it;
``TAKE_CHANGED``: once it has done so again. ``LET_GO``: this rank reads nothing of the first so
many steps any more; now others of this process may have their turn.
"""

Move = tuple[int, int, int, Sequence[Copy], Sequence[Do]]
"""Kind, rank whose chunk it is, step (of ``LET_GO``: how many), and what to copy and reduce then."""
Moves = Iterable[Move]


class Row:
    """Steps in progress: carried out in the caller's thread until a peer has to be waited for.

    It is no coroutine, because one would have to be made for each possible wait.
    """

    __slots__ = ("_board", "_held", "_moves")

    def __init__(self, board: Board, moves: Moves) -> None:
        self._board = board
        self._moves = iter(moves)
        self._held: Move | None = None  # taken out of them, and not done yet

    def begin(self) -> None:
        """Publish the first chunk before the peers have arrived, if it is this rank's and its place
        is free.

        A rank that arrives early then has it ready for the last one.
        """
        first = next(self._moves)
        if first[0] == PUT and self._board.may_begin():
            self._do((first,))
        elif first[0] != PUT or not self._board.has_begun():
            self._held = first

    def go_on(self) -> Pending[None] | None:
        """Carry out the steps in order, after all ranks have arrived.

        Returns what the next step waits for: call again when that is done. None: all steps are done.
        """
        held, self._held = self._held, None
        return self._do(self._moves if held is None else chain((held,), self._moves))

    def drop(self) -> None:
        """Forget all further steps, so that this object no longer keeps the shared memory mapped."""
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
            # The error keeps this frame alive, and must not keep the shared memory mapped with it.
            self.drop()
            moves = move = copies = reductions = into = data = reduction = None  # type: ignore[assignment]
            raise
        return None


async def carry_out(board: Board, moves: Moves, whom: Sequence[int] | None = None) -> None:
    """Carry out all ``moves`` in order, after all ranks have arrived; the first one perhaps before.

    ``whom``: the ranks whose chunks are read, all others where None. No other rank is waited for.
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
    """Return the ranks that ``rank`` waits for in turn, to reduce all chunks in the order of ranks.

    Each comes with the reductions that are possible then. The first reduction is of the operands of
    ranks 0 and 1, and each later one adds the next rank's. The own operand is always there.
    """
    others = [other for other in range(size) if other != rank]
    ends = [following - 1 for following in (*others[1:], size)]
    return [
        (other, slice(start, end))
        for other, start, end in zip(others, (0, *ends), ends, strict=False)
    ]
