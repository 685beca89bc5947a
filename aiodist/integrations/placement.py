"""Which rank each worker of an engine gets, and the variables that tell it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from aiodist.launch.environment import meeting_environment, rank_environment


class WorkerPlace(NamedTuple):
    """The rank that worker number ``worker`` gets, and its number on that worker's host."""

    worker: int
    rank: int
    local_rank: int
    local_size: int


def place_by_host(hosts: Sequence[str]) -> list[WorkerPlace]:
    """Return the places by rank. ``hosts``: the host of each worker.

    The ranks of a host follow each other, as algorithms over several hosts like it. Hosts and
    their workers keep the order in which they were first named.
    """
    order = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    sizes = Counter(hosts)
    workers = sorted(range(len(hosts)), key=lambda worker: order[hosts[worker]])
    seen: Counter[str] = Counter()
    places = []
    for rank, worker in enumerate(workers):
        host = hosts[worker]
        places.append(WorkerPlace(worker, rank, seen[host], sizes[host]))
        seen[host] += 1
    return places


def variables_of(place: WorkerPlace, size: int, address: str, port: int) -> dict[str, str]:
    """Return the variables of the rank at ``place`` in a job of ``size`` ranks."""
    return meeting_environment(address, port) | rank_environment(
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=size,
        local_world_size=place.local_size,
    )
