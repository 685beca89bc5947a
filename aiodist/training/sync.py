"""The blocking API's training functions: ``from aiodist.training.sync import GradientReducer``."""

from __future__ import annotations

import contextlib
import contextvars
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from aiodist.errors import InvalidUsageError
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.sync.collectives import all_reduce, broadcast
from aiodist.sync.objects import broadcast_object_list
from aiodist.training.compression import Compression
from aiodist.training.parameters import Parameters, check_optimizer, lists_of, pack, root_of, unpack
from aiodist.training.reducing import Reducer
from aiodist.training.rows import Row
from aiodist.types import ReduceOp

__all__ = [
    "Compression",
    "GradientReducer",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "join_all",
]


class GradientReducer(Reducer):
    """Averages gradients over the ranks while backward runs.

    ``reducer.attach(optimizer)`` once, and ``optimizer.step()`` waits for them by itself. Or call
    `synchronize` after ``backward()``, for what comes between, such as clipping.
    """

    def _prepare(self) -> None:
        # Backward's threads may have a context of their own, without this rank's world.
        self._context = contextvars.copy_context()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._steps_synchronize = True

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks. Call it on all ranks, once a step.

        It takes part also where this rank has run no backward. Raises what ``all_reduce`` does, and
        InvalidUsageError if the program has changed a gradient since ``backward()`` made it; gradients
        then hold anything, and the next step may be tried. Interrupted by Ctrl-C, the step's
        collectives fail on all ranks.
        """
        with self._cancelled_if_it_fails():
            self._launch_rest()
            self._check_unchanged()
            self._wait_for_all()
        self._finished()

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Have ``optimizer.step()`` synchronize first, unless that was done since the last step.

        What looks at gradients or changes them before the step has to come after a call of
        `synchronize`: clipping, and the ``unscale_`` and ``step`` of a ``torch.amp.GradScaler``.
        Else the step raises InvalidUsageError.

        ``optimizer.step(closure)`` synchronizes after each call of the closure. An optimizer that
        decides by the loss, such as LBFGS, needs the same loss on all ranks: let the closure return the
        mean over the ranks.

        Each step of several attached optimizers synchronizes anew. To do so once for all of them, call
        `synchronize`, and make their steps in `skip_synchronize`.

        Args:
            optimizer: An optimizer of the same parameters.

        Raises:
            TypeError: ``optimizer`` is something else.
        """
        check_optimizer(optimizer)
        self._optimizers.append(optimizer)
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In here, the step of an attached optimizer does not synchronize."""
        self._steps_synchronize = False
        try:
            yield
        finally:
            self._steps_synchronize = True

    @contextlib.contextmanager
    def join(self, *, divide_by_initial_world_size: bool = True) -> Iterator[None]:
        """Let ranks make different numbers of steps: ``with reducer.join(): ...``.

        Use it on all ranks around the loop over batches. A rank that leaves the block takes part
        in the others' steps with zeros until all have left it. In the end all ranks get the
        parameters, the buffers and the state of the attached optimizers of a rank that made the
        last step. Each step has one more small all_reduce.

        An exception in the block ends it at once on this rank alone.

        Args:
            divide_by_initial_world_size: Whether a step's gradients are divided by the number of
                all ranks, or by the number of those that make it.

        Raises:
            CollectiveError: What `all_reduce` raises.
        """
        self.enter_join(1, divide_by_initial_world_size)
        try:
            yield
            join_all([self])
        finally:
            self._leave_join()

    def _start(self, row: Row) -> None:
        if row.source is None:
            row.work = self._context.copy().run(
                all_reduce, row.flat, ReduceOp.SUM, self._group, async_op=True
            )
        else:
            row.work = broadcast(row.flat, group=self._group, async_op=True, group_src=row.source)

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Synchronize, or return the arguments of a step whose closure does so in its end."""
        if not self._steps_synchronize:
            return None
        given = [*args[1:], kwargs.get("closure")]
        if given[0] is not None:  # a closure, whose backward makes the gradients
            evaluate = partial(self._evaluate, given[0])
            if len(args) > 1:
                return (args[0], evaluate, *args[2:]), kwargs
            return args, kwargs | {"closure": evaluate}
        if self._is_synchronized:
            return None
        # A GradScaler leaves the division to a fused optimizer, and tells it whether this rank's own
        # gradients are finite: ranks would not agree on whether to make the step.
        if getattr(optimizer, "found_inf", None) is not None:
            with self._cancelled_if_it_fails():
                self._launch_rest()
                raise InvalidUsageError(
                    "a GradScaler has looked at gradients of this rank alone: call synchronize() "
                    "before the scaler's step()"
                )
        self.synchronize()
        return None

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Return what ``closure`` returns; its gradients are then those of all ranks."""
        self._is_synchronized = False
        result = closure()
        if not self._is_synchronized:
            self.synchronize()
        return result

    def _after_step(self, *_: object) -> None:
        self._is_synchronized = False

    @contextlib.contextmanager
    def _cancelled_if_it_fails(self) -> Iterator[None]:
        """If the block raises, the step's collectives fail on all ranks, and the next step may follow."""
        try:
            yield
        except BaseException:
            works = self._works()
            for work in works:
                work.cancel()
            _wait_for(works)
            self._give_up()
            raise

    def _shadow_step(self, numbers: Sequence[int]) -> None:
        """Take part with zeros in a step that the ranks with ``numbers`` make."""
        with self._cancelled_if_it_fails():
            self._launch_nothing()
            self._wait_for_all()
        self._shadow_ended(numbers)

    def _wait_for_all(self) -> None:
        """Return when all works have ended. Raise where the ranks train different parameters."""
        _wait_for(self._first_works())
        self._check_same_parameters()
        _wait_for(self._works())

    def _copy_replica(self, source: int) -> None:
        rank = self._ranks[source]
        broadcast_parameters(self._replica(), rank, self._group)
        for optimizer in self._optimizers:
            broadcast_optimizer_state(optimizer, rank, self._group)

    def _count(self, number: int) -> list[int]:
        """Return the ``number`` of each group rank."""
        row = self._announce_reducer(number)
        all_reduce(row.flat, ReduceOp.SUM, self._group)
        return row.numbers()


