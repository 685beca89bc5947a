"""Many ranks in one process and one event loop, over the real engine."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from aiodist.api.available import is_initialized
from aiodist.api.closing import abort_process_group, destroy_process_group
from aiodist.api.lifecycle import open_in_process
from aiodist.api.settings import SHARED, window_from
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_count
from aiodist.groups.world import World, use_world
from aiodist.store import MemoryStore
from aiodist.transport.base_transport import Transport
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.transport.transports import Transports

T = TypeVar("T")

_SHARED_BYTES = 8 << 20


@overload
async def run_ranks(
    size: int,
    fn: Callable[[int], Awaitable[T]],
    transport: str = "inproc",
    *,
    timeout: float | timedelta | None = 60.0,
    buffer_bytes: int | None = None,
    wrap: Callable[[int, Transport], Transport] | None = None,
    backend: str | None = None,
    hosts: Sequence[int] = (),
    threads: Literal[False] = False,
) -> list[T]: ...


@overload
async def run_ranks(
    size: int,
    fn: Callable[[int], T],
    transport: str = "inproc",
    *,
    timeout: float | timedelta | None = 60.0,
    buffer_bytes: int | None = None,
    wrap: Callable[[int, Transport], Transport] | None = None,
    backend: str | None = None,
    hosts: Sequence[int] = (),
    threads: Literal[True],
) -> list[T]: ...


async def run_ranks(
    size: int,
    fn: Callable[[int], Any],
    transport: str = "inproc",
    *,
    timeout: float | timedelta | None = 60.0,
    buffer_bytes: int | None = None,
    wrap: Callable[[int, Transport], Transport] | None = None,
    backend: str | None = None,
    hosts: Sequence[int] = (),
    threads: bool = False,
) -> list[Any]:
    """Run ``fn(rank)`` for several ranks at once, in one process.

    Each rank has its own world, initialised before and destroyed after: ``aiodist``'s functions
    work in it as in a process of its own. When a rank fails, or the call is cancelled, all ranks
    are cancelled. A rank with a thread is cancelled by aborting its process group.

    Args:
        size: How many ranks.
        fn: ``await fn(rank)`` is called for each rank.
        transport: "inproc" (queues), "tcp" or "unix" (real sockets on this host), or "shm"
            (shared memory, beside queues).
        timeout: Of every operation: seconds or a timedelta.
        buffer_bytes: What a rank buffers per peer for messages without a receive.
        wrap: ``wrap(rank, transport)`` returns what the rank uses in place of ``transport``, such
            as a `FaultyTransport` around it.
        backend: The backend of the default group, as for `init_process_group`.
        hosts: The number of each rank's host; ranks of different hosts share no memory. Empty:
            all on one host.
        threads: Whether ``fn`` is an ordinary function over `aiodist.sync`, which each rank calls
            in a thread of its own.

    Returns:
        The results, by rank.

    Raises:
        Exception: The first error of a rank, by time. A note of the error says which rank it was.
        TypeError: ``size`` is no int; ``fn`` is not callable, or without ``threads`` no async
            function.
        InvalidUsageError: ``hosts`` are not ``size``; ``buffer_bytes`` is below 64 KiB; ``transport``
            or ``backend`` is unknown.
    """
    if threads:
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise TypeError(f"with threads=True fn must be an ordinary function, not {fn!r}")
        fn = _in_thread(fn)
    results, failures = await collect_ranks(
        size,
        fn,
        transport,
        timeout=timeout,
        buffer_bytes=buffer_bytes,
        wrap=wrap,
        backend=backend,
        hosts=hosts,
    )
    for failure in failures:
        raise failure
    return results


async def collect_ranks(
    size: int,
    fn: Callable[[int], Awaitable[T]],
    transport: str = "inproc",
    *,
    timeout: float | timedelta | None = 60.0,
    buffer_bytes: int | None = None,
    wrap: Callable[[int, Transport], Transport] | None = None,
    backend: str | None = None,
    hosts: Sequence[int] = (),
) -> tuple[list[T], list[BaseException]]:
    """Do as `run_ranks`, and return the errors of the ranks in the order of their times.

    Returns the results by rank and no error, or no results and at least one error.
    """
    check_count(size, "size")
    if not callable(fn):
        raise TypeError(f"fn must be an async function to call as fn(rank), not {fn!r}")
    if hosts and len(hosts) != size:
        raise InvalidUsageError(f"hosts must have a number for each of {size} ranks, not {hosts!r}")
    window = window_from(buffer_bytes, {})
    store = MemoryStore()
    hub = InprocHub()
    failures: list[BaseException] = []

    def new_transport() -> Transport:
        transports = Transports.default("127.0.0.1", hub=hub)
        transports.add(SHARED, lambda: InprocTransport(hub))  # queues beside the shared memory
        return transports.get(transport)

    new_transport()  # an unknown one is refused once, and not by each rank

    @contextmanager
    def noted(rank: int) -> Iterator[None]:
        try:
            with _cancelled_by_others():
                yield
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                error.add_note(f"run_ranks: rank {rank} of {size} raised this")
                failures.append(error)
            raise

    async def open_world(rank: int) -> None:
        use_world(World())
        mine = new_transport()
        shared_bytes = _SHARED_BYTES if transport == SHARED else 0
        if wrap is not None:
            mine = wrap(rank, mine)
        host = f"host {hosts[rank]}" if hosts else ""
        await open_in_process(rank, size, store, mine, timeout, window, backend, shared_bytes, host)

    async def one(rank: int) -> T:
        # All tasks exist before one fails and ends the group, also where tasks are eager.
        await asyncio.sleep(0)
        with noted(rank):
            await open_world(rank)
        try:
            with noted(rank):  # before the group is destroyed: that may take other ranks' time
                return await _called(fn, rank)
        finally:
            with noted(rank):
                if is_initialized():  # ``fn`` may have destroyed it, as a script does
                    await destroy_process_group()

    try:
        async with asyncio.TaskGroup() as ranks:
            tasks = [
                ranks.create_task(one(rank), name=f"rank {rank}", context=copy_context())
                for rank in range(size)
            ]
    except BaseExceptionGroup:
        assert failures  # each rank has noted its own
    return ([] if failures else [task.result() for task in tasks]), failures


@contextmanager
def _cancelled_by_others() -> Iterator[None]:
    """Raise RuntimeError where the block ends with the CancelledError of what it cancelled itself.

    That would end the rank's task like a cancellation of the task, and the other ranks would wait on.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise RuntimeError(
                "the rank ended with CancelledError, and its task was not cancelled"
            ) from error
        raise


