"""Memory that processes of this host map, in the place of a GPU's; a thread plays the copy engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from aiodist.shm.segment import NONCE_BYTES, Segment
from aiodist.tensors.device_memory import DeviceMemory


class MemfdMemory(DeviceMemory):
    """Areas are memfd segments, offered by their descriptions, opened through ``/proc``."""

    def __init__(self, where: str = "here", process: str = "") -> None:
        self.where = where
        self.process = process
        self.opened: list[str] = []
        self.held: list[torch.Tensor] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._segments: list[Segment] = []

    def allocate(self, nbytes: int) -> torch.Tensor:
        segment = Segment.create(nbytes + 2 * NONCE_BYTES)
        self._segments.append(segment)
        return self._area(segment, nbytes)

    def offer(self, area: torch.Tensor) -> list[Any]:
        return [self._segments[-1].description, area.numel()]

    def open(self, offer: Sequence[Any]) -> torch.Tensor:
        description, nbytes = offer
        self.opened.append(description)
        return self._area(Segment.open(description), nbytes)

    def _area(self, segment: Segment, nbytes: int) -> torch.Tensor:
        return torch.frombuffer(segment.view[NONCE_BYTES : NONCE_BYTES + nbytes], dtype=torch.uint8)

    def after_caller(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: None

    def hold(self, tensor: torch.Tensor) -> None:
        self.held.append(tensor)

    def run(self, job: Callable[[], None]) -> Callable[[], bool]:
        running: Future[None] = self._pool.submit(job)
        return lambda: running.done() and running.result() is None

    def close(self) -> None:
        self._pool.shutdown()
        for segment in self._segments:
            segment.close()
