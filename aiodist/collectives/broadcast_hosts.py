"""Broadcast over several hosts.

``leaders``: the root sends to the first ranks of the other hosts, and each of them lets its host copy.
``stripes``: the root's host copies the data; column by column its ranks send a stripe each to the other
hosts, whose ranks then copy each other's. Bytes between hosts: those of the broadcast that is chosen
there, of N (``leaders``) or in each of c columns of N / c bytes.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.layout import cut
from aiodist.collectives.spread import Hosts


async def broadcast_leaders(hosts: Hosts, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    leaders = hosts.leaders(root)
    if (across := hosts.among(leaders)) is not None:
        home = hosts.places.host_of(root)
        choice = hosts.choice("broadcast", len(data))
        await operations.broadcast(across, home, data, choice)
    await hosts.inside.broadcast(hosts.number_of(leaders[hosts.host]), data)


async def broadcast_stripes(hosts: Hosts, root: int, data: memoryview) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    inside, home = hosts.inside, hosts.places.host_of(root)
    if hosts.host == home:
        await inside.broadcast(hosts.number_of(root), data)
    stripes = cut(data, 1, hosts.places.columns)
    stripes += [data[:0]] * (inside.size - len(stripes))
    if hosts.crosses:
        mine = stripes[inside.rank]
        choice = hosts.choice("broadcast", len(mine))
        await operations.broadcast(hosts.across, home, mine, choice)
    if hosts.host != home:
        await inside.all_gather(stripes)
