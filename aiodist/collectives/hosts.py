"""Every collective over several hosts by its name: inside each host first, then between them.

The same arguments mean the same as in `operations`; a `Hosts` stands in the place of the `Channel`,
and `select.HOSTS_RULES` is the table. Where it says "flat", and for operations that are not here,
the algorithms of `operations` run among all ranks as if there were no hosts.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from aiodist.collectives import operations
from aiodist.collectives.all_reduce_hosts import all_reduce_leaders, all_reduce_stripes
from aiodist.collectives.barrier_hosts import barrier_hosts
from aiodist.collectives.reduction import Reduction
from aiodist.collectives.select import HOSTS_RULES, Rules, select
from aiodist.collectives.spread import Hosts

Run = Coroutine[Any, Any, None]


def barrier(hosts: Hosts) -> Run:
    """Return when all ranks have entered."""
    return barrier_hosts(hosts)


def all_reduce(hosts: Hosts, data: memoryview, op: Reduction, rules: Rules = HOSTS_RULES) -> Run:
    """Reduce ``data`` over all ranks, in place; bitwise the same result everywhere."""
    name = _choice("all_reduce", hosts, len(data), rules)
    if name == "leaders":
        return all_reduce_leaders(hosts, data, op)
    if name == "stripes":
        return all_reduce_stripes(hosts, data, op)
    choice = select("all_reduce", hosts.channel.size, len(data), rules=hosts.rules)
    return operations.all_reduce(hosts.channel, data, op, hosts.scratch, choice)


def _choice(operation: str, hosts: Hosts, nbytes: int, rules: Rules) -> str:
    return select(operation, len(hosts.places.hosts), nbytes, rules=rules).algorithm
