"""What each algorithm costs: the table of docs/algorithms.md, and the same as exact figures.

The words are for reading. Tests hold the algorithms to ``traffic``, message by message and byte by
byte. A model of a network can use it too.
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


class Cost(NamedTuple):
    """A row. n ranks, N bytes in all, b = N/n a block, S = segments, p the power of two up to n."""

    rounds: str
    messages: str
    nbytes: str
    traffic: Callable[[Case], Traffic]


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
    if case.ranks == 1:
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


COSTS: Mapping[tuple[str, str], Cost] = MappingProxyType(
    {
        ("barrier", "dissemination"): Cost("⌈log₂ n⌉", "⌈log₂ n⌉", "0", _barrier),
        ("broadcast", "linear"): Cost("1", "the root n-1", "the root (n-1)N", _broadcast_linear),
        ("broadcast", "binomial"): Cost(
            "⌈log₂ n⌉", "one a child", "N a child", _broadcast_binomial
        ),
        ("broadcast", "chain"): Cost("n-2+S", "S", "N", _broadcast_chain),
        ("broadcast", "scatter_ring"): Cost(
            "⌈log₂ n⌉ + n-1",
            "one a child, n-1",
            "N - b, and its subtree's blocks but its own",
            _broadcast_scatter_ring,
        ),
        ("reduce", "binomial"): Cost("⌈log₂ n⌉", "1; root 0", "N; root 0", _reduce_binomial),
        ("reduce", "chain"): Cost("n-2+S", "S; root 0", "N; root 0", _reduce_chain),
        ("reduce", "scatter_gather"): Cost(
            "n", "(n-1)·S + 1; root (n-1)·S", "N; root N - b", _reduce_scatter_gather
        ),
        ("all_reduce", "doubling"): Cost(
            "log₂ p, folded + 2", "log₂ p", "N·log₂ p", _all_reduce_doubling
        ),
        ("all_reduce", "halving_doubling"): Cost(
            "2·log₂ p, folded + 2", "2·log₂ p", "2·(p-1)/p·N", _all_reduce_halving_doubling
        ),
        ("all_reduce", "ring"): Cost("2·(n-1)", "2·(n-1)·S", "2·(n-1)/n·N", _all_reduce_ring),
        ("all_gather", "ring"): Cost("n-1", "n-1", "N - b", _all_gather_ring),
        ("all_gather", "doubling"): Cost("log₂ n", "n-1", "N - b", _all_gather_doubling),
        ("all_gather", "bruck"): Cost("⌈log₂ n⌉", "⌈log₂ n⌉", "N - b", _all_gather_bruck),
        ("gather", "linear"): Cost("1", "1; root 0", "b; root 0", _gather_linear),
        ("gather", "binomial"): Cost(
            "⌈log₂ n⌉", "1; root 0", "its subtree's blocks; root 0", _gather_binomial
        ),
        ("scatter", "linear"): Cost("1", "root n-1", "root N - b", _scatter_linear),
        ("scatter", "binomial"): Cost(
            "⌈log₂ n⌉", "one a child", "its subtree's blocks but its own", _scatter_binomial
        ),
        ("reduce_scatter", "ring"): Cost("n-1", "(n-1)·S", "N - b", _reduce_scatter_ring),
        ("reduce_scatter", "pairwise"): Cost("n-1", "n-1", "N - b", _pairwise),
        ("reduce_scatter", "halving"): Cost("log₂ n", "log₂ n", "N - b", _reduce_scatter_halving),
        ("all_to_all", "pairwise"): Cost("n-1", "n-1", "N - b", _pairwise),
        ("all_to_all", "bruck"): Cost(
            "⌈log₂ n⌉", "⌈log₂ n⌉", "about b·n/2·log₂ n", _all_to_all_bruck
        ),
    }
)
