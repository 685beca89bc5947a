"""A thread that plays the copy engine of a device, so that staging runs on machines without one.

The copies are real and happen in the background, one after the other, as a stream's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from aiodist.tensors import torch_memory
from aiodist.tensors.staging import Staging


class Engine:
    """Copies in the background, and what it has been asked for."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.asked: list[tuple[str, int]] = []

    def stage(self, tensor: torch.Tensor) -> Staging:
        engine = self

        class Threaded(Staging):
            def load(self) -> Callable[[], bool]:
                engine.asked.append(("load", self.host.numel()))
                return super().load()

            def store(self) -> Callable[[], bool]:
                engine.asked.append(("store", self.host.numel()))
                return super().store()

            def _allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
                raw = torch.full((count * dtype.itemsize,), 0xA5, dtype=torch.uint8)
                return raw.view(dtype)

            def _copy(self, target: torch.Tensor, source: torch.Tensor) -> Callable[[], bool]:
                copying: Future[None] = engine.pool.submit(torch_memory.assign, target, source)

                def is_over() -> bool:
                    return copying.done() and copying.result() is None

                return is_over

        return Threaded(tensor)


@contextmanager
def copied_by_thread(
    is_there: Callable[[torch.Tensor], bool] = lambda _: True,
) -> Iterator[Engine]:
    """Torch tensors are taken for a device's. ``is_there``: which of them; all where it is not given."""
    open_on_host = torch_memory.open_tensor
    with ThreadPoolExecutor(1, thread_name_prefix="copies") as pool:
        made = Engine(pool)

        def open_tensor(tensor: Any, name: str, writable: bool, load: bool) -> Any:
            if not is_there(tensor):
                return open_on_host(tensor, name, writable, load)
            return torch_memory.open_staged(tensor, name, writable, load, made.stage)

        with patch.object(torch_memory, "open_tensor", open_tensor):
            yield made