def join_all(reducers: Sequence[GradientReducer]) -> int:
    """Take part with zeros in the steps of other ranks until no rank makes another.

    Call it on all ranks, each when it has no data left. In the end the replicas of all ranks are
    equal.

    Args:
        reducers: All of one group, each in a join under its number in this list, from 1 on.

    Returns:
        The group rank that has made the most steps, the first one of several.

    Raises:
        CollectiveError: What `all_reduce` raises.
    """
    first = reducers[0]
    while any(numbers := first._count(0)):
        reducers[max(numbers) - 1]._shadow_step(numbers)
    counts = first._count(sum(reducer._steps for reducer in reducers))
    source = counts.index(max(counts))
    for reducer in reducers:
        if min(counts) < max(counts):
            reducer._copy_replica(source)
        reducer._restart_join()
    return source


def _wait_for(works: list[Work[None]]) -> None:
    """Return when all have ended, well or badly."""
    for work in works:
        with contextlib.suppress(Exception, CancelledError):  # which is no Exception
            work.wait()


def broadcast_parameters(
    parameters: Parameters,
    src: int | None = None,
    group: Group | None = None,
    *,
    root_rank: int | None = None,
) -> None:
    """Give all ranks the values that one rank has, in place.

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
        for flat in flats:
            work = broadcast(flat, root, group, async_op=True)
            if work is None:
                return  # a rank outside the group was warned, and its tensors stay as they are
            works.append(work)
        for work in works:
            work.wait()
    except BaseException:
        for work in works:
            work.cancel()
        _wait_for(works)
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
) -> None:
    """Give the optimizers of all ranks the state and the options that one rank's has.

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
    broadcast_object_list(state, root, group, allow_pickle=allow_pickle)
    if state[0] is not None and not is_root:
        optimizer.load_state_dict(state[0])
