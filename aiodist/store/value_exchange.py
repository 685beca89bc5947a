"""Publish one value per rank and return the values of all, with a few store operations each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgpack

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store.base_store import Store
from aiodist.store.waiting import in_time

_LOOK_SECONDS = 1.0
"""Seconds between two looks at the values of the ranks that have arrived."""

_DIAGNOSIS_SECONDS = 5.0
"""Seconds after the deadline to ask the store which ranks are missing."""


async def exchange(
    store: Store,
    rank: int,
    size: int,
    value: bytes,
    deadline: Deadline,
    *,
    stops: Callable[[Collection[bytes]], bool] | None = None,
    name: str = "exchange",
) -> list[bytes]:
    """Return the values of all ``size`` ranks, by rank. ``name`` must not have been used in ``store``.

    Each rank sets one key; rank 0 gathers them and publishes them together, and the others wait for
    that one key. That makes 3 N operations for N ranks instead of N * N.

    ``stops``: tells by the values that are there whether the exchange cannot succeed. Rank 0 asks it every
    second. Once it returns True, all ranks get those values, and b"" for each missing rank.

    If ranks are missing at rank 0's deadline (or this rank's own), every rank that has arrived
    raises StoreTimeoutError with the absent ``ranks``. Raises DistStoreError if the store fails. If
    cancelled, this rank may or may not have arrived for the others.
    """
    await in_time(store.set(f"{name}/{rank}", value), deadline)
    if rank != 0:
        try:
            answer = await store.get(f"{name}/all", deadline)
        except StoreTimeoutError as error:
            absent = await absent_ranks(store, size, name)
            raise _not_arrived(rank, size, absent, deadline.timeout) from error
    else:
        answer = msgpack.packb(await _gather(store, size, value, deadline, stops, name))
        await in_time(store.set(f"{name}/all", answer), deadline, _DIAGNOSIS_SECONDS)
    values, absent, timeout = msgpack.unpackb(answer)
    if absent:
        raise _not_arrived(rank, size, absent, timeout)
    return list(values)


async def leave(
    store: Store, rank: int, size: int, deadline: Deadline, *, name: str = "exchange"
) -> bool:
    """Record that this rank needs nothing more of the exchange ``name``; rank 0 waits until all have.

    Rank 0 keeps the store alive (it owns the server) and closes it afterwards. On that rank the
    result is whether all others have left by the deadline; on the others it is True at once. Raises
    DistStoreError if the store fails, on the others also if it does not answer by the deadline.
    """
    if rank != 0:
        if await in_time(store.add(f"{name}/left", 1), deadline) == size - 1:
            await in_time(store.set(f"{name}/done", b""), deadline)
    elif size > 1:
        try:
            await store.get(f"{name}/done", deadline)
        except StoreTimeoutError:
            return False
    return True


async def _gather(
    store: Store,
    size: int,
    own: bytes,
    deadline: Deadline,
    stops: Callable[[Collection[bytes]], bool] | None,
    name: str,
) -> tuple[list[bytes], list[int], float | None]:
    """Return all values, or the absent ranks and rank 0's timeout, which the others thus learn at once.

    ``own``: the value of rank 0, which is there: a store that does not answer misses every key.
    """
    ranks = {f"{name}/{rank}": rank for rank in range(1, size)}
    values = [own, *[b""] * (size - 1)]
    missing = set(ranks)
    while missing:
        seconds = deadline.remaining() if stops is None else _LOOK_SECONDS
        has_ended = seconds >= deadline.remaining()
        waited_for = missing
        try:
            await store.wait([*missing], deadline if has_ended else Deadline(seconds))
            missing = set()
        except StoreTimeoutError as error:
            missing = set(error.keys)
            if has_ended:
                return [], sorted(ranks[key] for key in missing), deadline.timeout
        arrived = [*(waited_for - missing)]
        found = await asyncio.gather(*(store.get(key, deadline) for key in arrived))
        for key, value in zip(arrived, found, strict=True):
            values[ranks[key]] = value
        if stops is not None and stops(
            [own, *(values[ranks[key]] for key in ranks.keys() - missing)]
        ):
            break
    return values, [], None


async def absent_ranks(store: Store, size: int, name: str = "exchange") -> list[int] | None:
    """Return the ranks that have not entered the exchange ``name``, or None if the store does not say."""
    try:
        async with asyncio.timeout(_DIAGNOSIS_SECONDS):
            there = await asyncio.gather(*(store.check([f"{name}/{r}"]) for r in range(size)))
    except (DistStoreError, TimeoutError):
        return None
    return [rank for rank, arrived in enumerate(there) if not arrived]


async def is_waiting(store: Store, rank: int) -> bool:
    """Return whether a process has entered the exchange as ``rank``, and it has not ended."""
    return await store.check([f"exchange/{rank}"]) and not await store.check(["exchange/all"])


def _not_arrived(
    rank: int, size: int, absent: list[int] | None, timeout: float | None
) -> StoreTimeoutError:
    after = "" if timeout is None else f" within {timeout:g} s"
    if absent:
        names = ", ".join(map(str, absent[:16]))
        if len(absent) > 16:
            names += f" and {len(absent) - 16} more"
        who = "rank" if len(absent) == 1 else "ranks"
        what = (
            f"{who} {names} of {size} did not arrive at the store{after}; see whether they were "
            "started, still run, and were given the same address and world size"
        )
    elif absent is None:
        what = f"the {size} ranks did not meet{after}, and the store does not say which ranks are missing"
    else:
        what = (
            f"all {size} ranks arrived at the store, and rank 0 did not hand out their "
            f"values{after}; see what it is doing"
        )
    return StoreTimeoutError(f"rank {rank}: {what}", ranks=tuple(absent or ()))
