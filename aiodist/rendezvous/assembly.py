"""Meeting at a store that outlives its ranks, as that of torchrun's agent outlives its workers.

All stores of torch's that a caller hands over are taken for such: nothing tells.

Counting initialisations is no help there: a worker that was killed before its own has not counted,
and the agents of several nodes count restarts differently. So each rank says who it is by a random
name, and rank 0 queries the status:

1. every rank writes its name under its rank, over that of an earlier process, and counts a change;
2. rank 0 publishes the list of names, again after every change;
3. a rank that finds its own name on the list agrees to it; names of the dead agree to nothing;
4. when all have agreed, rank 0 says so, and the ranks go on in a part that is named by the list.
"""

from __future__ import annotations

import asyncio
import hashlib
import os

from aiodist.deadline import Deadline
from aiodist.errors import StoreTimeoutError
from aiodist.store import PrefixStore, Store
from aiodist.store.waiting import pauses

_LIST = "roll"
_CHANGES = "changes"


async def assemble(store: Store, rank: int, size: int, deadline: Deadline) -> Store:
    """The part of ``store`` for exactly the ``size`` processes that are here now.

    Raises StoreTimeoutError, with the ``ranks`` that did not come, and DistStoreError if the store
    fails. Failed or cancelled, it may be called again.
    """
    name = os.urandom(12).hex()
    await store.set(_place(rank), name.encode())
    await store.add(_CHANGES, 1)
    if rank == 0:
        status_query = await _lead(store, size, deadline)
    else:
        status_query = await _follow(store, rank, size, name, deadline)
    return PrefixStore(_part(status_query), store)


async def _lead(store: Store, size: int, deadline: Deadline) -> bytes:
    places = [_place(rank) for rank in range(size)]
    seen, status_query = 0, b""
    for pause in pauses():
        changes = await store.add(_CHANGES, 0)
        if changes != seen and await store.check(places):
            seen = changes
            status_query = b"\n".join([await store.get(place, deadline) for place in places])
            await store.set(_LIST, status_query)
        if status_query and await store.check(
            [_agreed(status_query, rank) for rank in range(1, size)]
        ):
            await store.set(_complete(status_query), b"")
            return status_query
        await _pause(store, 0, size, status_query, pause, deadline)
    raise AssertionError("unreachable: pauses never end")


async def _follow(store: Store, rank: int, size: int, name: str, deadline: Deadline) -> bytes:
    agreed = b""
    for pause in pauses():
        if await store.check([_LIST]):
            status_query = await store.get(_LIST, deadline)
            if status_query != agreed and name.encode() == b"".join(
                status_query.split(b"\n")[rank : rank + 1]
            ):
                await store.set(_agreed(status_query, rank), b"")
                agreed = status_query
        if agreed and await store.check([_complete(agreed)]):
            return agreed
        await _pause(store, rank, size, agreed, pause, deadline)
    raise AssertionError("unreachable: pauses never end")


async def _pause(
    store: Store, rank: int, size: int, status_query: bytes, pause: float, deadline: Deadline
) -> None:
    if not deadline.expired():
        await asyncio.sleep(min(pause, deadline.remaining()))
        return
    others = [other for other in range(size) if other != rank]
    absent = [other for other in others if not await store.check([_place(other)])]
    if status_query and not absent:
        asked = [other for other in others if other != 0]
        absent = [other for other in asked if not await store.check([_agreed(status_query, other)])]
    elif not absent and rank != 0:
        absent = [0]  # whatever stands there is of an earlier time: rank 0 never listed this rank
    names = ", ".join(map(str, absent)) or "unknown"
    raise StoreTimeoutError(
        f"rank {rank}: of {size} ranks these did not arrive at the store within "
        f"{deadline.timeout:g} s: {names}; see whether they were started and still run",
        ranks=tuple(absent),
    )


def _place(rank: int) -> str:
    return f"here/{rank}"


def _part(status_query: bytes) -> str:
    return hashlib.sha256(status_query).hexdigest()[:24]


def _agreed(status_query: bytes, rank: int) -> str:
    return f"{_part(status_query)}/agreed/{rank}"


def _complete(status_query: bytes) -> str:
    return f"{_part(status_query)}/complete"
