"""Stands for ``torch.cuda`` where there is no device: the current stream of each thread."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any


class Cuda:
    """Streams by thread, as CUDA has them; stands in for CUDA on a machine without a GPU."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.used = True

    def is_initialized(self) -> bool:
        return self.used

    def current_stream(self) -> str:
        return getattr(self.local, "stream", "default")

    @contextmanager
    def stream(self, stream: str) -> Any:
        before, self.local.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self.local.stream = before
