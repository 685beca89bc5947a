"""The async API's training functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from typing import Any

import torch

from aiodist.api.collectives import all_reduce, broadcast
from aiodist.api.objects import broadcast_object_list
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.tensors.cuda_streams import on_callers_stream
from aiodist.training.parameters import Parameters, check_optimizer, lists_of, pack, root_of, unpack
from aiodist.training.reducing import Reducer
from aiodist.training.rows import Row
from aiodist.types import ReduceOp


class GradientReducer(Reducer):
    """Averages gradients over the ranks while backward runs, for a program with an event loop.

    ``backward()`` stops the loop of the thread it runs in, and with it the messages: run it in
    another thread, ``await asyncio.to_thread(step)``, and the buckets travel meanwhile. Then
    ``await reducer.synchronize()`` before the optimizer's step. Make it in the event loop that
    ``init_process_group`` ran in.
    """

    def _prepare(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Backward's threads have a context of their own, without this rank's world.
        self._context = contextvars.copy_context()
        self._outgoing: deque[tuple[Row, Callable[[], Work[None]]]] = deque()

    def synchronize(self) -> Coroutine[Any, Any, None]:
        """Await it after ``backward()``: the gradients are then those of all ranks.

        It takes part at the call, also where this rank has run no backward; await what it returns.
        Raises what ``all_reduce`` does, and InvalidUsageError if the program has changed a gradient
        since ``backward()`` made it; gradients then hold anything, and the next step may be tried.
        Cancelled, the step's collectives fail on all ranks.
        """
        try:
            self._launch_rest()
            self._send()  # what another thread has left, if its call has not come yet
        except BaseException:
            self._cancel()
            raise
        return StartedCoroutine(self._finish(), self._cancel)

    @contextlib.asynccontextmanager
    async def join(
        self, *optimizers: torch.optim.Optimizer, divide_by_initial_world_size: bool = True
    ) -> AsyncIterator[None]:
        """Let ranks make different numbers of steps: ``async with reducer.join(): ...``.

        Use it on all ranks around the loop over batches. A rank that leaves the block takes part
        in the others' steps with zeros until all have left it. In the end all ranks get the
        parameters, the buffers and the state of the ``optimizers`` of a rank that made the last
        step. Each step has one more small all_reduce.

        An exception in the block ends it at once on this rank alone. Cancelled, the collectives
        that it is in fail on all ranks.

        Args:
            *optimizers: Optimizers whose state all ranks get.
            divide_by_initial_world_size: Whether a step's gradients are divided by the number of
                all ranks, or by the number of those that make it.

        Raises:
            CollectiveError: What `all_reduce` raises.
        """
        self.enter_join(1, divide_by_initial_world_size)
        try:
            yield
            while any(numbers := await self._count(0)):
                self._launch_nothing()
                await self._wait_for_all()
                self._shadow_ended(numbers)
            counts = await self._count(self._steps)
            if min(counts) < max(counts):
                source = self._ranks[counts.index(max(counts))]
                await broadcast_parameters(self._replica(), source, self._group)
                for optimizer in optimizers:
                    await broadcast_optimizer_state(optimizer, source, self._group)
        finally:
            self._leave_join()

    async def _count(self, number: int) -> list[int]:
        """Return the ``number`` of each group rank."""
        row = self._announce_reducer(number)
        await all_reduce(row.flat, ReduceOp.SUM, self._group)
        return row.numbers()

    async def _finish(self) -> None:
        await self._wait_for_all(self._check_unchanged)
        self._finished()

    async def _wait_for_all(self, check: Callable[[], None] = lambda: None) -> None:
        """Return when all works have ended.

        If ``check`` raises, if the ranks train different parameters, or cancelled, they fail on all ranks.
        """
        try:
            check()
            await _ended(self._first_works())
            self._check_same_parameters()
            await _ended(self._works())
        except BaseException:
            self._cancel()
            raise

    def _cancel(self) -> None:
        """Fail the step's collectives on all ranks; the next step may follow."""
        _cancel(self._works())
        self._give_up()

    def _start(self, row: Row) -> None:
        def begin() -> Work[None]:
            if row.source is None:
                return all_reduce(row.flat, ReduceOp.SUM, self._group)
            return broadcast(row.flat, group=self._group, group_src=row.source)

        # After what this thread's stream still has to do to the gradients, whatever the loop's has.
        self._outgoing.append((row, on_callers_stream(begin)))
        if asyncio._get_running_loop() is self._loop:
            self._send()
        else:
            self._loop.call_soon_threadsafe(self._send, context=self._context)

    def _send(self) -> None:
        while self._outgoing:
            row, begin = self._outgoing.popleft()
            try:
                row.work = begin()
            except Exception as error:  # noqa: BLE001  # raised by synchronize
                row.error = error


class StartedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose operations run already. Given up before its first step, it cancels them, too.

    A task that is cancelled before its first step runs no line of its coroutine, so also no ``finally``.
    """

    def __init__(self, rest: Coroutine[Any, Any, None], cancel: Callable[[], object]) -> None:
        """``rest``: waits for the operations, and cancels them if it fails; ``cancel()``: cancels them."""
        self._rest = rest
        self._cancel: Callable[[], object] | None = cancel  # None from the first step on
        # For the `repr` of a task; the coroutine of an ``async def`` has it.
        self.__name__ = rest.__name__  # type: ignore[attr-defined]

    def send(self, value: Any, /) -> Any:
        """Take a step."""
        self._cancel = None
        return self._rest.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the task waits."""
        self._give_up()
        return self._rest.throw(*error)

    def close(self) -> None:
        """Give the operations up: the task will not run it."""
        self._give_up()
        self._rest.close()

    def __await__(self) -> Generator[Any, Any, None]:
        self._cancel = None  # an ``await`` takes the first step at once
        return self._rest.__await__()

    def _give_up(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()


async def _ended(works: list[Work[None]]) -> None:
    """Return when all have ended, well or badly. Cancelled, it raises."""
    for work in works:
        with contextlib.suppress(Exception):  # raised when all have ended
            await work


def broadcast_parameters(
    parameters: Parameters,
    src: int | None = None,
    group: Group | None = None,
    *,
    root_rank: int | None = None,
) -> Coroutine[Any, Any, None]:
    """Give all ranks the values that one rank has, in place.

    It starts at the call; await what it returns.

    Args:
        parameters: A module (its parameters and buffers), a ``state_dict()``,
            ``named_parameters()``, or tensors. Names, shapes and dtypes are equal on all ranks;
            tensors without names are in the same order.
        src: The source's global rank; None is 0.
        group: The process group; None is the default group.
        root_rank: Horovod's name for ``src``.

    Raises:
        CollectiveError: What `broadcast` raises.
        TypeError: ``parameters`` is something else.
        InvalidUsageError: ``src`` and ``root_rank`` differ.
    """
    root = root_of(src, root_rank)
    lists = lists_of(parameters)
    flats = [pack(several) for several in lists]
    works: list[Work[None]] = []
    try:
        works.extend(broadcast(flat, root, group) for flat in flats)
    except BaseException:
        _cancel(works)
        raise
    return StartedCoroutine(_received(works, lists, flats), partial(_cancel, works))


def _cancel(works: list[Work[None]]) -> None:
    for work in works:
        work.cancel()


async def _received(
    works: list[Work[None]], lists: list[list[torch.Tensor]], flats: list[torch.Tensor]
) -> None:
    try:
        for work in works:
            await work
    except BaseException:
        _cancel(works)
        raise
    for several, flat in zip(lists, flats, strict=True):
        unpack(several, flat)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    src: int | None = None,
    group: Group | None = None,
    *,
    root_rank: int | None = None,
    allow_pickle: bool | None = None,
) -> Coroutine[Any, Any, None]:
    """Give the optimizers of all ranks the state and the options that one rank's has.

    It starts at the call; await what it returns.

    Args:
        optimizer: An optimizer, with parameters and their groups in the same order on all ranks.
        src: The source's global rank; None is 0.
        group: The process group; None is the default group.
        root_rank: Horovod's name for ``src``.
        allow_pickle: Whether options of your own classes may be pickled. None is the choice of
            `init_process_group`.

    Raises:
        CollectiveError: What `broadcast_object_list` raises.
        TypeError: An option cannot travel, or ``optimizer`` is something else.
        InvalidUsageError: ``src`` and ``root_rank`` differ.
    """
    check_optimizer(optimizer)
    root = root_of(src, root_rank)
    is_root = current_world().rank == root
    state = [optimizer.state_dict() if is_root else None]
    work = broadcast_object_list(state, root, group, allow_pickle=allow_pickle)
    return StartedCoroutine(_loaded(work, state, None if is_root else optimizer), work.cancel)


async def _loaded(
    work: Work[None], state: list[Any], optimizer: torch.optim.Optimizer | None
) -> None:
    await work
    if optimizer is not None:
        optimizer.load_state_dict(state[0])
