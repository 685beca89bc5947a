"""The blocking door's training functions: ``from aiodist.training.sync import GradientReducer``."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable
from typing import Any

import torch

from aiodist.groups.process_group import Group
from aiodist.groups.work import Work
from aiodist.sync.collectives import all_reduce, broadcast
from aiodist.training.buckets import Bucket
from aiodist.training.compression import Compression
from aiodist.training.parameters import Parameters, rows_of, unpack
from aiodist.training.reducing import BUCKET_BYTES, Reducer
from aiodist.types import ReduceOp

__all__ = ["Compression", "GradientReducer", "broadcast_parameters"]


class GradientReducer(Reducer):
    """Averages gradients over the ranks while backward runs.

    ``reducer.attach(optimizer)`` once, and ``optimizer.step()`` waits for them by itself. Or call
    `synchronize` after ``backward()``, for what comes between, such as clipping.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        op: ReduceOp = ReduceOp.AVG,
        compression: Compression = Compression.none,
        bucket_bytes: int = BUCKET_BYTES,
        group: Group | None = None,
    ) -> None:
        """As `Reducer`."""
        # Backward's threads may have a context of their own, without this rank's world.
        self._context = contextvars.copy_context()
        super().__init__(
            parameters, op=op, compression=compression, bucket_bytes=bucket_bytes, group=group
        )

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks. Call it on all ranks, once a step.

        It takes part also where this rank has run no backward. Raises what ``all_reduce`` does;
        gradients then hold anything, and the next step may be tried. Interrupted by Ctrl-C, the
        step's collectives fail on all ranks.
        """
        try:
            self._launch_rest()
            _wait_for(self._works())
        except BaseException:
            works = self._works()
            for work in works:
                work.cancel()
            _wait_for(works)
            self._give_up()
            raise
        self._finished()

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Have ``optimizer.step()`` synchronize first, unless that was done since the last step.

        What looks at gradients or changes them before the step, such as clipping and the ``unscale_``
        and ``step`` of a ``torch.amp.GradScaler``, has to come after a call of `synchronize`.
        """

        def before(*_: Any) -> None:
            if not self._is_synchronized:
                self.synchronize()

        def after(*_: Any) -> None:
            self._is_synchronized = False

        self._hooks.append(optimizer.register_step_pre_hook(before))
        self._hooks.append(optimizer.register_step_post_hook(after))

    def _start(self, bucket: Bucket) -> None:
        bucket.work = self._context.copy().run(
            all_reduce, bucket.flat, ReduceOp.SUM, self._group, async_op=True
        )


def _wait_for(works: list[Work[None]]) -> None:
    """Until all have ended, well or badly."""
    for work in works:
        with contextlib.suppress(Exception):
            work.wait()


def broadcast_parameters(parameters: Parameters, src: int = 0, group: Group | None = None) -> None:
    """Give all ranks the values that rank ``src`` (global) has, in place.

    ``parameters``: a module (its parameters and buffers), a ``state_dict()``, or tensors; of
    equal shapes and dtypes on all ranks. Raises what ``broadcast`` does.
    """
    rows = rows_of(parameters)
    works = [broadcast(row, src, group, async_op=True) for _, row in rows]
    for work in works:
        if work is not None:  # as it is, with a warning, on a rank outside the group
            work.wait()
    unpack(rows)
