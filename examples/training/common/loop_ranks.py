"""The ranks of a job whose operations an event loop awaits, for shared code that blocks in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from torch import Tensor

import aiodist as dist


class LoopRanks:
    """The ranks of aiodist's async API. Make it in the loop; call its methods in other threads.

    Its methods are those of `common.ranks.Ranks`. Each starts an operation in the loop and waits for it.
    """

    def __init__(self) -> None:
        """Call it after ``await dist.init_process_group()``."""
        self._loop = asyncio.get_running_loop()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of a small tensor on the CPU."""
        total = values.detach().clone()
        self._wait_for(lambda: dist.all_reduce(total))
        return total

    def gather(self, value: Any) -> list[Any]:
        """Return the object of every rank, in the order of ranks, on all ranks."""
        values = [None] * self.size
        self._wait_for(lambda: dist.all_gather_object(values, value))
        return values

    def broadcast(self, tensor: Tensor) -> None:
        """Give all ranks the values of rank 0, in place."""
        self._wait_for(lambda: dist.broadcast(tensor, src=0))

    def _wait_for(self, start: Callable[[], Any]) -> None:
        async def operation() -> None:
            await start()

        asyncio.run_coroutine_threadsafe(operation(), self._loop).result()
