"""Keep successive initialisations on one store apart."""

from __future__ import annotations

import asyncio
import contextlib

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, InvalidUsageError
from aiodist.store.base_store import Store
from aiodist.store.prefix import PrefixStore
from aiodist.store.waiting import in_time

_TELL_SECONDS = 1.0
"""Seconds to tell the others that this rank has counted and does not come."""

Will = tuple[str, bytes]
"""A key of the part, and the value that the store writes there if the process ends."""


async def join(
    store: Store, rank: int, world_size: int, deadline: Deadline, will: Will | None = None
) -> Store:
    """Return the part of ``store`` that belongs to this initialisation, as a `PrefixStore` over it.

    Rank r counts its own initialisations under ``init/r`` and works in ``gen<k>/`` the k-th time.
    Ranks that initialise equally often therefore meet in the same part, and never see keys of an
    earlier time. Every rank must call it once per initialisation, a failed one included. If
    cancelled, it may or may not have counted.

    ``will``: left in the part before this rank counts, where the store supports wills. If this rank
    fails or is cancelled after it has counted, the value is written at once. Otherwise the others
    would wait in a part to which this rank never comes back.

    Raises InvalidUsageError for a rank outside the world, StoreTimeoutError if the store does not
    answer by the deadline, DistStoreError if it fails.
    """
    if not 0 <= rank < world_size:
        raise InvalidUsageError(
            f"rank {rank} is outside a world of {world_size}: ranks go from 0 to world_size - 1"
        )
    if will is None:
        return PrefixStore(_part(await in_time(store.add(_counter(rank), 1), deadline)), store)
    expected = await in_time(store.add(_counter(rank), 0), deadline) + 1
    part = PrefixStore(_part(expected), store)
    try:
        await in_time(part.set_will(*will), deadline)
        count = await in_time(store.add(_counter(rank), 1), deadline)
    except BaseException:
        await _withdraw(store, rank, part, will, expected)
        raise
    if count == expected:
        return part
    # Another process counts as the same rank.
    await in_time(part.clear_will(will[0]), deadline)
    return PrefixStore(_part(count), store)


async def _withdraw(store: Store, rank: int, part: Store, will: Will, expected: int) -> None:
    """Write ``will`` now if this rank has counted ``expected``, and withdraw it in any case."""
    key, value = will
    with contextlib.suppress(DistStoreError, TimeoutError):
        async with asyncio.timeout(_TELL_SECONDS):
            if await store.add(_counter(rank), 0) >= expected:
                await part.compare_set(key, b"", value)
            await part.clear_will(key)


def _counter(rank: int) -> str:
    return f"init/{rank}"


def first_of(part: Store) -> Store | None:
    """Return the part of the first initialisation if ``part`` is that of a later one, else None."""
    if not isinstance(part, PrefixStore) or part.prefix == _part(1):
        return None
    return PrefixStore(_part(1), part.store)


def _part(count: int) -> str:
    return f"gen{count}"
