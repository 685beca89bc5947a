"""Which rank each worker of an engine gets, the variables that tell it so, and the call of its function."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import aiodist.sync as sync
from aiodist.api.available import is_initialized
from aiodist.api.closing import destroy_process_group
from aiodist.launch.environment import meeting_environment, rank_environment
from aiodist.launch.rank_function import call_as_rank


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


def call_and_leave(
    fn: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]
) -> Any:
    """Return what ``fn(*args)`` returns; see `call_as_rank`.

    The groups that ``fn`` leaves behind are destroyed, however it ends: the other ranks learn of it
    at once, and the process can carry another rank afterwards.
    """

    def call(*args: Any) -> Any:
        result = fn(*args)
        return _await_and_leave(result) if inspect.iscoroutine(result) else result

    try:
        return call_as_rank(call, args, variables)
    finally:
        if sync.is_initialized():
            sync.destroy_process_group()


async def _await_and_leave(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    finally:
        if is_initialized():
            await destroy_process_group()
