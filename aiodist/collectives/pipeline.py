"""Pieces of a large tensor: one goes between the hosts while the next is worked at inside.

What a collective does inside a host and what it does between hosts are two coroutines that run side by
side on each rank. Each takes the pieces in order: inside, first the stretches before the exchange
of a piece, then, one piece later, those after it; between the hosts one piece after the other. So the
order of messages between two ranks, and of steps on the shared-memory context of a host, is the same on
all.

A piece more is begun inside before the one before it is awaited: enough, since what is worked at
inside takes less time than what travels, or else is what there is to wait for anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from aiodist.collectives.reduction_protocol import Scratch
from aiodist.completion import Pending, together

Step = Callable[[int], Coroutine[Any, Any, None]]
"""What is done for the piece of that number."""


async def in_pieces(count: int, before: Step, across: Step | None, after: Step) -> None:
    """Run ``before``, ``across`` and ``after`` for each of ``count`` pieces, overlapping.

    Pass None as ``across`` on a rank that does not exchange with other hosts. The first error ends
    both sides.
    """
    if across is None or count == 1:
        for number in range(count + 1):
            if number < count:
                await before(number)
                if across is not None:
                    await across(number)
            if number:
                await after(number - 1)
        return
    begun: list[Pending[None]] = [Pending() for _ in range(count)]
    ended: list[Pending[None]] = [Pending() for _ in range(count)]

    async def intra_host() -> None:
        for number in range(count + 1):
            if number < count:
                await before(number)
                begun[number].complete(None)
            if number:
                await ended[number - 1]
                await after(number - 1)

    async def between() -> None:
        for number in range(count):
            await begun[number]
            # The next piece leaves before this rank works at the one that has come.
            await together(across(number), has_come(number - 1))
        await has_come(count - 1)

    async def has_come(number: int) -> None:
        if number >= 0:
            ended[number].complete(None)

    await together(between(), intra_host())


class ReusedScratch:
    """Scratch memory for one piece after the other: each is given what the one before had.

    `next_piece` is for when the one before does not use its memory any more.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._given: list[memoryview] = []
        self._used = 0

    def __call__(self, nbytes: int) -> memoryview:
        given, number = self._given, self._used
        self._used += 1
        if number == len(given):
            given.append(self._scratch(nbytes))
        elif len(given[number]) < nbytes:
            given[number] = self._scratch(nbytes)
        return given[number][:nbytes]

    def next_piece(self) -> None:
        """Begin with the first memory again."""
        self._used = 0
