"""Broadcast over several hosts.

``leaders``: the root sends to the first ranks of the other hosts, and each of them lets its host copy.
``stripes``: the root's host copies the data; column by column its ranks send a stripe each to the other
hosts, whose ranks then copy each other's: large data in pieces, of which one travels between the hosts
while others are copied inside (`pipeline`). Bytes between hosts: those of the broadcast that is chosen
there, of N (``leaders``) or in each of c columns of N / c bytes.
``chain``: as ``stripes``, and the hosts form a chain, along which each piece travels as one message. The
receives of several pieces are posted ahead, so all of them arrive in place. Bytes: N / c a column.
Best for few hosts: a message a piece is little work, also where ranks share cores.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.partition import WINDOW, cut, stripes_in_pieces
from aiodist.collectives.pipeline import Step, in_pieces
from aiodist.completion import Pending


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
    home = hosts.topology.host_of(root)
    pieces = _pieces(hosts, data, piece)

    async def across(number: int) -> None:
        mine = pieces[number][hosts.intra_host.rank]
        choice = hosts.choice("broadcast", len(mine))
        await operations.broadcast(hosts.across, home, mine, choice)

    await _in_stripes(hosts, root, data, pieces, across)


async def broadcast_chain(hosts: MultiHostContext, root: int, data: memoryview, piece: int) -> None:
    """Fill ``data`` on every rank with what ``root`` has in it.

    In pieces of about ``piece`` bytes a column, one message each.
    """
    pieces = _pieces(hosts, data, piece)
    if not hosts.crosses:
        await _in_stripes(hosts, root, data, pieces, None)
        return
    intra_host, channel, size = hosts.intra_host, hosts.across, len(hosts.topology.hosts)
    place = (channel.rank - hosts.topology.host_of(root)) % size
    parts = [] if place else cut(data, 1, len(pieces))
    before, after = (channel.rank - 1) % size, (channel.rank + 1) % size
    mine = [stripes[intra_host.rank] for stripes in pieces]
    receives: list[Pending[None]] = []
    sends: list[Pending[None]] = []
    for number, stripe in enumerate(mine):
        if place:
            ahead = mine[len(receives) : number + 1 + WINDOW]
            receives.extend(channel.recv(before, later) for later in ahead)
            await receives[number]
        else:
            await intra_host.broadcast(hosts.number_of(root), parts[number])
        if place < size - 1:  # the piece leaves before this rank works at it
            if number >= WINDOW:  # the root would otherwise queue all of its data at once
                await sends[number - WINDOW]
            sends.append(channel.send(after, stripe))
        if place:
            await intra_host.all_gather(pieces[number])
    for sent in sends[-WINDOW:]:
        await sent


def _pieces(hosts: MultiHostContext, data: memoryview, piece: int) -> list[list[memoryview]]:
    return stripes_in_pieces(data, 1, hosts.topology.columns, hosts.intra_host.size, piece)


async def _in_stripes(
    hosts: MultiHostContext,
    root: int,
    data: memoryview,
    pieces: list[list[memoryview]],
    across: Step | None,
) -> None:
    """Broadcast by columns: ``across`` brings this rank's stripe of a piece to the other hosts."""
    intra_host = hosts.intra_host
    is_home = hosts.host == hosts.topology.host_of(root)
    parts = cut(data, 1, len(pieces))

    async def before(number: int) -> None:
        if is_home:
            await intra_host.broadcast(hosts.number_of(root), parts[number])

    async def after(number: int) -> None:
        if not is_home:
            await intra_host.all_gather(pieces[number])

    await in_pieces(len(pieces), before, across if hosts.crosses else None, after)
