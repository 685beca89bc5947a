"""Find the ranks for which all others wait in the end.

The graph has an edge from each rank that waits to each rank it waits for. In a collective that not
all members have entered, the edges lead to the missing members, whatever message an algorithm
misses first. Otherwise the search could go in circles through ranks that only wait themselves. A
rank that is waited for and does not wait itself is a *root*. Without a root, some ranks wait for
each other in a *cycle*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiodist.observe.rank_report import RankReport
from aiodist.observe.recorder import DONE, FAILED, RUNNING, Operation

_FRESH = 10_000_000_000
"""Nanoseconds for which a failed operation still says what its rank waited for."""

_DUMPING = 1_000_000_000
"""Nanoseconds in which the ranks write their dumps after a failure. Later operations of a program
that goes on with other tasks count after that only."""


@dataclass(frozen=True)
class Wait:
    """``rank`` has waited ``seconds`` for the ranks ``on`` in ``operation``.

    ``absent``: those of them that have not entered the operation.
    """

    rank: int
    on: tuple[int, ...]
    operation: Operation
    seconds: float
    absent: bool


@dataclass(frozen=True)
class Diagnosis:
    """``reach[root]``: the ranks that wait for it, directly or through others."""

    waits: tuple[Wait, ...]
    roots: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...]
    reach: Mapping[int, frozenset[int]]


def diagnose(parts: Mapping[int, RankReport]) -> Diagnosis:
    """Return the diagnosis of the reports, by rank. A rank without a report does not wait."""
    waits = tuple(wait for rank in sorted(parts) for wait in _waits(parts[rank], parts))
    edges: dict[int, set[int]] = {}
    back: dict[int, set[int]] = {}
    for wait in waits:
        for other in wait.on:
            edges.setdefault(wait.rank, set()).add(other)
            back.setdefault(other, set()).add(wait.rank)
    roots = tuple(sorted(rank for rank in back if rank not in edges))
    reach = {root: _reaching([root], back) for root in roots}
    explained = frozenset(roots).union(*reach.values())
    left = sorted(edges.keys() - explained)
    cycles = []
    while left:
        cycle = _cycle(left[0], edges)
        cycles.append(cycle)
        gone = _reaching(cycle, back) | set(cycle)
        left = [rank for rank in left if rank not in gone]
    return Diagnosis(waits, roots, tuple(cycles), reach)


def _waits(part: RankReport, parts: Mapping[int, RankReport]) -> Iterable[Wait]:
    if part.standpoint.stuck:
        return  # its loop is stuck, so it reads nothing
    went_on = max(
        (each.created for each in part.operations if each.state == DONE or each.awaited), default=0
    )
    for operation in part.operations:
        if operation.state == RUNNING:
            if not operation.awaited:
                continue  # it does not block the program
            ended = part.clock
        elif operation.state == FAILED and not _is_past(operation, part.clock, went_on):
            ended = operation.finished
        else:
            continue
        if operation.operation.startswith("recv") and operation.peer < 0:
            continue  # a receive from any rank does not wait for a particular one
        absent = _absent(part, operation, parts)
        on = absent or tuple(rank for rank in operation.waiting_for if rank != part.rank)
        if on:
            seconds = max(0, ended - operation.created) / 1e9
            yield Wait(part.rank, on, operation, seconds, bool(absent))


def _is_past(failed: Operation, now: int, went_on: int) -> bool:
    """Return whether the rank no longer stands where ``failed`` left it: it failed long ago, or the
    program has handled the error, and called other operations since.

    ``went_on``: when it last called one that it finished or awaits.
    """
    age = now - failed.finished
    if age < _DUMPING:
        return False
    return age >= _FRESH or went_on > failed.finished


def _absent(
    part: RankReport, operation: Operation, parts: Mapping[int, RankReport]
) -> tuple[int, ...]:
    """Return members that have not entered a collective, and those about which nothing is known."""
    if operation.sequence < 0:
        return ()
    members = next((g.ranks for g in part.groups if g.id == operation.group_id), ())
    behind = [
        rank
        for rank in members
        if rank in parts
        and parts[rank].started(operation.group_id) <= operation.sequence
        # A rank without the group may have left it long ago: it counts if its message is missed.
        and (parts[rank].has_group(operation.group_id) or rank in operation.waiting_for)
    ]
    if not behind:
        return ()
    unknown = [rank for rank in operation.waiting_for if rank not in parts]
    return tuple(sorted({*behind, *unknown}))


def _reaching(ranks: Sequence[int], back: Mapping[int, set[int]]) -> frozenset[int]:
    """Return the ranks that wait for one of ``ranks``, directly or through others."""
    found: set[int] = set()
    todo = list(ranks)
    while todo:
        for rank in back.get(todo.pop(), ()):
            if rank not in found:
                found.add(rank)
                todo.append(rank)
    return frozenset(found)


def _cycle(start: int, edges: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Return a path through ``edges`` from a rank back to itself; it exists, since every path goes on."""
    way: list[int] = []
    rank = start
    while rank not in way:
        way.append(rank)
        rank = min(edges[rank])
    return tuple(way[way.index(rank) :])
