"""Every collective over several hosts by its name: inside each host first, then between them.

The same arguments mean the same as in `operations`; a `MultiHostContext` stands in the place of the
`Channel`, and `select.HOSTS_RULES` is the table, but for all_to_all, which has one way. Operations
that are not here run flat, by `operations`, as if there were no hosts; so do "columns" where hosts
have different numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from aiodist.collectives import operations
from aiodist.collectives.all_gather_hosts import all_gather_columns, all_gather_leaders
from aiodist.collectives.all_reduce_hosts import all_reduce_leaders, all_reduce_stripes
from aiodist.collectives.all_to_all_hosts import all_to_all_direct
from aiodist.collectives.barrier_hosts import barrier_hosts
from aiodist.collectives.broadcast_hosts import (
    broadcast_chain,
    broadcast_leaders,
    broadcast_stripes,
)
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.reduce_hosts import reduce_leaders, reduce_stripes
from aiodist.collectives.reduce_scatter_hosts import reduce_scatter_columns, reduce_scatter_leaders
from aiodist.collectives.reduction_protocol import Reduction
from aiodist.collectives.select import HOSTS_RULES, PAIRS, Choice, Rules, select

Run = Coroutine[Any, Any, None]
Blocks = Sequence[memoryview]


def barrier(hosts: MultiHostContext) -> Run:
    """Return when all ranks have entered."""
    return barrier_hosts(hosts)


def broadcast(
    hosts: MultiHostContext, root: int, data: memoryview, rules: Rules = HOSTS_RULES
) -> Run:
    """Fill ``data`` on every rank with what ``root`` has in it."""
    name, piece = _choice("broadcast", hosts, len(data), rules)
    if name == "leaders":
        return broadcast_leaders(hosts, root, data)
    if name == "chain":
        return broadcast_chain(hosts, root, data, piece)
    return broadcast_stripes(hosts, root, data, piece)


def reduce(
    hosts: MultiHostContext, root: int, data: memoryview, op: Reduction, rules: Rules = HOSTS_RULES
) -> Run:
    """Reduce ``data`` over all ranks into ``root``'s, in place; the others' is only read."""
    name, piece = _choice("reduce", hosts, len(data), rules)
    if name == "leaders":
        return reduce_leaders(hosts, root, data, op)
    return reduce_stripes(hosts, root, data, op, piece)


def all_reduce(
    hosts: MultiHostContext, data: memoryview, op: Reduction, rules: Rules = HOSTS_RULES
) -> Run:
    """Reduce ``data`` over all ranks, in place; bitwise the same result everywhere."""
    name, piece = _choice("all_reduce", hosts, len(data), rules)
    if name == "leaders":
        return all_reduce_leaders(hosts, data, op)
    return all_reduce_stripes(hosts, data, op, piece)


def all_gather(hosts: MultiHostContext, blocks: Blocks, rules: Rules = HOSTS_RULES) -> Run:
    """Fill every ``blocks[r]`` with rank r's block; this rank's own is in place already."""
    nbytes = sum(map(len, blocks))
    name, piece = _choice("all_gather", hosts, nbytes, rules)
    if name == "leaders":
        return all_gather_leaders(hosts, blocks)
    if hosts.topology.is_even:
        return all_gather_columns(hosts, blocks, piece)
    choice = select("all_gather", len(blocks), nbytes, rules=hosts.rules)
    return operations.all_gather(hosts.channel, blocks, hosts.scratch, choice)


def reduce_scatter(
    hosts: MultiHostContext,
    blocks: Blocks,
    out: memoryview,
    op: Reduction,
    rules: Rules = HOSTS_RULES,
) -> Run:
    """Reduce ``blocks[rank]`` over all ranks into ``out``, which may be that very block."""
    nbytes = sum(map(len, blocks))
    name, piece = _choice("reduce_scatter", hosts, nbytes, rules)
    if name == "leaders":
        return reduce_scatter_leaders(hosts, blocks, out, op)
    if hosts.topology.is_even:
        return reduce_scatter_columns(hosts, blocks, out, op, piece)
    choice = select("reduce_scatter", len(blocks), nbytes, rules=hosts.rules)
    return operations.reduce_scatter(hosts.channel, blocks, out, op, hosts.scratch, choice)


def all_to_all(hosts: MultiHostContext, inputs: Blocks, outputs: Blocks) -> Run:
    """Send ``inputs[r]`` to each rank r and fill ``outputs[r]`` with what r has for this rank."""
    return all_to_all_direct(hosts, inputs, outputs)


def _choice(operation: str, hosts: MultiHostContext, nbytes: int, rules: Rules) -> Choice:
    locality = PAIRS if hosts.topology.columns <= 2 else None
    return select(operation, len(hosts.topology.hosts), nbytes, locality, rules)
