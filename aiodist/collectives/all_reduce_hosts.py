"""All-reduce over several hosts: reduce inside each, all-reduce between them, share inside.

``stripes``: every host reduces, and each rank in a column is left with one stripe of the host's
result; the ranks of a column all-reduce their stripe between the hosts; the ranks of a host
gather the stripes. With c columns a rank sends c times less between hosts than a host has to, and all
ranks of a host send at once. ``leaders``: the first rank of each host takes part for all. Fewer
messages and fewer waits, for small data.

Bytes between hosts: those of the all-reduce that is chosen there, among as many ranks as there are
hosts, of N / c bytes (``leaders``: N, by the first rank of each host alone). Inside: N / c reduced
by each rank in a column, N copied. An element is reduced at one place in each host, and between hosts
as the chosen algorithm does: the bits are the same everywhere.

As MPI libraries have it for nodes of several cores: Träff and Hunold, "Decomposing MPI collectives
for exploiting multi-lane communication" (2020); leaders: Karonis et al., "Exploiting hierarchy in
parallel computer networks to optimize collective operation performance" (2000).
"""

from __future__ import annotations

from aiodist.collectives import operations
from aiodist.collectives.layout import cut
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.spread import Hosts


async def all_reduce_leaders(hosts: Hosts, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks, in place."""
    await hosts.inside.reduce(0, data, reduce)
    if hosts.inside.rank == 0:
        await _across(hosts, data, reduce)
    await hosts.inside.broadcast(0, data)


async def all_reduce_stripes(hosts: Hosts, data: memoryview, reduce: Reduction) -> None:
    """Reduce ``data`` over all ranks, in place."""
    inside = hosts.inside
    stripes = cut(data, reduce.itemsize, hosts.places.columns)
    stripes += [data[:0]] * (inside.size - len(stripes))
    mine = stripes[inside.rank]
    await inside.reduce_scatter(stripes, mine, reduce)
    if hosts.crosses:
        await _across(hosts, mine, reduce)
    await inside.all_gather(stripes)


async def _across(hosts: Hosts, data: memoryview, reduce: Reduction) -> None:
    choice = hosts.choice("all_reduce", len(data))
    await operations.all_reduce(hosts.across, data, reduce, hosts.scratch, choice)
