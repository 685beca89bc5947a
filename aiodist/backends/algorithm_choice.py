"""aiodist's own ways to run a collective: by messages, in shared memory, or inside each host first."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.collectives.calls import Call, Run
from aiodist.collectives.channel import Channel
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.rule_tables import Tables
from aiodist.collectives.select import Rules, select
from aiodist.groups.contexts import CollectiveContext
from aiodist.tensors import scratch

Operations = Callable[[Channel, Call], Run]
"""Moves and reduces the bytes: aiodist's own algorithms, or another library's."""


class ByMessages:
    """An `Operations`: run each collective by the algorithm that a table names.

    ``rules`` are the same on all ranks. In a gather, scatter or all_to_all, ranks do not know the
    lengths of each other's blocks, so there is one algorithm.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def __call__(self, channel: Channel, call: Call, /) -> Run:
        nbytes = call.nbytes
        if nbytes is None:
            return call.by_messages(channel, scratch)
        choice = select(call.operation, channel.size, nbytes, rules=self._rules)
        return call.by_messages(channel, scratch, choice)


class AlgorithmChoice(ByMessages):
    """The `Operations` of aiodist's own engine. Ranks that share memory use it.

    Ranks on several hosts, some together, exchange inside their hosts first. ``tables`` are the
    same on all ranks.
    """

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables.messages)
        self._shared = tables.shared
        self._hosts = tables.hosts

    def __call__(self, channel: Channel, call: Call, /) -> Run:
        run: Run | None = None
        if isinstance(channel, CollectiveContext):
            shm, topology = channel.shm, channel.topology
            if topology is not None:
                among = MultiHostContext(channel, topology, shm, scratch, self._rules)
                run = call.over_hosts(among, self._hosts)
            elif shm is not None:
                return call.in_memory(shm, self._shared)
        return run or super().__call__(channel, call)
