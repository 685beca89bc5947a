"""Broadcast over several hosts.

``leaders``: the root sends to the first ranks of the other hosts, and each of them lets its host copy.
``stripes``: the root's host copies the data; column by column its ranks send a stripe each to the other
hosts, whose ranks then copy each other's: large data in pieces, of which one travels between the hosts
while others are copied inside (`pipeline`). Bytes between hosts: those of the broadcast that is chosen
there, of N (``leaders``) or in each of c columns of N / c bytes.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import cut, stripes_in_pieces
from aiodist.collectives.pipeline import in_pieces


async def broadcast_leaders(hosts: MultiHostContext, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    leaders = hosts.leaders(root)
    if (across := hosts.among(leaders)) is not None:
        home = hosts.topology.host_of(root)
        choice = hosts.choice("broadcast", len(data))
        await operations.broadcast(across, home, data, choice)
    await hosts.intra_host.broadcast(hosts.number_of(leaders[hosts.host]), data)


async def broadcast_stripes(
    hosts: MultiHostContext, root: int, data: memoryview, piece: int
) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it.

    In pieces of about ``piece`` bytes a column.
    """
    intra_host, columns = hosts.intra_host, hosts.topology.columns
    home = hosts.topology.host_of(root)
    is_home = hosts.host == home
    pieces = stripes_in_pieces(data, 1, columns, intra_host.size, piece)
    parts = cut(data, 1, len(pieces))

    async def before(number: int) -> None:
        if is_home:
            await intra_host.broadcast(hosts.number_of(root), parts[number])

    async def across(number: int) -> None:
        mine = pieces[number][intra_host.rank]
        choice = hosts.choice("broadcast", len(mine))
        await operations.broadcast(hosts.across, home, mine, choice)

    async def after(number: int) -> None:
        if not is_home:
            await intra_host.all_gather(pieces[number])

    await in_pieces(len(pieces), before, across if hosts.crosses else None, after)