def _called(fn: Callable[[int], Awaitable[T]], rank: int) -> Awaitable[T]:
    called = fn(rank)
    if not inspect.isawaitable(called):
        raise TypeError(
            f"fn must be an async function, and fn({rank}) returned {called!r}, which cannot be "
            "awaited: write `async def`; for an ordinary function over aiodist.sync pass "
            "threads=True"
        )
    return called


def _in_thread(fn: Callable[[int], T]) -> Callable[[int], Awaitable[T]]:
    """Return an async function that calls ``fn(rank)`` in a new thread and returns its result.

    ``fn`` sees the context variables of the caller, so also its world: `aiodist.sync` works in it.
    Cancelled, it aborts the caller's process group, so that a blocked operation of ``fn`` raises
    GroupClosedError, and then waits for the end of ``fn``.
    """

    async def call(rank: int) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def run() -> None:
            try:
                result = context.run(fn, rank)
            except BaseException as error:  # noqa: BLE001  # raised where ``call`` is awaited
                loop.call_soon_threadsafe(_fail_in_loop, done, error)
            else:
                loop.call_soon_threadsafe(done.set_result, result)

        # Not the executor of asyncio.to_thread: it has fewer threads than there may be ranks.
        threading.Thread(target=run, name=f"rank {rank}", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done() and is_initialized():
                await abort_process_group()
            await asyncio.wait({done})
            done.exception()  # retrieved, so that asyncio does not log it
            raise

    return call


def _fail_in_loop(done: asyncio.Future[T], error: BaseException) -> None:
    if isinstance(error, StopIteration):  # a future refuses it
        wrapped = RuntimeError("fn raised StopIteration")
        wrapped.__cause__ = error
        error = wrapped
    done.set_exception(error)
