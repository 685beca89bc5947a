"""Tests on several ranks: what ``@pytest.mark.ranks`` makes of a test function."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int
from aiodist.rank_processes import Cluster, RanksError
from aiodist.testing.in_process import collect_ranks

__all__ = ["on_ranks"]


def on_ranks(
    test: Callable[..., Any],
    n: int,
    transport: str = "inproc",
    *,
    processes: bool | None = None,
    timeout: float = 60.0,
) -> Callable[..., Any]:
    """Return a function that calls ``test`` on ranks 0 to ``n`` - 1, each with its group initialised.

    ``transport``: as for ``aiodist.testing.run_ranks``; of ranks in this process. ``processes``:
    whether the ranks are processes; None means that a coroutine function runs in this process and
    its event loop, and any other function in processes. The fixtures of a test in processes travel
    as pickles. ``timeout``: seconds of each operation.

    If ranks fail, an ExceptionGroup with the errors of all of them is raised, the first culprit first.
    Raises InvalidUsageError for ``n`` below 1 and for a blocking test with ``processes=False``.
    """
    check_int(n, "n")
    if n < 1:
        raise InvalidUsageError(f"@pytest.mark.ranks(n) needs at least one rank, not {n}")
    is_async = inspect.iscoroutinefunction(test)
    if processes is False and not is_async:
        raise InvalidUsageError(
            "a blocking test needs processes of its own; write `async def`, or leave processes out"
        )

    if not is_async:

        @functools.wraps(test)
        def on_every_rank(**fixtures: Any) -> None:
            asyncio.run(_in_processes(test, n, timeout, fixtures))

        return on_every_rank

    @functools.wraps(test)
    async def awaited_on_every_rank(**fixtures: Any) -> None:
        if processes:
            await _in_processes(test, n, timeout, fixtures)
        else:
            await _in_this_process(test, n, transport, timeout, fixtures)

    return awaited_on_every_rank


async def _in_this_process(
    test: Callable[..., Any], n: int, transport: str, timeout: float, fixtures: Mapping[str, Any]
) -> None:
    async def one(rank: int) -> None:
        await test(**fixtures)

    _, failures = await collect_ranks(n, one, transport, timeout=timeout)
    _raise(failures, n)


async def _in_processes(
    test: Callable[..., Any], n: int, timeout: float, fixtures: Mapping[str, Any]
) -> None:
    async with Cluster(n, timeout=timeout) as ranks:
        try:
            await ranks.run(test, **fixtures)
        except RanksError as error:
            failures = list(error.exceptions)
        else:
            return
    _raise(failures, n)


def _raise(failures: Sequence[BaseException], n: int) -> None:
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {n} ranks failed", failures)
