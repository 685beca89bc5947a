"""`Cluster`: rank processes on this host that execute functions of an interactive program."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TextIO

from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_count, check_ranks
from aiodist.launch.environment import (
    INHERITED_FROM_AN_OUTER_JOB,
    job_identity,
    meeting_environment,
    rank_environment,
)
from aiodist.launch.ports import reserve_port
from aiodist.rank_processes import worker
from aiodist.rank_processes.control import FrameKind, pickler
from aiodist.rank_processes.rank_process import Answer, Output, RankProcess
from aiodist.rank_processes.ranks_error import InterruptedCallError, ranks_error
from aiodist.unpicklable import Unpicklable

ADDRESS = "127.0.0.1"

_GRACE_SECONDS = 1.0
"""How long after the first error the other ranks may take to learn of it by themselves."""

_TURN_SECONDS = 0.2
"""How often the loop turns during a call. An interrupt of a notebook's cell is a callback of ipykernel
that does not wake a sleeping loop."""

_END_SECONDS = 5.0
"""How long ranks may take to end a call that was interrupted, and to end themselves."""


class Cluster(Unpicklable):
    """Ranks 0 to ``n`` - 1, each a process on this host, with an initialised default group.

    An async context manager: the processes live from its begin to its end. They end by themselves if
    this process ends in any other way.
    """

    def __init__(
        self,
        n: int,
        *,
        backend: str | None = None,
        timeout: float | None = None,
        threads: int = 1,
        env: Mapping[str, str] | None = None,
        output: Output | None = None,
    ) -> None:
        """Describe the ranks; ``async with`` starts them.

        Args:
            n: How many ranks.
            backend: The backend of the default group, as for `init_process_group`.
            timeout: Seconds of each operation; None is the default of `init_process_group`.
            threads: OMP_NUM_THREADS of each rank.
            env: Further variables of the ranks.
            output: What takes their output. None prints it line by line behind the rank's number. What
                it raises is raised by the call as an error of the rank.

        Raises:
            InvalidUsageError: ``n`` or ``threads`` is below 1.
            TypeError: A value of ``env`` is no str.
            ImportError: The package cloudpickle is missing.
        """
        check_count(n, "n")
        check_count(threads, "threads")
        for name, value in (env or {}).items():
            if not isinstance(value, str):
                raise TypeError(f"env must have values of str, and {name!r} has {value!r}")
        self._size = n
        self._first_call: tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]] = (
            worker.open_group,
            (backend, to_seconds(timeout)),
            {},
        )
        self._variables = {"OMP_NUM_THREADS": str(threads), **(env or {})}
        self._output = output or _print
        self._dumps, self._loads = pickler()
        self._ranks: list[RankProcess] = []
        self._stale = False  # a call failed, so ranks may be at different operations
        self._interrupting = asyncio.Lock()  # held while interrupted calls come to their ends

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids, by rank."""
        return tuple(rank.pid for rank in self._ranks)

    @property
    def ended(self) -> tuple[int, ...]:
        """The ranks whose process has ended, as far as is known."""
        return tuple(rank.number for rank in self._ranks if not rank.is_alive)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the processes and wait until they have met. ``async with`` calls it.

        Raises InvalidUsageError if they have been started, and what ``init_process_group`` raises on
        the ranks, as `RanksError`; then, and cancelled, no process is left.
        """
        if self._ranks:
            raise InvalidUsageError("the ranks of this cluster have been started: close it first")
        with reserve_port() as reservation:
            shared = {
                name: value
                for name, value in os.environ.items()
                if name not in INHERITED_FROM_AN_OUTER_JOB
            }
            shared |= (
                job_identity({}) | meeting_environment(ADDRESS, reservation.port) | self._variables
            )
            try:
                for rank in range(self._size):
                    own = rank_environment(
                        rank=rank,
                        local_rank=rank,
                        world_size=self._size,
                        local_world_size=self._size,
                    )
                    self._ranks.append(await RankProcess.start(rank, shared | own, self._output))
                await self._carry_out(self._ranks, *self._first_call)
            except BaseException:
                ranks, self._ranks = self._ranks, []
                await _settled(rank.end() for rank in ranks)
                raise

    async def close(self) -> None:
        """End the processes. Idempotent. Cancelled, it kills them."""
        ranks, self._ranks = self._ranks, []
        living = [rank for rank in ranks if rank.is_alive]
        try:
            async with asyncio.timeout(_END_SECONDS):
                await _settled(
                    rank.call(self._dumps((worker.close_group, (), {})))
                    for rank in living
                    if not rank.is_busy
                )
        except TimeoutError:
            pass
        finally:
            await _settled(rank.end() for rank in ranks)

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank.

        Functions and closures of a notebook's cells travel by value. Arguments and results travel
        as pickles. Cancelled, it interrupts the call on all ranks, which live on.

        Args:
            fn: A coroutine function over ``aiodist``, or an ordinary function over
                ``aiodist.sync``; both use the same groups.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The results, by rank.

        Raises:
            TypeError: ``fn`` cannot be called: ``run(fn(1))`` in place of ``run(fn, 1)``.
            RanksError: A rank has failed. One second later the calls of the others are
                interrupted. A rank whose process has ended appears with PeerLostError. If all
                processes live, the default group is made anew before the next call.
        """
        return await self._call(range(self._size), fn, args, kwargs)

    async def run_on(
        self, ranks: Iterable[int], fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Do as `run`, on some of the ranks alone.

        Args:
            ranks: The ranks to call.
            fn: The function, as for `run`.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            The results, in the order of ``ranks``.

        Raises:
            InvalidUsageError: There is no such rank, a rank stands twice in ``ranks``, or it is empty.
            RanksError: A rank has failed, as for `run`.
        """
        chosen = check_ranks(ranks, self._size, "the cluster")
        return await self._call(chosen, fn, args, kwargs)

    def kill(self, rank: int) -> None:
        """Kill the process of a rank by SIGKILL, to see what a lost rank does to a program.

        Args:
            rank: The rank, from 0.

        Raises:
            InvalidUsageError: There is no such rank, or the cluster is closed.
        """
        (chosen,) = check_ranks([rank], self._size, "the cluster")
        self._check_open()
        self._ranks[chosen].signal(signal.SIGKILL)

    def _check_open(self) -> None:
        if not self._ranks:
            raise InvalidUsageError("the cluster is closed, or not open yet: use `async with`")

    async def _call(
        self, chosen: Sequence[int], fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> list[Any]:
        if not callable(fn):
            raise TypeError(f"fn must be a function, which the ranks call themselves, not {fn!r}")
        async with self._interrupting:  # an interrupted cell of a notebook does not wait for this
            pass
        self._check_open()
        for rank in self._ranks:
            if rank.is_busy:
                raise InvalidUsageError(
                    f"rank {rank.number} (pid {rank.pid}) has not ended the call before; wait for it, or "
                    f"end the rank by kill({rank.number}), or all ranks by close() or %ranks --close"
                )
        if self._stale and all(rank.is_alive for rank in self._ranks):
            await self._carry_out(self._ranks, worker.renew_group, (), {})
        self._stale = False
        return await self._carry_out([self._ranks[rank] for rank in chosen], fn, args, kwargs)

    async def _carry_out(
        self, ranks: Sequence[RankProcess], fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> list[Any]:
        call = self._dumps((fn, args, kwargs))
        context = contextvars.copy_context()
        for rank in self._ranks:
            # A notebook shows output below the cell in whose context it is printed.
            rank.context = context
        order: list[RankProcess] = []  # in which ranks failed
        tasks = {rank.call(call): rank for rank in ranks}
        try:
            await self._answers(tasks, order)
        except BaseException:
            self._stale = True
            await self._interrupt(tasks)
            raise
        results, errors = {}, {}
        for task, rank in tasks.items():
            if not task.done() or _has_failed(task):
                errors[rank.number] = self._error(rank, task)
            else:
                try:
                    results[rank.number] = self._loads(task.result()[1])
                except Exception as error:  # noqa: BLE001  # whatever a result's class raises when it is unpickled
                    error.add_note(f"the result of rank {rank.number} cannot be unpickled here")
                    errors[rank.number] = error
                    order.append(rank)
        if errors:
            self._stale = True
            first = [rank.number for rank in order]
            raise ranks_error(errors, results, first, self._size)
        return [results[rank.number] for rank in ranks]

    async def _answers(self, tasks: dict[Answer, RankProcess], order: list[RankProcess]) -> None:
        """Wait for the answers of all ranks; of the others for some time once one has failed."""
        pending = set(tasks)
        until = None
        loop = asyncio.get_running_loop()
        while pending:
            seconds = _TURN_SECONDS if until is None else max(0.0, until - loop.time())
            done, pending = await asyncio.wait(
                pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            order += [tasks[task] for task in done if _has_failed(task)]
            if order and until is None:
                until = loop.time() + _GRACE_SECONDS
            elif until is not None and not done:
                await self._interrupt({task: tasks[task] for task in pending})
                order += [tasks[task] for task in pending]
                return

    async def _interrupt(self, tasks: Mapping[Answer, RankProcess]) -> None:
        """Interrupt the calls that are in progress, and wait some time for their ends."""
        async with self._interrupting:
            running = {task: rank for task, rank in tasks.items() if not task.done()}
            for rank in running.values():
                rank.interrupt()
            if running:  # a rank that does not end its call in time stays busy
                await asyncio.wait(running, timeout=_END_SECONDS)

    def _error(self, rank: RankProcess, task: Answer) -> Exception:
        """Return why the call on ``rank`` has no result."""
        if not task.done():
            return InterruptedCallError("the call was interrupted, and has not ended yet")
        lost = task.exception()
        if isinstance(lost, Exception):
            return lost
        error: BaseException
        packed, summary, text = self._loads(task.result()[1])
        try:
            error = self._loads(packed)
        except Exception:  # noqa: BLE001  # whatever an error's class raises when it is unpickled
            error = RuntimeError(summary)
        if isinstance(error, KeyboardInterrupt):
            error = InterruptedCallError("the call was interrupted, because another rank failed")
        elif not isinstance(error, Exception):
            error = RuntimeError(summary)
        error.add_note(f"rank {rank.number} of {self._size} raised this:\n\n{text.rstrip()}")
        return error


def _has_failed(task: Answer) -> bool:
    return task.exception() is not None or task.result()[0] is FrameKind.ERROR


def _print(rank: int, text: str, stream: TextIO) -> None:
    for line in text.removesuffix("\n").split("\n"):
        state = line.rstrip("\r").rpartition("\r")[2]  # the last one of a progress bar
        stream.write(f"[{rank}] {state}\n")
    stream.flush()


async def _settled(coroutines: Iterable[Awaitable[Any]]) -> None:
    """Wait for all; whatever they raise is of no interest any more."""
    await asyncio.gather(*coroutines, return_exceptions=True)
