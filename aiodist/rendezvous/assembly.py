"""Meet at a store that outlives its ranks, as that of torchrun's agent outlives its workers.

All torch stores of a caller are taken for such stores, because they do not tell. Counting
initialisations does not work there: a worker that was killed before its own has not counted, and
the agents of several nodes count restarts differently. So each rank identifies itself by a random
name, and rank 0 collects the names:

1. every rank writes its name under its rank, over that of an earlier process, and counts a change;

2. rank 0 publishes the list of names, again after every change;

3. a rank that finds its own name on the list agrees to it; a dead process agrees to nothing;

4. when all have agreed, rank 0 says so, and the ranks go on in a part that is named by the list.

Invariant: the list to which all agree names exactly the living processes, one for each rank.
"""

from __future__ import annotations

import asyncio
import hashlib
import os

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store import PrefixStore, Store
from aiodist.store.generation import Will
from aiodist.store.waiting import in_time, pauses

_ANSWER_SECONDS = 5.0
"""Seconds after the deadline for the store's answers about the ranks that did not arrive."""

_LIST = "roll"
_CHANGES = "changes"


async def assemble(
    store: Store, rank: int, size: int, deadline: Deadline, will: Will | None = None
) -> Store:
    """Return the part of ``store`` for exactly the ``size`` processes that are here now.

    ``will`` has no effect: no part counts on a process before that process has agreed to it.

    Raises StoreTimeoutError, with the ``ranks`` that did not arrive, and DistStoreError if the
    store fails. After a failure or cancellation it may be called again.
    """
    members = await in_time(_arrive(store, rank, size, deadline), deadline, _ANSWER_SECONDS)
    return PrefixStore(_part(members), store)


async def _arrive(store: Store, rank: int, size: int, deadline: Deadline) -> bytes:
    """Return the list to which all processes have agreed."""
    name = os.urandom(12).hex()
    await store.set(_place(rank), name.encode())
    await store.add(_CHANGES, 1)
    if rank == 0:
        return await _lead(store, size, deadline)
    return await _follow(store, rank, size, name, deadline)


async def _lead(store: Store, size: int, deadline: Deadline) -> bytes:
    places = [_place(rank) for rank in range(size)]
    seen, members = 0, b""
    for pause in pauses():
        changes = await store.add(_CHANGES, 0)
        if changes != seen and await store.check(places):
            seen = changes
            members = b"\n".join([await store.get(place, deadline) for place in places])
            await store.set(_LIST, members)
        if members and await store.check([_agreed(members, rank) for rank in range(1, size)]):
            await store.set(_complete(members), b"")
            return members
        await _pause(store, 0, size, members, pause, deadline)
    raise AssertionError("unreachable: pauses never end")


async def _follow(store: Store, rank: int, size: int, name: str, deadline: Deadline) -> bytes:
    agreed = b""
    for pause in pauses():
        if await store.check([_LIST]):
            members = await store.get(_LIST, deadline)
            if members != agreed and name.encode() == b"".join(
                members.split(b"\n")[rank : rank + 1]
            ):
                await store.set(_agreed(members, rank), b"")
                agreed = members
        if agreed and await store.check([_complete(agreed)]):
            return agreed
        await _pause(store, rank, size, agreed, pause, deadline)
    raise AssertionError("unreachable: pauses never end")


async def _pause(
    store: Store, rank: int, size: int, members: bytes, pause: float, deadline: Deadline
) -> None:
    if not deadline.expired():
        await asyncio.sleep(min(pause, deadline.remaining()))
        return
    others = [other for other in range(size) if other != rank]
    absent = [other for other in others if not await store.check([_place(other)])]
    if members and not absent:
        asked = [other for other in others if other != 0]
        absent = [other for other in asked if not await store.check([_agreed(members, other)])]
    elif not absent and rank != 0:
        absent = [0]  # a list there is from an earlier run: rank 0 never listed this rank
    names = ", ".join(map(str, absent)) or "unknown"
    raise StoreTimeoutError(
        f"rank {rank}: of {size} ranks these did not arrive at the store within "
        f"{deadline.timeout:g} s: {names}; see whether they were started and still run",
        ranks=tuple(absent),
    )


def _place(rank: int) -> str:
    return f"here/{rank}"


def _part(members: bytes) -> str:
    return hashlib.sha256(members).hexdigest()[:24]


def _agreed(members: bytes, rank: int) -> str:
    return f"{_part(members)}/agreed/{rank}"


def _complete(members: bytes) -> str:
    return f"{_part(members)}/complete"
