"""All-gather over several hosts. All ranks know all lengths, which may differ.

``leaders``: the first rank of each host collects its host's blocks, all-gathers them with the other
hosts' as one block a host, and its host copies everything. For small data: few messages.
``columns``: the ranks of a host gather each other's blocks. The ranks of a column all-gather theirs
between the hosts. Then the ranks of a host copy the received blocks from each other, host by host,
all in place. Large blocks go in pieces, of which one travels between the hosts while others are
copied inside (`pipeline`). For hosts with equally many ranks.

Bytes between hosts: those of the all-gather that is chosen there, of N in one block a host
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
from aiodist.copying import copy


async def all_gather_leaders(hosts: MultiHostContext, blocks: Sequence[memoryview]) -> None:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already."""
    intra_host, topology = hosts.intra_host, hosts.topology
    order = [rank for ranks in topology.hosts for rank in ranks]
    starts = offsets_of([len(blocks[rank]) for rank in order])
    memory = hosts.scratch(starts[-1])
    spots = {rank: memory[a:b] for rank, (a, b) in zip(order, pairwise(starts), strict=True)}
    here = topology.hosts[hosts.host]
    await intra_host.gather(0, [blocks[rank] for rank in here])
    if intra_host.rank == 0:
        for rank in here:
            copy(spots[rank], blocks[rank])
        ends = offsets_of([sum(len(blocks[rank]) for rank in ranks) for ranks in topology.hosts])
        pieces = [memory[a:b] for a, b in pairwise(ends)]
        choice = hosts.choice("all_gather", len(memory))
        await operations.all_gather(hosts.across, pieces, hosts.scratch, choice)
    await intra_host.broadcast(0, memory)
    for rank, spot in spots.items():
        if rank != hosts.channel.rank:
            copy(blocks[rank], spot)


async def all_gather_columns(
    hosts: MultiHostContext, blocks: Sequence[memoryview], piece: int
) -> None:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already.

    In pieces of about ``piece`` bytes a column, of all blocks together.
    """
    intra_host, topology = hosts.intra_host, hosts.topology
    count = segments_of(sum(map(len, blocks)), piece * topology.columns)
    parts = [cut(block, 1, count) for block in blocks]
    scratch = ReusedScratch(hosts.scratch)

    async def before(number: int) -> None:
        await intra_host.all_gather([parts[rank][number] for rank in topology.hosts[hosts.host]])

    async def across(number: int) -> None:
        scratch.next_piece()
        column = [parts[rank][number] for rank in topology.column(intra_host.rank)]
        choice = hosts.choice("all_gather", sum(map(len, column)))
        await operations.all_gather(hosts.across, column, scratch, choice)

    async def after(number: int) -> None:
        for host, ranks in enumerate(topology.hosts):
            if host != hosts.host:
                await intra_host.all_gather([parts[rank][number] for rank in ranks])

    await in_pieces(count, before, across, after)
