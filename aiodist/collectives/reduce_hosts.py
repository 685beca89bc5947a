"""Reduce over several hosts.

``leaders``: the first rank of each host, the root in its own, reduces the host's data; the root
reduces what they have. ``stripes``: a host's ranks reduce a stripe each; the columns reduce their
stripes to the root's host, whose root copies them: large data in pieces, of which one travels
between the hosts while the next is reduced inside (`pipeline`). Bytes between hosts: those of the
reduce that is chosen there, of N (``leaders``) or in each of c columns of N / c bytes.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import stripes_in_pieces
from aiodist.collectives.pipeline import ReusedScratch, in_pieces
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.copying import copy


async def reduce_leaders(
    hosts: MultiHostContext, root: int, data: memoryview, reduce: Reduction
) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    leaders = hosts.leaders(root)
    leader, rank = leaders[hosts.host], hosts.channel.rank
    result = data
    if rank == leader != root:  # its own data stays as it is
        result = hosts.scratch(len(data))
        copy(result, data)
    await hosts.intra_host.reduce(hosts.number_of(leader), result, reduce)
    if (across := hosts.among(leaders)) is not None:
        home = hosts.topology.host_of(root)
        choice = hosts.choice("reduce", len(data))
        await operations.reduce(across, home, result, reduce, hosts.scratch, choice)


async def reduce_stripes(
    hosts: MultiHostContext, root: int, data: memoryview, reduce: Reduction, piece: int
) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read.

    In pieces of about ``piece`` bytes a column.
    """
    intra_host, columns = hosts.intra_host, hosts.topology.columns
    home = hosts.topology.host_of(root)
    pieces = stripes_in_pieces(data, reduce.itemsize, columns, intra_host.size, piece)
    # Only the root's data changes, and only with the result.
    results = [stripes[intra_host.rank] for stripes in pieces]
    if hosts.channel.rank != root:
        results = [hosts.scratch(len(mine)) for mine in results]
    scratch = ReusedScratch(hosts.scratch)

    async def before(number: int) -> None:
        await intra_host.reduce_scatter(pieces[number], results[number], reduce)

    async def across(number: int) -> None:
        scratch.next_piece()
        result = results[number]
        choice = hosts.choice("reduce", len(result))
        await operations.reduce(hosts.across, home, result, reduce, scratch, choice)

    async def after(number: int) -> None:
        if hosts.host == home:
            stripes = pieces[number]
            stripes[intra_host.rank] = results[number]
            await intra_host.gather(hosts.number_of(root), stripes)

    await in_pieces(len(pieces), before, across if hosts.crosses else None, after)
