"""What there is to choose from: over messages, in shared memory, and over several hosts."""

from __future__ import annotations

from aiodist.collectives import calls
from aiodist.collectives.calls import Barrier, Call
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.select import Choice
from aiodist.collectives.shm_choice import ALGORITHMS, why_not
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import GroupEngine
from aiodist.shm.group_area import LARGEST_SLOT_BYTES
from aiodist.simulate import algorithms_of
from aiodist.tensors import Reduction, scratch

ITEMSIZE = 4
"""Of float32, which is measured."""

CHUNKS = (64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)

PIECES = (512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20)
"""Bytes that a column may exchange at once."""


def candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks.

    A pipeline is in it once for each length of chunks that cuts the data differently.
    """
    found = []
    for algorithm in algorithms_of(operation):
        if not algorithm.is_for(ranks, nbytes):
            continue
        if not algorithm.has_chunks:
            found.append(Choice(algorithm.name))
            continue
        length = nbytes if algorithm.name == "chain" else nbytes // ranks
        found += [Choice(algorithm.name, chunk) for chunk in CHUNKS if chunk < length]
        found.append(Choice(algorithm.name, next((c for c in CHUNKS if c >= length), CHUNKS[-1])))
    return list(dict.fromkeys(found))


def call_on_zeros(operation: str, rank: int, ranks: int, nbytes: int, add: Reduction) -> Call:
    """Return ``operation`` on ``nbytes`` of this ``rank`` of ``ranks``, with root 0 if it has a root."""
    data = scratch(nbytes)
    data[:] = bytes(nbytes)
    length = nbytes // ranks // ITEMSIZE * ITEMSIZE
    blocks = [data[i * length : (i + 1) * length] for i in range(ranks)]
    match operation:
        case "broadcast":
            return calls.Broadcast(0, data)
        case "reduce":
            return calls.Reduce(0, data, add)
        case "all_reduce":
            return calls.AllReduce(data, add)
        case "all_gather":
            return calls.AllGather(blocks)
    return calls.ReduceScatter(blocks, blocks[rank], add)


def shared_candidates(operation: str, ranks: int, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) with ``ranks`` ranks."""
    return [
        Choice(name)
        for name in ALGORITHMS[operation]
        if not why_not(operation, name, ranks, nbytes, LARGEST_SLOT_BYTES)
    ]


async def shares(group: GroupEngine) -> bool:
    """Return whether all members share memory, the same on all of them. A collective."""

    async def body(context: CollectiveContext) -> bool:
        shm = context.shm
        if shm is None or shm.size != group.size:
            await Barrier().by_messages(context, scratch)
            return False
        await Barrier().in_memory(shm)
        return True

    return await group.collective(Fingerprint("barrier"), body, shares=True)


def hosts_candidates(operation: str, topology: HostTopology, nbytes: int) -> list[Choice]:
    """Every way to run ``operation`` on ``nbytes`` (as `select` counts them) over ``topology``.

    Of one that goes in pieces, each length that cuts the data differently. A choice that would run
    as if there were no hosts is left out.
    """
    found = []
    for known, name in INTER_HOST_RUNS:
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
    """Return why ``group`` does not use the table for several hosts; "" if it does."""
    if group.topology is not None:
        return ""
    rank_infos = {rank_info.rank: rank_info for rank_info in group.endpoint.rank_infos()}
    hosts = {rank_infos[rank].host_id for rank in group.ranks}
    if len(hosts) == 1:
        return "all ranks live on one host"
    if len(hosts) == group.size:
        return "each rank lives on a host of its own, where messages are all there is"
    return "there are ranks without shared memory, so that all go as if each had a host of its own"
