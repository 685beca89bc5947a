"""What each algorithm costs: the table of docs/algorithms.md as exact figures.

Tests hold the algorithms to them, message by message and byte by byte. A model of a network can use
them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from aiodist.collectives.fold import Fold
from aiodist.collectives.partition import CHUNK, segments_of
from aiodist.collectives.tree import children, subtree_end


class Case(NamedTuple):
    """One rank's view of one operation.

    ``lengths``: bytes of the blocks by rank; of an all_to_all, those this rank sends; of a
    broadcast, reduce or all_reduce one entry, the data. ``itemsize``, ``chunk``: bytes.
    """

    ranks: int
    rank: int
    lengths: Sequence[int]
    root: int = 0
    itemsize: int = 1
    chunk: int = CHUNK

    @property
    def nbytes(self) -> int:
        """N: the data, or the total of the blocks."""
        return sum(self.lengths)

    @property
    def place(self) -> int:
        """This rank counted from the root."""
        return (self.rank - self.root) % self.ranks

    def share(self, part: int) -> int:
        """Bytes of block ``part`` where the data is cut into one block a rank."""
        length, longer = divmod(self.nbytes // self.itemsize, self.ranks)
        return (length + (part % self.ranks < longer)) * self.itemsize


class Traffic(NamedTuple):
    """What one rank sends: messages, and the bytes in them."""

    messages: int
    nbytes: int


def _log2_up(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _barrier(case: Case) -> Traffic:
    return Traffic(_log2_up(case.ranks), 0)


def _broadcast_linear(case: Case) -> Traffic:
    below = 0 if case.place else case.ranks - 1
    return Traffic(below, below * case.nbytes)


def _broadcast_binomial(case: Case) -> Traffic:
    below = len(children(case.place, case.ranks))
    return Traffic(below, below * case.nbytes)


def _broadcast_chain(case: Case) -> Traffic:
    if case.place == case.ranks - 1:
        return Traffic(0, 0)
    return Traffic(segments_of(case.nbytes, case.chunk), case.nbytes)


def _broadcast_scatter_ring(case: Case) -> Traffic:
    if case.place == case.ranks - 1:  # a leaf, and the ring ends before the root
        return Traffic(0, 0)
    below = children(case.place, case.ranks)
    end = subtree_end(case.place, case.ranks)
    scattered = sum(case.share(place) for place in range(case.place + 1, end))
    around = case.nbytes - case.share(case.place + 1)
    return Traffic(len(below) + case.ranks - 1, scattered + around)


def _reduce_binomial(case: Case) -> Traffic:
    return Traffic(1, case.nbytes) if case.place else Traffic(0, 0)


def _reduce_chain(case: Case) -> Traffic:
    if not case.place:
        return Traffic(0, 0)
    return Traffic(segments_of(case.nbytes, case.chunk), case.nbytes)


def _reduce_scatter_gather(case: Case) -> Traffic:
    own = case.share(case.rank)
    rounds = (case.ranks - 1) * segments_of(case.share(0), case.chunk)
    if not case.place:
        return Traffic(rounds, case.nbytes - own)
    return Traffic(rounds + 1, case.nbytes)


def _all_reduce_doubling(case: Case) -> Traffic:
    fold = Fold(case.rank, case.ranks)
    if fold.place < 0:
        return Traffic(1, case.nbytes)
    rounds = fold.places.bit_length() - 1 + (fold.place < case.ranks - fold.places)
    return Traffic(rounds, rounds * case.nbytes)


def _all_reduce_halving_doubling(case: Case) -> Traffic:
    fold = Fold(case.rank, case.ranks)
    if fold.place < 0:
        return Traffic(1, case.nbytes)
    rounds = fold.places.bit_length() - 1
    elements, kept_in_rounds = case.nbytes // case.itemsize, 0
    for k in range(rounds):
        elements = elements - elements // 2 if fold.place >> k & 1 else elements // 2
        kept_in_rounds += elements
    # Halving gives away all but what is left in the end; doubling sends what each round kept.
    given = case.nbytes - elements * case.itemsize
    returned = kept_in_rounds * case.itemsize
    folded = fold.place < case.ranks - fold.places
    return Traffic(2 * rounds + folded, given + returned + folded * case.nbytes)


def _all_reduce_ring(case: Case) -> Traffic:
    if case.ranks == 1:
        return Traffic(0, 0)
    segments = segments_of(case.share(0), case.chunk)
    nbytes = 2 * case.nbytes - case.share(case.rank) - case.share(case.rank + 1)
    return Traffic(2 * (case.ranks - 1) * segments, nbytes)


def _all_gather_ring(case: Case) -> Traffic:
    if case.ranks == 1:
        return Traffic(0, 0)
    return Traffic(case.ranks - 1, case.nbytes - case.lengths[(case.rank + 1) % case.ranks])


def _all_gather_doubling(case: Case) -> Traffic:
    runs = [(case.rank >> k << k, (case.rank >> k) + 1 << k) for k in range(_log2_up(case.ranks))]
    return Traffic(case.ranks - 1, sum(sum(case.lengths[start:end]) for start, end in runs))


def _all_gather_bruck(case: Case) -> Traffic:
    order = [*case.lengths[case.rank :], *case.lengths[: case.rank]]
    rounds = _log2_up(case.ranks)
    runs = [order[: min(1 << k, case.ranks - (1 << k))] for k in range(rounds)]
    return Traffic(rounds, sum(map(sum, runs)))


def _gather_linear(case: Case) -> Traffic:
    return Traffic(1, case.lengths[case.rank]) if case.place else Traffic(0, 0)


def _gather_binomial(case: Case) -> Traffic:
    if not case.place:
        return Traffic(0, 0)
    blocks = subtree_end(case.place, case.ranks) - case.place
    return Traffic(1, blocks * case.lengths[case.rank])


def _scatter_linear(case: Case) -> Traffic:
    if case.place:
        return Traffic(0, 0)
    return Traffic(case.ranks - 1, case.nbytes - case.lengths[case.rank])


def _scatter_binomial(case: Case) -> Traffic:
    blocks = subtree_end(case.place, case.ranks) - case.place - 1
    return Traffic(len(children(case.place, case.ranks)), blocks * case.lengths[case.rank])


def _reduce_scatter_ring(case: Case) -> Traffic:
    segments = segments_of(max(case.lengths), case.chunk)
    nbytes = case.nbytes - case.lengths[case.rank]
    return Traffic((case.ranks - 1) * segments, nbytes)


def _pairwise(case: Case) -> Traffic:
    return Traffic(case.ranks - 1, case.nbytes - case.lengths[case.rank])


def _reduce_scatter_halving(case: Case) -> Traffic:
    return Traffic(_log2_up(case.ranks), case.nbytes - case.lengths[case.rank])


def _all_to_all_bruck(case: Case) -> Traffic:
    blocks = sum(place.bit_count() for place in range(case.ranks))
    return Traffic(_log2_up(case.ranks), blocks * case.lengths[case.rank])


COSTS: Mapping[tuple[str, str], Callable[[Case], Traffic]] = MappingProxyType(
    {
        ("barrier", "dissemination"): _barrier,
        ("broadcast", "linear"): _broadcast_linear,
        ("broadcast", "binomial"): _broadcast_binomial,
        ("broadcast", "chain"): _broadcast_chain,
        ("broadcast", "scatter_ring"): _broadcast_scatter_ring,
        ("reduce", "binomial"): _reduce_binomial,
        ("reduce", "chain"): _reduce_chain,
        ("reduce", "scatter_gather"): _reduce_scatter_gather,
        ("all_reduce", "doubling"): _all_reduce_doubling,
        ("all_reduce", "halving_doubling"): _all_reduce_halving_doubling,
        ("all_reduce", "ring"): _all_reduce_ring,
        ("all_gather", "ring"): _all_gather_ring,
        ("all_gather", "doubling"): _all_gather_doubling,
        ("all_gather", "bruck"): _all_gather_bruck,
        ("gather", "linear"): _gather_linear,
        ("gather", "binomial"): _gather_binomial,
        ("scatter", "linear"): _scatter_linear,
        ("scatter", "binomial"): _scatter_binomial,
        ("reduce_scatter", "ring"): _reduce_scatter_ring,
        ("reduce_scatter", "pairwise"): _pairwise,
        ("reduce_scatter", "halving"): _reduce_scatter_halving,
        ("all_to_all", "pairwise"): _pairwise,
        ("all_to_all", "bruck"): _all_to_all_bruck,
    }
)
"""What a rank sends, by operation and algorithm."""
