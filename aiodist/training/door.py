"""The async door's training functions."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import torch

from aiodist.api.collectives import all_reduce, broadcast
from aiodist.groups.process_group import Group
from aiodist.groups.work import Work
from aiodist.tensors.streams import on_callers_stream
from aiodist.training.buckets import Bucket
from aiodist.training.compression import Compression
from aiodist.training.parameters import Parameters, rows_of, unpack
from aiodist.training.reducing import BUCKET_BYTES, Reducer
from aiodist.types import ReduceOp


class GradientReducer(Reducer):
    """Averages gradients over the ranks while backward runs, for a program with an event loop.

    ``backward()`` stops the loop of the thread it runs in, and with it the messages: run it in
    another thread, ``await asyncio.to_thread(step)``, and the buckets travel meanwhile. Then
    ``await reducer.synchronize()`` before the optimizer's step.
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
        """As `Reducer`; in the event loop that ``init_process_group`` ran in."""
        self._loop = asyncio.get_running_loop()
        # Backward's threads have a context of their own, without this rank's world.
        self._context = contextvars.copy_context()
        self._outgoing: deque[tuple[Bucket, Callable[..., Work[None]]]] = deque()
        super().__init__(
            parameters, op=op, compression=compression, bucket_bytes=bucket_bytes, group=group
        )

    def synchronize(self) -> Coroutine[Any, Any, None]:
        """Await it after ``backward()``: the gradients are then those of all ranks.

        It takes part at the call, also where this rank has run no backward; await what it returns.
        Raises what ``all_reduce`` does; gradients then hold anything, and the next step may be
        tried. Cancelled, the step's collectives fail on all ranks.
        """
        self._launch_rest()
        self._send()  # what another thread has left, if its call has not come yet
        return self._finish()

    async def _finish(self) -> None:
        works = self._works()
        try:
            for work in works:
                with contextlib.suppress(Exception):  # raised when all have ended
                    await work
        except BaseException:
            for work in works:
                work.cancel()
            self._give_up()
            raise
        self._finished()

    def _start(self, bucket: Bucket) -> None:
        # After what this thread's stream still has to do to the gradients, whatever the loop's has.
        self._outgoing.append((bucket, on_callers_stream(all_reduce)))
        if asyncio._get_running_loop() is self._loop:
            self._send()
        else:
            self._loop.call_soon_threadsafe(self._send, context=self._context)

    def _send(self) -> None:
        while self._outgoing:
            bucket, begin = self._outgoing.popleft()
            try:
                bucket.work = begin(bucket.flat, ReduceOp.SUM, self._group)
            except Exception as error:  # noqa: BLE001  # raised by synchronize
                bucket.error = error


def broadcast_parameters(
    parameters: Parameters, src: int = 0, group: Group | None = None
) -> Coroutine[Any, Any, None]:
    """Give all ranks the values that rank ``src`` (global) has, in place.

    ``parameters``: a module (its parameters and buffers), a ``state_dict()``, or tensors; of
    equal shapes and dtypes on all ranks. Starts at the call; await what it returns. Raises what
    ``broadcast`` does.
    """
    rows = rows_of(parameters)
    works = [broadcast(row, src, group) for _, row in rows]
    return _received(works, partial(unpack, rows))


async def _received(works: list[Work[None]], then: partial[None]) -> None:
    try:
        for work in works:
            await work
    except BaseException:
        for work in works:
            work.cancel()
        raise
    then()
