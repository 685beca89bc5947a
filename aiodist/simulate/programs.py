"""How to run each algorithm on a simulated rank, and which of them treat all ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from aiodist.collectives import calls
from aiodist.collectives.calls import Call, Run
from aiodist.collectives.partition import lengths_of_cut
from aiodist.collectives.select import Choice
from aiodist.simulate.network import Rank, Relation, apart, flipped, shifted

ITEMSIZE = 4
"""Bytes of an element: float32."""


class Algorithm(NamedTuple):
    """``relation``: how ranks stand to each other where all do the same (see `relation_for`).

    ``cube``: that holds for powers of two only; ``only_cube``: so does the algorithm.
    ``only_equal``: it is for blocks of one length.
    """

    operation: str
    name: str
    relation: Relation = apart
    cube: bool = False
    only_cube: bool = False
    only_equal: bool = False

    def relation_for(self, ranks: int, nbytes: int) -> Relation:
        """Return the relation that holds here: `apart` where some rank has more to do than another."""
        holds = _is_even(ranks, nbytes) and (not self.cube or _is_power(ranks))
        return self.relation if holds else apart

    @property
    def has_chunks(self) -> bool:
        """Whether the algorithm uses the ``chunk`` of a choice."""
        names = ("ring", "chain", "scatter_gather")
        return self.name in names and self.operation != "all_gather"

    def is_for(self, ranks: int, nbytes: int) -> bool:
        """Return whether the table may choose the algorithm for these ranks and bytes."""
        if self.only_equal and not _is_even(ranks, nbytes):
            return False
        return not self.only_cube or _is_power(ranks)


def _is_power(ranks: int) -> bool:
    return not ranks & (ranks - 1)


def _is_even(ranks: int, nbytes: int) -> bool:
    return nbytes % (ranks * ITEMSIZE) == 0


ALGORITHMS = (
    Algorithm("barrier", "dissemination", shifted),
    Algorithm("broadcast", "linear"),
    Algorithm("broadcast", "binomial"),
    Algorithm("broadcast", "chain"),
    Algorithm("broadcast", "scatter_ring"),
    Algorithm("reduce", "binomial"),
    Algorithm("reduce", "chain"),
    Algorithm("reduce", "scatter_gather"),
    Algorithm("all_reduce", "doubling", flipped, cube=True),
    Algorithm("all_reduce", "halving_doubling", flipped, cube=True),
    Algorithm("all_reduce", "ring", shifted),
    Algorithm("all_gather", "ring", shifted),
    Algorithm("all_gather", "doubling", flipped, cube=True, only_cube=True),
    Algorithm("all_gather", "bruck", shifted),
    Algorithm("gather", "linear"),
    Algorithm("gather", "binomial", only_equal=True),
    Algorithm("scatter", "linear"),
    Algorithm("scatter", "binomial", only_equal=True),
    Algorithm("reduce_scatter", "ring", shifted),
    Algorithm("reduce_scatter", "pairwise", shifted),
    Algorithm("reduce_scatter", "halving", flipped, cube=True, only_cube=True),
    Algorithm("all_to_all", "pairwise", shifted),
    Algorithm("all_to_all", "bruck", shifted, only_equal=True),
)


def lengths_of(operation: str, ranks: int, nbytes: int) -> list[int]:
    """Bytes of the blocks of ``nbytes``, by rank; of an operation without blocks, the data."""
    if operation in ("broadcast", "reduce", "all_reduce"):
        return [nbytes]
    return lengths_of_cut(nbytes, ITEMSIZE, ranks)


def program(operation: str, nbytes: int, choice: Choice) -> Callable[[Rank], Run]:
    """Return what a rank runs: `call_of` it, over messages by ``choice``."""
    return lambda rank: call_of(operation, rank, nbytes).by_messages(rank, rank.memory, choice)


def call_of(operation: str, rank: Rank, nbytes: int) -> Call:
    """Return ``operation`` of ``rank`` on ``nbytes`` in all, with root 0 if it has a root.

    For an all_to_all, ``nbytes`` is what one rank sends to all.
    """
    return _CALLS[operation](rank, nbytes)


def _blocks(rank: Rank, nbytes: int) -> list[memoryview]:
    return [rank.memory(length) for length in lengths_of("blocks", rank.size, nbytes)]


def _own(rank: Rank, nbytes: int) -> memoryview:
    length, longer = divmod(nbytes // ITEMSIZE, rank.size)
    return rank.memory((length + (rank.rank < longer)) * ITEMSIZE)


class CostOnly:
    """A `Reduction` that takes the time of one and does nothing else."""

    def __init__(self, itemsize: int, charge: Callable[[int], None]) -> None:
        self.itemsize = itemsize
        self._charge = charge

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        self._charge(len(acc))

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        self._charge(len(out))

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        return partial(self._charge, len(out))


def _reduction(rank: Rank) -> CostOnly:
    return CostOnly(ITEMSIZE, rank.work)


_CALLS: Mapping[str, Callable[[Rank, int], Call]] = MappingProxyType(
    {
        "barrier": lambda rank, nbytes: calls.Barrier(),
        "broadcast": lambda rank, nbytes: calls.Broadcast(0, rank.memory(nbytes)),
        "reduce": lambda rank, nbytes: calls.Reduce(0, rank.memory(nbytes), _reduction(rank)),
        "all_reduce": lambda rank, nbytes: calls.AllReduce(rank.memory(nbytes), _reduction(rank)),
        "all_gather": lambda rank, nbytes: calls.AllGather(_blocks(rank, nbytes)),
        "gather": lambda rank, nbytes: calls.Gather(
            0, _own(rank, nbytes), None if rank.rank else _blocks(rank, nbytes)
        ),
        "scatter": lambda rank, nbytes: calls.Scatter(
            0, None if rank.rank else _blocks(rank, nbytes), _own(rank, nbytes)
        ),
        "reduce_scatter": lambda rank, nbytes: calls.ReduceScatter(
            _blocks(rank, nbytes), _own(rank, nbytes), _reduction(rank)
        ),
        "all_to_all": lambda rank, nbytes: calls.AllToAll(
            _blocks(rank, nbytes), _blocks(rank, nbytes)
        ),
    }
)
