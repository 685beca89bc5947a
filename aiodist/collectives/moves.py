"""What a rank does with chunks, said beforehand: a row of moves, each bound to the memory it is about.

While a chunk is copied everything else leaves the cache, and what a step has to make anew after
that, a slice, a view, a call with arguments, takes several times as long as in a loop of its own. A
row of moves has all of it made. Whoever carries out the same on the same memory again may keep it:
a chunk's place depends on the number of its step alone (`Board.chunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import setitem
from typing import NamedTuple

from aiodist.collectives.board import Board

Do = Callable[[], object]
"""Copies or reduces one stretch of memory, each time it is called."""

_ALL = slice(None)


class Put(NamedTuple):
    """Once this rank's chunk of ``step`` is free, write it and post it."""

    step: int
    does: Sequence[Do]


class Take(NamedTuple):
    """Once ``rank`` has posted that, read it."""

    rank: int
    step: int
    phase: int
    does: Sequence[Do]


class Change(NamedTuple):
    """Post this rank's chunk of ``step`` again, as it has become since; then do the rest."""

    step: int
    does: Sequence[Do]


class LetGo(NamedTuple):
    """This rank reads nothing of the first ``steps`` steps any more; now others may have their turn."""

    steps: int


Move = Put | Take | Change | LetGo
Moves = Iterable[Move]


async def carry_out(board: Board, moves: Moves) -> None:
    """Do all ``moves``, in their order, when all have met."""
    move: Move | None
    try:
        await board.meet()
        for move in moves:
            if isinstance(move, Take):
                await board.posted(move.rank, move.step, move.phase)
                for do in move.does:
                    do()
            elif isinstance(move, Put):
                await board.free(move.step)
                for do in move.does:
                    do()
                board.post(move.step)
            elif isinstance(move, LetGo):
                board.let_go(move.steps)
                await board.turn()
            else:
                board.post(move.step, 1)
                for do in move.does:
                    do()
    except BaseException:
        # Who keeps the error keeps this frame, and is not to keep the memory that ranks share.
        moves = move = do = None  # type: ignore[assignment]
        raise


def copy(into: memoryview, data: memoryview) -> Do:
    """Copy ``data``, which is as long as ``into``."""
    return partial(setitem, into, _ALL, data)


def takes_in_order(rank: int, step: int, reductions: Sequence[Do]) -> Iterator[Take]:
    """Reduce what the ranks have posted for ``step`` in their order; ``rank``'s own is at hand.

    The first reduction is of the operands of ranks 0 and 1, each later one adds the next rank's.
    """
    takes: list[tuple[int, list[Do]]] = []
    for other in range(len(reductions) + 1):
        if other != rank:
            takes.append((other, []))
        if other:
            takes[-1][1].append(reductions[other - 1])
    for other, does in takes:
        yield Take(other, step, 0, does)
