"""Tests on several ranks: what ``@pytest.mark.ranks`` makes of a test function."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from traceback import format_exception
from types import ModuleType
from typing import Any

import pytest

from aiodist.errors import CollectiveError, InvalidUsageError
from aiodist.groups.argument_checks import check_count
from aiodist.rank_processes import Cluster, RanksError
from aiodist.rank_processes.control import pickler
from aiodist.rank_processes.ranks_error import InterruptedCallError
from aiodist.testing.in_process import collect_ranks

__all__ = ["on_ranks", "send_by_value"]

_CONSEQUENCES = (CollectiveError, InterruptedCallError)
"""What ranks raise when another rank has failed."""


def send_by_value(module: ModuleType) -> None:
    """Let what ``module`` defines travel by value: rank processes could not import it by its name.

    So it is where pytest imports a module by its file. Without cloudpickle this does nothing, and the
    first test that needs it says so.
    """
    with suppress(ImportError):
        importlib.import_module("cloudpickle").register_pickle_by_value(module)


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

    If ranks fail with errors of one class, the first of these errors is raised; its notes have the
    errors of the other ranks. Errors that come from the failure of another rank do not count for
    this. Else an ExceptionGroup of all errors is raised, the first culprit first. So pytest.skip and
    pytest.xfail work on the ranks, and the mark xfail finds the class that it is told of.

    Raises InvalidUsageError for ``n`` below 1, for other ``processes``, for a test with ``yield``,
    for a blocking test with ``processes=False``, and for a ``transport`` of ranks in processes.
    """
    check_count(n, "n")
    if inspect.isgeneratorfunction(test) or inspect.isasyncgenfunction(test):
        raise InvalidUsageError("a test with `yield` is never run: take the yield out")
    if processes not in (None, True, False):
        raise InvalidUsageError(f"processes must be True, False or None, not {processes!r}")
    is_async = inspect.iscoroutinefunction(test)
    if processes is False and not is_async:
        raise InvalidUsageError(
            "a blocking test needs processes of its own; write `async def`, or leave processes out"
        )
    if transport != "inproc" and (processes or not is_async):
        raise InvalidUsageError(
            f"transport is for ranks in this process, and {transport!r} would not be used: leave it out, "
            "or write an `async def` test without processes=True"
        )

    if not is_async:

        @functools.wraps(test)
        def on_every_rank(**fixtures: Any) -> None:
            __tracebackhide__ = True
            _check_fixtures(fixtures)
            _raise(asyncio.run(_in_processes(test, n, timeout, fixtures)), n)

        return on_every_rank

    @functools.wraps(test)
    async def awaited_on_every_rank(**fixtures: Any) -> None:
        __tracebackhide__ = True
        if processes:
            _check_fixtures(fixtures)
            failures = await _in_processes(test, n, timeout, fixtures)
        else:
            failures = await _in_this_process(test, n, transport, timeout, fixtures)
        _raise(failures, n)

    return awaited_on_every_rank


async def _in_this_process(
    test: Callable[..., Any], n: int, transport: str, timeout: float, fixtures: Mapping[str, Any]
) -> Sequence[BaseException]:
    async def one(rank: int) -> None:
        await test(**fixtures)

    _, failures = await collect_ranks(n, one, transport, timeout=timeout)
    return failures


def _check_fixtures(fixtures: Mapping[str, Any]) -> None:
    """Raise TypeError for a fixture that cannot be pickled, with its name."""
    __tracebackhide__ = True
    dumps, _ = pickler()
    for name, value in fixtures.items():
        try:
            dumps(value)
        except Exception as error:  # noqa: BLE001  # whatever its class raises when it is pickled
            raise TypeError(
                f"the fixture {name!r} cannot be sent to the processes of the ranks: {error}. "
                "Make it there, or write an `async def` test"
            ) from None


async def _in_processes(
    test: Callable[..., Any], n: int, timeout: float, fixtures: Mapping[str, Any]
) -> Sequence[BaseException]:
    async with Cluster(n, timeout=timeout) as ranks:
        try:
            run = _run_async if inspect.iscoroutinefunction(test) else _run_blocking
            await ranks.run(run, test, fixtures)
        except RanksError as error:
            return [_restored(each) for each in error.exceptions]
    return ()


class _Outcome(Exception):
    """``pytest.skip``, ``xfail`` or ``fail`` on a rank process: their own exceptions do not travel."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message


@contextmanager
def _outcomes_travel() -> Iterator[None]:
    try:
        yield
    except pytest.skip.Exception as skipped:
        raise _Outcome("skip", str(skipped)) from None
    except pytest.xfail.Exception as failed:
        raise _Outcome("xfail", str(failed)) from None
    except pytest.fail.Exception as failed:  # also of a pytest.raises that saw no error
        raise _Outcome("fail", str(failed)).with_traceback(failed.__traceback__) from None


def _run_blocking(test: Callable[..., Any], fixtures: Mapping[str, Any]) -> None:
    with _outcomes_travel():
        test(**fixtures)


async def _run_async(test: Callable[..., Any], fixtures: Mapping[str, Any]) -> None:
    with _outcomes_travel():
        await test(**fixtures)


def _restored(error: Exception) -> BaseException:
    if not isinstance(error, _Outcome):
        return error
    kind: type[BaseException] = getattr(pytest, error.name).Exception
    outcome = kind(error.message)
    for note in error.__notes__:
        outcome.add_note(note)
    return outcome


def _raise(failures: Sequence[BaseException], n: int) -> None:
    """Raise what `on_ranks` promises for the errors of the ranks; nothing for no error."""
    __tracebackhide__ = True  # pytest shows the lines of the test instead
    if not failures:
        return
    culprits = [error for error in failures if not isinstance(error, _CONSEQUENCES)] or failures
    first = culprits[0]
    if any(type(error) is not type(first) for error in culprits):
        raise BaseExceptionGroup(f"{len(failures)} of {n} ranks failed", failures)
    if isinstance(first, pytest.skip.Exception | pytest.xfail.Exception):
        raise type(first)(str(first))  # pytest shows the message: without notes that name ranks
    for error in failures:
        if error is not first:
            first.add_note("another rank raised this:\n\n" + "".join(format_exception(error)))
    raise first
