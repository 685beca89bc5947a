"""Which algorithm runs: a table of (operation, ranks, bytes, locality), as data, and its reader.

The facts in a key are equal on all ranks, so all ranks choose alike; nothing else may enter.
``nbytes`` is the data in a broadcast, reduce or all_reduce, and the total of all blocks in an
all_gather or reduce_scatter. In a gather, scatter or all_to_all it is `UNEVEN`, as no rank knows all
lengths: the algorithms for equal blocks (binomial, bruck) run only where a caller names them.
Rows are read from the top; the first that fits counts. A measured table has the same form: pass it
as ``rules``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from aiodist.collectives.partition import CHUNK

KIB = 1024
MIB = 1024 * KIB
MANY = 1 << 62
OVERSUBSCRIBED = "oversubscribed"
"""Ranks that have to share cores of their host; of several hosts: those of one host at least."""
PAIRS = "pairs"
"""Ranks on several hosts, some of which have one or two of them: `HostTopology.columns` is at most 2."""

UNEVEN = MANY
"""Stands for the bytes of blocks that are not known to be equal: beyond every small limit."""


class Choice(NamedTuple):
    """What to run. ``chunk``: bytes of one message, for algorithms that have pipelines."""

    algorithm: str
    chunk: int = CHUNK


class Rule(NamedTuple):
    """A row: fits from ``least`` up to ``ranks`` ranks and up to ``nbytes`` bytes, inclusive.

    ``power_of_two``: only such numbers of ranks. ``locality``: only ranks so placed, as `OVERSUBSCRIBED` or
    `PAIRS`, or any where None.
    """

    ranks: int
    nbytes: int
    choice: Choice
    power_of_two: bool = False
    locality: str | None = None
    least: int = 1


Rules = Mapping[str, Sequence[Rule]]

RULES: Rules = MappingProxyType(
    {
        "barrier": (Rule(MANY, MANY, Choice("dissemination")),),
        "broadcast": (
            Rule(2, MANY, Choice("binomial")),
            Rule(5, 16 * KIB, Choice("linear")),
            Rule(MANY, 64 * KIB, Choice("binomial")),
            Rule(8, 512 * KIB, Choice("binomial")),
            # Each message is a turn for another rank on the same core.
            Rule(8, 4 * MIB, Choice("binomial"), locality=OVERSUBSCRIBED),
            Rule(8, 16 * MIB, Choice("chain", 128 * KIB)),
            Rule(8, MANY, Choice("chain")),
            Rule(32, 1 * MIB, Choice("scatter_ring")),
            Rule(32, 16 * MIB, Choice("chain", 128 * KIB)),
            # Chains and rings have as many rounds as ranks, which a tree has not.
            Rule(64, 2 * MIB, Choice("binomial")),
            Rule(256, 8 * MIB, Choice("binomial")),
            Rule(256, 64 * MIB, Choice("scatter_ring")),
            Rule(1024, 32 * MIB, Choice("binomial")),
            Rule(1024, MANY, Choice("chain")),
            Rule(MANY, 64 * MIB, Choice("binomial")),
            Rule(MANY, MANY, Choice("chain")),
        ),
        "reduce": (
            Rule(MANY, 128 * KIB, Choice("binomial")),
            Rule(4, 16 * MIB, Choice("chain", 128 * KIB)),
            Rule(32, 1 * MIB, Choice("scatter_gather", 128 * KIB)),
            Rule(32, 16 * MIB, Choice("chain", 128 * KIB)),
            Rule(32, MANY, Choice("chain")),
            Rule(64, 2 * MIB, Choice("binomial")),
            Rule(256, 8 * MIB, Choice("binomial")),
            Rule(256, 16 * MIB, Choice("scatter_gather", 128 * KIB)),
            Rule(1024, 32 * MIB, Choice("binomial")),
            Rule(1024, MANY, Choice("chain")),
            Rule(MANY, 64 * MIB, Choice("binomial")),
            Rule(MANY, MANY, Choice("chain")),
        ),
        "all_reduce": (
            # Up to four ranks: measured over TCP and Unix sockets of one host. With two, doubling
            # sends no more than a ring, in one message; beyond, the longest chunks that go eagerly
            # do best.
            Rule(2, 1 * MIB, Choice("doubling")),
            Rule(2, MANY, Choice("ring", 1 * MIB)),
            Rule(4, 512 * KIB, Choice("doubling")),
            Rule(4, 4 * MIB, Choice("halving_doubling"), power_of_two=True),
            Rule(4, 4 * MIB, Choice("ring", 256 * KIB)),
            Rule(4, MANY, Choice("ring")),
            Rule(MANY, 64 * KIB, Choice("doubling")),
            Rule(MANY, 512 * KIB, Choice("halving_doubling")),
            Rule(8, 1 * MIB, Choice("ring", 64 * KIB)),
            Rule(8, 8 * MIB, Choice("ring", 128 * KIB)),
            Rule(8, MANY, Choice("ring")),
            # A ring has as many rounds as ranks: it pays from about 1 MiB a rank.
            Rule(16, 2 * MIB, Choice("halving_doubling")),
            Rule(16, 8 * MIB, Choice("ring", 128 * KIB)),
            Rule(16, MANY, Choice("ring")),
            Rule(64, 16 * MIB, Choice("halving_doubling")),
            Rule(64, MANY, Choice("ring")),
            Rule(256, 64 * MIB, Choice("halving_doubling")),
            Rule(256, MANY, Choice("ring")),
            Rule(1024, 256 * MIB, Choice("halving_doubling")),
            Rule(1024, MANY, Choice("ring")),
            Rule(MANY, MANY, Choice("halving_doubling")),
        ),
        "all_gather": (
            Rule(2, MANY, Choice("ring")),
            Rule(MANY, 32 * KIB, Choice("bruck")),
            Rule(8, 512 * KIB, Choice("doubling"), power_of_two=True),
            Rule(8, MANY, Choice("ring")),
            Rule(16, 256 * KIB, Choice("bruck")),
            Rule(64, 1 * MIB, Choice("bruck")),
            Rule(256, 4 * MIB, Choice("bruck")),
            Rule(1024, 16 * MIB, Choice("bruck")),
            Rule(1024, MANY, Choice("doubling"), power_of_two=True),
            Rule(1024, MANY, Choice("ring")),
            Rule(MANY, 64 * MIB, Choice("bruck")),
            Rule(MANY, MANY, Choice("doubling"), power_of_two=True),
            Rule(MANY, MANY, Choice("ring")),
        ),
        "gather": (Rule(MANY, MANY, Choice("linear")),),
        "scatter": (Rule(MANY, MANY, Choice("linear")),),
        "reduce_scatter": (
            Rule(2, 2 * MIB, Choice("pairwise")),
            Rule(2, MANY, Choice("ring", 1 * MIB)),
            Rule(4, 64 * KIB, Choice("pairwise")),
            Rule(MANY, 64 * KIB, Choice("halving"), power_of_two=True),
            Rule(MANY, 64 * KIB, Choice("pairwise")),
            Rule(8, 1 * MIB, Choice("ring", 64 * KIB)),
            Rule(16, 1 * MIB, Choice("halving"), power_of_two=True),
            Rule(64, 4 * MIB, Choice("halving"), power_of_two=True),
            Rule(256, 8 * MIB, Choice("halving"), power_of_two=True),
            Rule(1024, 32 * MIB, Choice("halving"), power_of_two=True),
            Rule(MANY, 1 * MIB, Choice("ring", 64 * KIB)),
            Rule(MANY, 8 * MIB, Choice("ring", 128 * KIB)),
            Rule(MANY, MANY, Choice("ring")),
        ),
        "all_to_all": (Rule(MANY, MANY, Choice("pairwise")),),
    }
)
"""Up to 8 ranks the rows come from measurements and a simulated clock (20 us a link, 2.5 GB/s, 20 us of
Python a message). Beyond, they come from `aiodist simulate` on its networks 10G and 100G.
"""

SHARED_RULES: Rules = MappingProxyType(
    {
        "barrier": (Rule(MANY, MANY, Choice("slots")),),
        "broadcast": (Rule(MANY, 1 * MIB, Choice("slots")), Rule(MANY, MANY, Choice("chunks"))),
        "reduce": (
            Rule(2, 1 * MIB, Choice("slots")),
            Rule(4, 512 * KIB, Choice("slots")),
            Rule(8, 128 * KIB, Choice("slots")),
            Rule(MANY, 8 * KIB, Choice("slots")),
            Rule(MANY, MANY, Choice("stripes")),
        ),
        "all_reduce": (
            Rule(2, 512 * KIB, Choice("slots")),
            Rule(2, MANY, Choice("exchange")),
            Rule(4, 256 * KIB, Choice("slots")),
            Rule(8, 128 * KIB, Choice("slots")),
            Rule(MANY, 8 * KIB, Choice("slots")),
            Rule(6, 4 * MIB, Choice("stripes")),
            Rule(6, MANY, Choice("chain"), locality=OVERSUBSCRIBED),
            Rule(MANY, MANY, Choice("stripes")),
        ),
        "all_gather": (
            Rule(2, 2 * MIB, Choice("slots")),
            Rule(4, 4 * MIB, Choice("slots")),
            Rule(MANY, 8 * MIB, Choice("slots")),
            Rule(MANY, MANY, Choice("chunks")),
        ),
        "gather": (Rule(MANY, MANY, Choice("slot_then_chunks")),),
        "scatter": (Rule(MANY, MANY, Choice("slot_then_chunks")),),
        "reduce_scatter": (
            Rule(MANY, 1 * MIB, Choice("slots")),
            Rule(MANY, MANY, Choice("chunks")),
        ),
        "all_to_all": (Rule(MANY, MANY, Choice("slot_then_chunks")),),
    }
)
"""For ranks that share memory. What goes into a slot is at most `ShmLayout.slot_bytes` long: of an
all_gather the longest block.

