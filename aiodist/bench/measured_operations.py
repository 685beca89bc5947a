"""Each operation as data: how long its tensors are, what they hold before and after a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from aiodist.bench.cases import Case
from aiodist.bench.pattern import Array, Segment, addend, check, fill, mark

Segments = tuple[Segment, ...]

_POISON = -1


@dataclass(frozen=True)
class Contents:
    """Of one call on one rank. ``before`` is the input; in place, the output is the same memory."""

    before: Segments
    after: Segments


@dataclass(frozen=True)
class Operation:
    """``lengths(count, ranks)``: elements of input and output; an output of None is in place."""

    lengths: Callable[[int, int], tuple[int, int | None]]
    contents: Callable[[int, int, int, int], Contents]
    """(rank, ranks, count, turn), ``count`` being the elements of the larger tensor."""


def poison(count: int) -> Segments:
    """Return what an output holds before the call."""
    return (Segment(0, count, 0, _POISON),)


def _all_reduce(rank: int, ranks: int, count: int, turn: int) -> Contents:
    total = sum(addend(sender, 0, turn) for sender in range(ranks))
    return Contents(
        (Segment(0, count, 1, addend(rank, 0, turn)),), (Segment(0, count, ranks, total),)
    )


def _from_rank_0(rank: int, ranks: int, count: int, turn: int) -> Contents:
    sent = (Segment(0, count, 1, mark(0, 0, turn)),)
    return Contents(sent if rank == 0 else poison(count), sent)


def _all_gather(rank: int, ranks: int, count: int, turn: int) -> Contents:
    part = count // ranks
    return Contents(
        (Segment(0, part, 1, mark(rank, 0, turn)),),
        tuple(Segment(r * part, part, 1, mark(r, 0, turn)) for r in range(ranks)),
    )


def _reduce_scatter(rank: int, ranks: int, count: int, turn: int) -> Contents:
    total = sum(addend(sender, rank, turn) for sender in range(ranks))
    part = count // ranks
    addends = tuple(Segment(r * part, part, 1, addend(rank, r, turn)) for r in range(ranks))
    return Contents(addends, (Segment(0, part, ranks, total),))


def _all_to_all(rank: int, ranks: int, count: int, turn: int) -> Contents:
    part = count // ranks
    return Contents(
        tuple(Segment(r * part, part, 1, mark(rank, r, turn)) for r in range(ranks)),
        tuple(Segment(r * part, part, 1, mark(r, rank, turn)) for r in range(ranks)),
    )


def _barrier(rank: int, ranks: int, count: int, turn: int) -> Contents:
    return Contents((), ())


def _in_place(count: int, ranks: int) -> tuple[int, int | None]:
    return count, None


CONTENTS = MappingProxyType(
    {
        "all_reduce": Operation(_in_place, _all_reduce),
        "broadcast": Operation(_in_place, _from_rank_0),
        "all_gather": Operation(lambda count, ranks: (count // ranks, count), _all_gather),
        "reduce_scatter": Operation(lambda count, ranks: (count, count // ranks), _reduce_scatter),
        "all_to_all": Operation(lambda count, ranks: (count, count), _all_to_all),
        "send_recv": Operation(lambda count, ranks: (count, count), _from_rank_0),
        "barrier": Operation(_in_place, _barrier),
    }
)


class Call:
    """The memory of one case on one rank, rewritten before each call and checked after it.

    ``empty(count)`` makes float32 memory and returns it in the peer's form, and as a numpy view.
    ``source`` and ``target`` are in the peer's form; they are the same if the operation is in place.
    """

    def __init__(self, case: Case, rank: int, empty: Callable[[int], tuple[Any, Array]]) -> None:
        self.case = case
        self.operation = case.operation
        self.rank = rank
        self._of = CONTENTS[case.operation]
        before, after = self._of.lengths(case.count, case.ranks)
        self.source, self._source = empty(before)
        self.in_place = after is None
        self.target, self._target = (self.source, self._source) if after is None else empty(after)

    repeats = 1
    """Calls in a row whose time is taken together."""

    def arrive(self, number: int) -> None:
        """Do what the rank does between the meeting before call ``number`` and the call: nothing."""

    def write(self, turn: int) -> None:
        """Fill the input with what belongs to ``turn`` and the output with nonsense."""
        if not self.in_place:
            fill(self._target, poison(len(self._target)))
        fill(self._source, self._contents(turn).before)

    def check(self, turn: int, peer: str) -> None:
        """Raise WrongResultError unless the output is right."""
        who = f"{peer}, {self.case}, rank {self.rank}, turn {turn}"
        check(self._target, self._contents(turn).after, who)

    def _contents(self, turn: int) -> Contents:
        case = self.case
        return self._of.contents(self.rank, case.ranks, case.count, turn)
