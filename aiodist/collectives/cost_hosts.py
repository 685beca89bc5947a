"""What each algorithm over several hosts sends between them: the table of docs/algorithms.md, exactly.

Between hosts an operation is one of `operations`, among as many ranks as there are hosts, in one
column or in all, for each of its pieces. So its cost is that of `cost.COSTS` there. What moves
inside a host is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from aiodist.collectives.cost import COSTS, Case, Traffic
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.partition import lengths_of_cut, segments_of
from aiodist.collectives.select import MANY, RULES, Choice, Rules, select


class HostsCase(NamedTuple):
    """One rank's view of one operation; ``lengths``, ``root``, ``itemsize`` as in `cost.Case`."""

    topology: HostTopology
    rank: int
    lengths: Sequence[int]
    root: int = 0
    itemsize: int = 1
    rules: Rules = RULES
    piece: int = MANY
    """Bytes that a column exchanges at once, where an algorithm goes in pieces."""


class InterHostRun(NamedTuple):
    """What one algorithm runs between the hosts."""

    lengths: Callable[[HostsCase, int], list[int]]
    """(case, column) -> lengths of what runs between the hosts in that column."""
    choice: Choice | None = None
    """The algorithm there, where the table for messages does not choose it."""


def inter_host_traffic(operation: str, algorithm: str, case: HostsCase) -> Traffic:
    """What one rank sends to other hosts. Raises KeyError for an unknown algorithm."""
    topology, rank = case.topology, case.rank
    host, home = topology.host_of(rank), topology.host_of(case.root)
    leaders = [ranks[0] for ranks in topology.hosts]
    if operation in ("broadcast", "reduce"):
        leaders[home] = case.root
    if algorithm == "leaders":
        column = 0 if rank == leaders[host] else topology.columns
    else:
        column = topology.hosts[host].index(rank)
    if column >= (1 if algorithm == "leaders" else topology.columns):
        return Traffic(0, 0)
    hosts, messages, nbytes = len(topology.hosts), 0, 0
    for part in _pieces(operation, algorithm, case):
        row = INTER_HOST_RUNS[operation, algorithm]
        lengths = row.lengths(part, column)
        choice = row.choice or select(operation, hosts, sum(lengths), rules=case.rules)
        there = Case(hosts, host, lengths, home, case.itemsize, choice.chunk)
        traffic = COSTS[operation, choice.algorithm](there)
        messages += traffic.messages
        nbytes += traffic.nbytes
    return Traffic(messages, nbytes)


def _pieces(operation: str, algorithm: str, case: HostsCase) -> list[HostsCase]:
    """The same operation on each of its pieces."""
    if algorithm == "leaders":
        return [case]
    count = segments_of(sum(case.lengths), case.piece * case.topology.columns)
    itemsize = case.itemsize if "reduce" in operation else 1  # what is copied is cut anywhere
    parts = [lengths_of_cut(length, itemsize, count) for length in case.lengths]
    return [case._replace(lengths=list(lengths)) for lengths in zip(*parts, strict=True)]


def _all(case: HostsCase, column: int) -> list[int]:
    return [sum(case.lengths)]


def _stripe(case: HostsCase, column: int) -> list[int]:
    return [lengths_of_cut(sum(case.lengths), case.itemsize, case.topology.columns)[column]]


def _block_a_host(case: HostsCase, column: int) -> list[int]:
    return [sum(case.lengths[rank] for rank in ranks) for ranks in case.topology.hosts]


def _blocks_of_column(case: HostsCase, column: int) -> list[int]:
    return [case.lengths[rank] for rank in case.topology.column(column)]


INTER_HOST_RUNS: Mapping[tuple[str, str], InterHostRun] = MappingProxyType(
    {
        ("barrier", "leaders"): InterHostRun(_all),
        ("broadcast", "leaders"): InterHostRun(_all),
        ("broadcast", "stripes"): InterHostRun(_stripe),
        ("broadcast", "chain"): InterHostRun(_stripe, Choice("chain", MANY)),
        ("reduce", "leaders"): InterHostRun(_all),
        ("reduce", "stripes"): InterHostRun(_stripe),
        ("all_reduce", "leaders"): InterHostRun(_all),
        ("all_reduce", "stripes"): InterHostRun(_stripe),
        ("all_gather", "leaders"): InterHostRun(_block_a_host),
        ("all_gather", "columns"): InterHostRun(_blocks_of_column),
        ("reduce_scatter", "leaders"): InterHostRun(_block_a_host),
        ("reduce_scatter", "columns"): InterHostRun(_blocks_of_column),
    }
)
