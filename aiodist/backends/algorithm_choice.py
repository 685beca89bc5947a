"""aiodist's own ways to run a collective: by messages, in shared memory, or inside each host first."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.collectives.calls import Call, Run
from aiodist.collectives.channel import Channel
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.rule_tables import Tables
from aiodist.collectives.select import select
from aiodist.groups.contexts import CollectiveContext
from aiodist.tensors import scratch

Operations = Callable[[Channel, Call], Run]
"""Moves and reduces the bytes: aiodist's own algorithms, or another library's."""


class AlgorithmChoice:
    """The `Operations` of aiodist's own engine: run each collective by the algorithm that a table names.

    Ranks that share memory use it. Ranks on several hosts, some together, exchange inside their hosts
    first. ``tables`` are the same on all ranks.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def __call__(self, channel: Channel, call: Call, /) -> Run:
        tables, run = self._tables, None
        if isinstance(channel, CollectiveContext):
            shm, topology = channel.shm, channel.topology
            if topology is not None:
                among = MultiHostContext(channel, topology, shm, scratch, tables.messages)
                run = call.over_hosts(among, tables.hosts)
            elif shm is not None:
                run = call.in_memory(shm, tables.shared)
        if run is not None:
            return run
        nbytes = call.nbytes
        if nbytes is None:  # the ranks know their own blocks alone, so there is one algorithm
            return call.by_messages(channel, scratch)
        choice = select(call.operation, channel.size, nbytes, rules=tables.messages)
        return call.by_messages(channel, scratch, choice)
