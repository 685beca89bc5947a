"""Reduce over several hosts.

``leaders``: the first rank of each host, the root in its own, reduces the host's data; the root reduces
what they have. ``stripes``: a host's ranks reduce a stripe each; the columns reduce their stripes to the
root's host, whose root copies them. Bytes between hosts: those of the reduce that is chosen there, of
N (``leaders``) or in each of c columns of N / c bytes.

Träff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication" (2020).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.layout import cut
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.spread import Hosts


async def reduce_leaders(hosts: Hosts, root: int, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    leaders = hosts.leaders(root)
    leader, rank = leaders[hosts.host], hosts.channel.rank
    result = data
    if rank == leader != root:  # its own data stays as it is
        result = hosts.scratch(len(data))
        result[:] = data
    await hosts.inside.reduce(hosts.number_of(leader), result, reduce)
    if (across := hosts.among(leaders)) is not None:
        home = hosts.places.host_of(root)
        choice = hosts.choice("reduce", len(data))
        await operations.reduce(across, home, result, reduce, hosts.scratch, choice)


async def reduce_stripes(hosts: Hosts, root: int, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    inside, home = hosts.inside, hosts.places.host_of(root)
    stripes = cut(data, reduce.itemsize, hosts.places.columns)
    stripes += [data[:0]] * (inside.size - len(stripes))
    mine = stripes[inside.rank]
    # Only the root's data changes, and only with the result.
    result = mine if hosts.channel.rank == root else hosts.scratch(len(mine))
    await inside.reduce_scatter(stripes, result, reduce)
    if hosts.crosses:
        choice = hosts.choice("reduce", len(mine))
        await operations.reduce(hosts.across, home, result, reduce, hosts.scratch, choice)
    if hosts.host == home:
        stripes[inside.rank] = result
        await inside.gather(hosts.number_of(root), stripes)
