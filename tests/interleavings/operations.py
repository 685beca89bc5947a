"""Collectives of some bytes each: the plan of each rank, its memory, and what has to be there at last."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiodist.backends.plans import PLANS, GroupShape
from aiodist.collectives.select import MANY, SHARED_RULES, Choice, Rule
from aiodist.collectives.views import BlocksView, DataView
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import ShmPlan
from aiodist.groups.operation import Opened
from tests.interleavings.memory import Bytes

SHORT, PIECES, LONG = 8, 24, 600
"""Bytes that go into a slot; into a slot in pieces, if broadcast; in chunks."""


class Sum:
    """A `Reduction` of bytes."""

    itemsize = 1
    needs_prepare = needs_finish = False

    def __call__(self, acc: Bytes, other: Bytes, other_first: bool = False) -> None:
        self.into(acc, other, acc)

    def into(self, a: Bytes, b: Bytes, out: Bytes) -> None:
        out[:] = bytes((x + y) % 256 for x, y in zip(bytes(a), bytes(b), strict=True))

    def of(self, a: Bytes, b: Bytes, out: Bytes) -> Callable[[], object]:
        return partial(self.into, a, b, out)


@dataclass(frozen=True)
class Begun:
    """A collective on one rank."""

    plan: ShmPlan[Any]
    given: Any
    results: list[Bytes]
    expected: list[bytes]

    def check(self) -> None:
        """Compare the results."""
        assert [bytes(result) for result in self.results] == self.expected


@dataclass(frozen=True)
class Collective:
    """What all ranks call. ``algorithm``: of an all_reduce in chunks.

    ``root``: of an all_to_all the one rank whose blocks are long, if any; else as its name says.
    """

    operation: str
    nbytes: int = 0
    root: int = -1
    algorithm: str = ""

    @property
    def fingerprint(self) -> Fingerprint:
        if self.operation == "all_to_all":  # a rank knows its own lengths alone
            return Fingerprint(self.operation)
        return Fingerprint(self.operation, root=self.root, count=self.nbytes)

    def begin(self, number: int, rank: int, size: int) -> Begun:
        """Make it operation ``number`` of ``rank``, with contents that no other operation has."""
        ranks = range(size)
        lengths = [self._length(source) for source in ranks]

        def block(source: int, target: int = 0) -> bytes:
            first = number * 31 + source * 7 + target * 57
            return bytes((first + 3 * place) % 256 for place in range(lengths[source]))

        def total(target: int = 0) -> bytes:
            columns = zip(*(block(source, target) for source in ranks), strict=True)
            return bytes(sum(column) % 256 for column in columns)

        own: Any = Bytes(bytearray(block(rank)))
        blocks: list[Any] = [Bytes(bytearray(block(rank, target))) for target in ranks]
        places: list[Any] = [Bytes(bytearray(length)) for length in lengths]
        given: Any = DataView(own)
        results, expected = [own], [block(rank)]
        match self.operation:
            case "barrier":
                given, results, expected = None, [], []
            case "broadcast":
                expected = [block(self.root)]
            case "reduce" | "all_reduce":
                expected = [total() if self.root in (-1, rank) else block(rank)]
            case "all_gather":
                given = DataView(own), BlocksView(places)
                results, expected = places, [block(source) for source in ranks]
            case "reduce_scatter":
                given = BlocksView(blocks), DataView(places[rank])
                results, expected = [places[rank]], [total(rank)]
            case "all_to_all":
                given = BlocksView(blocks), BlocksView(places)
                results, expected = places, [block(source, rank) for source in ranks]
        return Begun(self._plan(rank, lengths), given, results, expected)

    def _length(self, source: int) -> int:
        """Return the bytes of each block of rank ``source``."""
        is_short = self.operation == "all_to_all" and source != self.root
        return SHORT if is_short else self.nbytes

    def _plan(self, rank: int, lengths: list[int]) -> ShmPlan[Any]:
        size = len(lengths)
        rules = dict(SHARED_RULES)
        if self.algorithm:
            rules[self.operation] = (Rule(MANY, MANY, Choice(self.algorithm)),)
        buffers: Any = [SimpleNamespace(nbytes=self.nbytes)]
        out_of = [lengths[rank]] * size
        into = lengths if self.operation == "all_to_all" else out_of
        opened = Opened(buffers, buffers, out_of, into)
        shape = GroupShape(rank, size, rules)
        return PLANS[self.operation](shape, self.fingerprint, opened, Sum())


def any_collective(draw: random.Random, size: int) -> Collective:
    """Draw a collective of ``size`` ranks."""
    operation = draw.choice(list(PLANS))
    if operation == "barrier":
        return Collective(operation)
    nbytes = draw.choice([SHORT, SHORT, PIECES, LONG])
    root = draw.randrange(size) if operation in ("broadcast", "reduce", "all_to_all") else -1
    algorithms = ["stripes", "chain"] + ["exchange"] * (size == 2)
    is_chosen = operation == "all_reduce" and nbytes == LONG
    return Collective(operation, nbytes, root, draw.choice(algorithms) if is_chosen else "")
