"""The ring of ranks in which each rank watches its nearest neighbours, computed alike everywhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence

REACH = 2
"""Neighbours on either side: each rank is watched by four others, whatever the world's size."""


def ring_order(hosts: Sequence[str]) -> list[int]:
    """Return the ranks in ring order; ``hosts[rank]`` names each one's host.

    Hosts take turns, so that neighbours run on different hosts where possible. When a whole host
    fails, each of its ranks has a neighbour on another host that notices.
    """
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    places: list[tuple[int, int, int]] = []
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
        number = counts.get(host, 0)
        counts[host] = number + 1
        places.append((number, first[host], rank))
    return [rank for _, _, rank in sorted(places)]


def neighbours(ring: Sequence[int], rank: int, gone: Collection[int]) -> list[int]:
    """Return the ranks that ``rank`` watches, and is watched by, without those in ``gone``.

    The relation is mutual. When ranks go, pairs are only added: the others move closer together.
    """
    living = [other for other in ring if other == rank or other not in gone]
    at = living.index(rank)
    steps = [step for reach in range(1, REACH + 1) for step in (reach, -reach)]
    found = dict.fromkeys(living[(at + step) % len(living)] for step in steps)
    found.pop(rank, None)
    return list(found)
