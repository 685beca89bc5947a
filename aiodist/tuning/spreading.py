"""What there is to choose from where ranks live on several hosts, some of them together."""

from __future__ import annotations

from aiodist.collectives.cost_hosts import CROSSINGS
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.select import Choice
from aiodist.groups.group_engine import GroupEngine

PIECES = (512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20)
"""Bytes that a column may exchange at once."""


def hosts_candidates(operation: str, topology: HostTopology, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) over ``topology``.

    Of one that goes in pieces, each length that cuts the data differently. What would run as if
    there were no hosts is none.
    """
    found = []
    for known, name in CROSSINGS:
        if known != operation or (name == "columns" and not topology.is_even):
            continue
        if name == "leaders":
            found.append(Choice(name))
            continue
        length = nbytes // topology.columns
        found += [Choice(name, piece) for piece in PIECES if piece < length]
        found.append(Choice(name, next((p for p in PIECES if p >= length), PIECES[-1])))
    return list(dict.fromkeys(found))


def why_not_spread(group: GroupEngine) -> str:
    """Why ``group`` has no use for the table for several hosts; empty where it has."""
    if group.topology is not None:
        return ""
    rank_infos = {rank_info.rank: rank_info for rank_info in group.endpoint.rank_infos()}
    hosts = {rank_infos[rank].host_id for rank in group.ranks}
    if len(hosts) == 1:
        return "all ranks live on one host"
    if len(hosts) == group.size:
        return "each rank lives on a host of its own, where messages are all there is"
    return "there are ranks without shared memory, so that all go as if each had a host of its own"
