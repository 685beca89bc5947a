"""Reduce-scatter over several hosts. All ranks know all lengths, which may differ.

``leaders``: the first rank of each host reduces its host's data. It reduces and scatters that with
the other leaders, one block a host. The ranks of the host copy their own parts of the block. For
small data. ``columns``: the ranks of a host reduce, for each host, the blocks of their own columns
there; the ranks of a column reduce and scatter those between the hosts. Large blocks go in pieces,
of which one travels between the hosts while the next is reduced inside (`pipeline`). For hosts with
equally many ranks.

Bytes between hosts: those of the reduce-scatter that is chosen there, of N in one block a host
(``leaders``), or in each column of its own blocks, about N / c.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from aiodist.collectives import operations
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import cut, offsets_of, segments_of
from aiodist.collectives.pipeline import ReusedScratch, in_pieces
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.copying import copy


async def reduce_scatter_leaders(
    hosts: MultiHostContext, blocks: Sequence[memoryview], out: memoryview, reduce: Reduction
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    intra_host, topology = hosts.intra_host, hosts.topology
    order = [rank for ranks in topology.hosts for rank in ranks]
    starts = offsets_of([len(blocks[rank]) for rank in order])
    memory = hosts.scratch(starts[-1])
    for rank, start in zip(order, starts, strict=False):
        memory[start : start + len(blocks[rank])] = blocks[rank]
    await intra_host.reduce(0, memory, reduce)
    ends = offsets_of([sum(len(blocks[rank]) for rank in ranks) for ranks in topology.hosts])
    pieces = [memory[a:b] for a, b in pairwise(ends)]
    mine = pieces[hosts.host]
    if intra_host.rank == 0:
        choice = hosts.choice("reduce_scatter", len(memory))
        across = hosts.across
        await operations.reduce_scatter(across, pieces, mine, reduce, hosts.scratch, choice)
    await intra_host.broadcast(0, mine)
    start = starts[order.index(hosts.channel.rank)] - ends[hosts.host]
    copy(out, mine[start : start + len(out)])


async def reduce_scatter_columns(
    hosts: MultiHostContext,
    blocks: Sequence[memoryview],
    out: memoryview,
    reduce: Reduction,
    piece: int,
) -> None:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block.

    In pieces of about ``piece`` bytes a column, of all blocks together.
    """
    intra_host, topology = hosts.intra_host, hosts.topology
    count = segments_of(sum(map(len, blocks)), piece * topology.columns)
    parts = [cut(block, reduce.itemsize, count) for block in blocks]
    outs = cut(out, reduce.itemsize, count)
    column = topology.column(intra_host.rank)
    results = [[hosts.scratch(len(part)) for part in parts[rank]] for rank in column]
    scratch = ReusedScratch(hosts.scratch)

    async def before(number: int) -> None:
        for host, ranks in enumerate(topology.hosts):
            stripes = [parts[rank][number] for rank in ranks]
            await intra_host.reduce_scatter(stripes, results[host][number], reduce)

    async def across(number: int) -> None:
        scratch.next_piece()
        mine = [result[number] for result in results]
        choice = hosts.choice("reduce_scatter", sum(map(len, mine)))
        await operations.reduce_scatter(hosts.across, mine, outs[number], reduce, scratch, choice)

    async def after(number: int) -> None:
        """All that a rank wants is there."""

    await in_pieces(count, before, across, after)
