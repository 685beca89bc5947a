"""What the stores' waits have in common: limits, pauses between polls, errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeVar

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError

T = TypeVar("T")

FIRST_PAUSE = 0.0005
LONGEST_PAUSE = 0.02


def limit(deadline: Deadline) -> float | None:
    """Return the seconds left as asyncio takes them: None without a limit."""
    left = deadline.remaining()
    return None if math.isinf(left) else left


def pauses(longest: float = LONGEST_PAUSE, first: float = FIRST_PAUSE) -> Iterator[float]:
    """Yield seconds to sleep between polls, growing by half each time up to ``longest``, without end."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 1.5, longest)


def timed_out(keys: Sequence[str], deadline: Deadline) -> StoreTimeoutError:
    """Return the error for ``keys`` that were not set by ``deadline``."""
    names = ", ".join(repr(key) for key in keys[:8])
    if len(keys) > 8:
        names += f" and {len(keys) - 8} more"
    noun = "key" if len(keys) == 1 else "keys"
    after = "" if deadline.timeout is None else f" within {deadline.timeout:g} s"
    return StoreTimeoutError(
        f"no rank set {noun} {names} in the store{after}: the rank that should have done it has "
        "not arrived yet, or waits elsewhere",
        keys=keys,
    )


async def in_time(call: Awaitable[T], deadline: Deadline, grace: float = 0.0) -> T:
    """Return the result of a call to a store that has to answer.

    Raises StoreTimeoutError if it does not, ``grace`` seconds after ``deadline``: a call may ask, once
    the time is over, what is missing.
    """
    left = limit(deadline)
    try:
        async with asyncio.timeout(None if left is None else left + grace):
            return await call
    except StoreTimeoutError:
        raise
    except TimeoutError as error:
        raise StoreTimeoutError(
            f"the store did not answer within {deadline.timeout:g} s; see whether the process "
            "that hosts it still runs"
        ) from error


def closed(what: str) -> DistStoreError:
    """Return the error for a call on a handle after its ``close``."""
    return DistStoreError(f"{what} is closed on this side; open it again to go on")


def check_value(value: object) -> bytes:
    """Return a copy of ``value`` as bytes. Raises TypeError for other types."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    advice = "; pass value.encode()" if isinstance(value, str) else ""
    raise TypeError(f"a store's value must be bytes, not {type(value).__name__}{advice}")
