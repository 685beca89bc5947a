"""All-reduce over several hosts: reduce inside each, all-reduce between them, share inside.

``stripes``: every host reduces, and each rank in a column is left with one stripe of the host's
result. The ranks of a column all-reduce their stripe between the hosts. The ranks of a host gather
the stripes. With c columns a rank sends c times less between hosts than a host has to, and all
ranks of a host send at once. Large data goes in pieces, of which one travels between the hosts
while the next is reduced inside (`pipeline`). ``leaders``: the first rank of each host takes part
for all. Fewer messages and fewer waits, for small data.

Bytes between hosts: those of the all-reduce that is chosen there, among as many ranks as there are
hosts, of each piece's share of N / c bytes (``leaders``: N, by the first rank of each host alone).
Inside: N / c reduced by each rank in a column, N copied. An element is reduced at one place in each
host, and between hosts as the chosen algorithm does: the bits are the same everywhere.

As MPI libraries have it for nodes of several cores: Träff and Hunold, "Decomposing MPI collectives
for exploiting multi-lane communication" (2020); leaders: Karonis et al., "Exploiting hierarchy in
parallel computer networks to optimize collective operation performance" (2000).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import stripes_in_pieces
from aiodist.collectives.pipeline import ReusedScratch, in_pieces
from aiodist.collectives.reduction_protocol import Reduction, Scratch


async def all_reduce_leaders(hosts: MultiHostContext, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks, in place."""
    await hosts.intra_host.reduce(0, data, reduce)
    if hosts.intra_host.rank == 0:
        await _across(hosts, data, reduce, hosts.scratch)
    await hosts.intra_host.broadcast(0, data)


async def all_reduce_stripes(
    hosts: MultiHostContext, data: memoryview, reduce: Reduction, piece: int
) -> None:
    """Reduce ``data`` over all ranks, in place, in pieces of about ``piece`` bytes a column."""
    intra_host, columns = hosts.intra_host, hosts.topology.columns
    pieces = stripes_in_pieces(data, reduce.itemsize, columns, intra_host.size, piece)
    scratch = ReusedScratch(hosts.scratch)

    async def before(number: int) -> None:
        stripes = pieces[number]
        await intra_host.reduce_scatter(stripes, stripes[intra_host.rank], reduce)

    async def across(number: int) -> None:
        scratch.next_piece()
        await _across(hosts, pieces[number][intra_host.rank], reduce, scratch)

    async def after(number: int) -> None:
        await intra_host.all_gather(pieces[number])

    await in_pieces(len(pieces), before, across if hosts.crosses else None, after)


async def _across(
    hosts: MultiHostContext, data: memoryview, reduce: Reduction, scratch: Scratch
) -> None:
    choice = hosts.choice("all_reduce", len(data))
    await operations.all_reduce(hosts.across, data, reduce, scratch, choice)
