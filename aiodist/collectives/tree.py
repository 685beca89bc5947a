"""The binomial tree over 0 .. size-1 with its root at 0.

A place's parent is the place without its lowest set bit. The subtree of a place is a run of
consecutive places, so that what belongs to a subtree lies in one stretch of memory.
Ranks take the places ``(rank - root) % size``.
"""

from __future__ import annotations


def parent(place: int) -> int:
    """The place above ``place``, which is not 0."""
    return place & (place - 1)


def children(place: int, size: int) -> list[int]:
    """The places directly below ``place``, nearest (smallest subtree) first."""
    found = []
    step = 1
    while place + step < size and not place & step:
        found.append(place + step)
        step *= 2
    return found


def subtree_end(place: int, size: int) -> int:
    """One past the last place of the subtree under ``place``."""
    return min(size, place + (place & -place)) if place else size
