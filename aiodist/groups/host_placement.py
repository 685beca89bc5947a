"""Which members of a group share memory, and whether the group lives on several hosts.

Every rank has the rank infos of all, so all ranks of a group come to the same answer without a word.
Which ranks of a host have indeed mapped each other's memory, the communicator finds out later, for the
host alone: the ranks of other hosts need not know how those exchange among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodist.collectives.host_topology import HostTopology
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.links.host import have_cores
from aiodist.p2p.endpoint import Endpoint

if TYPE_CHECKING:
    from aiodist.groups.group_engine import GroupEngine


def place(group: GroupEngine, endpoint: Endpoint, incarnation: int) -> None:
    """Give ``group`` the communicator of this rank's host, and its places, where there are such.

    Members without any shared memory to offer make the whole group go flat, over streams.
    """
    memory = endpoint.memory
    rank_infos = {rank_info.rank: rank_info for rank_info in endpoint.rank_infos()}
    members = [rank_infos[rank] for rank in group.ranks]
    if memory is None or not all(rank_info.segment for rank_info in members):
        return
    cores: dict[str, list[frozenset[int]]] = {}
    for rank_info in members:
        cores.setdefault(rank_info.host_id, []).append(rank_info.cores)
    oversubscribed = not all(map(have_cores, cores.values()))
    topology = HostTopology(
        [rank_info.host_id for rank_info in members], oversubscribed=oversubscribed
    )
    if len(topology.hosts) == 1:
        group.communicator = ShmCommunicator(group, memory, incarnation)
    elif len(topology.hosts) < len(members):
        group.topology = topology
        here = topology.hosts[topology.host_of(group.rank)]
        if len(here) > 1:
            group.communicator = ShmCommunicator(group, memory, incarnation, here)