Where slots move the same bytes as one chunk they save a wait. Reducing in them, a rank reads all
others' data: from measurements on two cores, with less for more ranks, which may have a core each.
"""

PIECE = 2 * MIB
"""Over several hosts: what a column exchanges at once, while as much is worked at inside.

On the simulated clock a half or the double changes little; less sends small messages. An all_reduce takes
the double: 16 and 64 MiB took 0.80 to 0.98 of the time then, with eight ranks of four hosts on two cores.
"""

HOSTS_RULES: Rules = MappingProxyType(
    {
        "barrier": (Rule(MANY, MANY, Choice("leaders")),),
        "broadcast": (
            Rule(MANY, 64 * KIB, Choice("leaders")),
            # Two columns save little and send twice as many messages.
            Rule(8, 512 * KIB, Choice("leaders"), locality=PAIRS),
            Rule(8, 4 * MIB, Choice("leaders"), locality=OVERSUBSCRIBED),
            Rule(MANY, 512 * KIB, Choice("stripes", PIECE)),
            Rule(8, 8 * MIB, Choice("chain", 1 * MIB), locality=OVERSUBSCRIBED),
            Rule(32, 8 * MIB, Choice("chain", 256 * KIB)),
            Rule(32, 32 * MIB, Choice("chain", 1 * MIB)),
            Rule(32, MANY, Choice("chain", 2 * MIB), locality=OVERSUBSCRIBED),
            Rule(32, MANY, Choice("chain", 1 * MIB)),
            Rule(MANY, MANY, Choice("stripes", PIECE)),
        ),
        "reduce": (
            Rule(MANY, 16 * KIB, Choice("leaders")),
            Rule(MANY, MANY, Choice("stripes", PIECE)),
        ),
        "all_reduce": (
            Rule(MANY, 16 * KIB, Choice("leaders")),
            Rule(8, 1 * MIB, Choice("leaders"), locality=OVERSUBSCRIBED),
            Rule(MANY, MANY, Choice("stripes", 2 * PIECE)),
        ),
        "all_gather": (
            Rule(8, 1 * MIB, Choice("leaders"), locality=OVERSUBSCRIBED),
            Rule(MANY, 32 * KIB, Choice("leaders")),
            Rule(MANY, MANY, Choice("columns", PIECE)),
        ),
        "reduce_scatter": (
            Rule(8, 1 * MIB, Choice("leaders"), locality=OVERSUBSCRIBED),
            Rule(MANY, 32 * KIB, Choice("leaders")),
            Rule(MANY, MANY, Choice("columns", PIECE)),
        ),
    }
)
"""For ranks on several hosts, some of them together; "ranks" are hosts here. From `aiodist simulate
--per-host`, on its networks 10G and 100G."""


def select(
    operation: str, ranks: int, nbytes: int, locality: str | None = None, rules: Rules = RULES
) -> Choice:
    """The first row of ``operation`` that fits. Raises KeyError for an unknown operation.

    Raises LookupError where a table has no row for these facts.
    """
    for rule in rules[operation]:
        if (
            rule.least <= ranks <= rule.ranks
            and nbytes <= rule.nbytes
            and (rule.locality is None or rule.locality == locality)
            and not (rule.power_of_two and ranks & (ranks - 1))
        ):
            return rule.choice
    raise LookupError(f"the table has no {operation} for {ranks} ranks and {nbytes} bytes")
