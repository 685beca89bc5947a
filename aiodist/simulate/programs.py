"""How to run each algorithm on a simulated rank, and which of them treat all ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import MappingProxyType
from typing import Any, NamedTuple

from aiodist.collectives import operations
from aiodist.collectives.select import Choice
from aiodist.simulate.extent import CostOnly
from aiodist.simulate.network import Rank, Relation, apart, flipped, shifted

ITEMSIZE = 4
"""Bytes of an element: float32."""

Run = Coroutine[Any, Any, None]


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
        """The one that holds for these: `apart` where some rank has more to do than another."""
        holds = _is_even(ranks, nbytes) and (not self.cube or _is_power(ranks))
        return self.relation if holds else apart

    @property
    def has_chunks(self) -> bool:
        """Whether the choice's ``chunk`` means something to it."""
        names = ("ring", "chain", "scatter_gather")
        return self.name in names and self.operation != "all_gather"

    def is_for(self, ranks: int, nbytes: int) -> bool:
        """Whether the table may choose it for these."""
        if self.only_equal and not _is_even(ranks, nbytes):
            return False
        return not self.only_cube or _is_power(ranks)


def _is_power(ranks: int) -> bool:
    return not ranks & (ranks - 1)


def _is_even(ranks: int, nbytes: int) -> bool:
    return nbytes % (ranks * ITEMSIZE) == 0


ALGORITHMS = (
    Algorithm("barrier", "dissemination", shifted),
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
    length, longer = divmod(nbytes // ITEMSIZE, ranks)
    return [(length + (rank < longer)) * ITEMSIZE for rank in range(ranks)]


def program(operation: str, nbytes: int, choice: Choice) -> Callable[[Rank], Run]:
    """Return what a rank runs: ``operation`` on ``nbytes`` in all, with root 0 if it has a root.

    For an all_to_all, ``nbytes`` is what one rank sends to all.
    """
    build = _PROGRAMS[operation]
    return lambda rank: build(rank, nbytes, choice)


def _blocks(rank: Rank, nbytes: int) -> list[memoryview]:
    return [rank.memory(length) for length in lengths_of("blocks", rank.size, nbytes)]


def _own(rank: Rank, nbytes: int) -> memoryview:
    length, longer = divmod(nbytes // ITEMSIZE, rank.size)
    return rank.memory((length + (rank.rank < longer)) * ITEMSIZE)


def _reduction(rank: Rank) -> CostOnly:
    return CostOnly(ITEMSIZE, rank.work)


def _barrier(rank: Rank, nbytes: int, choice: Choice) -> Run:
    return operations.barrier(rank, choice)


def _broadcast(rank: Rank, nbytes: int, choice: Choice) -> Run:
    return operations.broadcast(rank, 0, rank.memory(nbytes), choice)


def _reduce(rank: Rank, nbytes: int, choice: Choice) -> Run:
    data, op = rank.memory(nbytes), _reduction(rank)
    return operations.reduce(rank, 0, data, op, rank.memory, choice)


def _all_reduce(rank: Rank, nbytes: int, choice: Choice) -> Run:
    data, op = rank.memory(nbytes), _reduction(rank)
    return operations.all_reduce(rank, data, op, rank.memory, choice)


def _all_gather(rank: Rank, nbytes: int, choice: Choice) -> Run:
    return operations.all_gather(rank, _blocks(rank, nbytes), rank.memory, choice)


def _gather(rank: Rank, nbytes: int, choice: Choice) -> Run:
    places = None if rank.rank else _blocks(rank, nbytes)
    return operations.gather(rank, 0, _own(rank, nbytes), places, rank.memory, choice)


def _scatter(rank: Rank, nbytes: int, choice: Choice) -> Run:
    sources = None if rank.rank else _blocks(rank, nbytes)
    return operations.scatter(rank, 0, sources, _own(rank, nbytes), rank.memory, choice)


def _reduce_scatter(rank: Rank, nbytes: int, choice: Choice) -> Run:
    blocks, op = _blocks(rank, nbytes), _reduction(rank)
    return operations.reduce_scatter(rank, blocks, blocks[rank.rank], op, rank.memory, choice)


def _all_to_all(rank: Rank, nbytes: int, choice: Choice) -> Run:
    inputs, outputs = _blocks(rank, nbytes), _blocks(rank, nbytes)
    return operations.all_to_all(rank, inputs, outputs, rank.memory, choice)


_PROGRAMS = MappingProxyType(
    {
        "barrier": _barrier,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "gather": _gather,
        "scatter": _scatter,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
    }
)
