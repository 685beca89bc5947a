"""Keep successive initialisations on one store apart."""

from __future__ import annotations

from aiodist.deadline import Deadline
from aiodist.errors import InvalidUsageError
from aiodist.store.base_store import Store
from aiodist.store.prefix import PrefixStore
from aiodist.store.waiting import in_time


async def join(store: Store, rank: int, world_size: int, deadline: Deadline) -> Store:
    """Return the part of ``store`` that belongs to this initialisation, as a `PrefixStore` over it.

    Rank r counts its own initialisations under ``init/r`` and works in ``gen<k>/`` the k-th time.
    Ranks that initialise equally often therefore meet in the same part, and never see keys of an
    earlier time. Every rank must call it once per initialisation, a failed one included. If
    cancelled, it may or may not have counted.

    Raises InvalidUsageError for a rank outside the world, StoreTimeoutError if the store does not
    answer by the deadline, DistStoreError if it fails.
    """
    if not 0 <= rank < world_size:
        raise InvalidUsageError(
            f"rank {rank} is outside a world of {world_size}: ranks go from 0 to world_size - 1"
        )
    count = await in_time(store.add(f"init/{rank}", 1), deadline)
    return PrefixStore(_part(count), store)


def first_of(part: Store) -> Store | None:
    """Return the part of the first initialisation if ``part`` is that of a later one, else None."""
    if not isinstance(part, PrefixStore) or part.prefix == _part(1):
        return None
    return PrefixStore(_part(1), part.store)


def _part(count: int) -> str:
    return f"gen{count}"
