"""How long gradients were on their way, and how many bytes of them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

# No "from __future__ import annotations": DDP compares the annotations of a hook with its classes.


class Traffic:
    """Counts bytes, and the seconds in which at least one operation was under way, waiting included."""

    def __init__(self) -> None:
        self.bytes = 0
        """What this rank gave to the operations; an algorithm may send more or less."""
        self.seconds: list[float] = []
        """The seconds of each training step."""
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        self._spent = 0.0  # in the step under way

    @contextmanager
    def timed(self, number_of_bytes: int = 0, steps: int = 1) -> Iterator[None]:
        """Count the time of the block, and the bytes that it gives to operations.

        ``steps``: training steps since the last block, of which the last one communicates.
        """
        self._begin(number_of_bytes)
        try:
            yield
        finally:
            self._end()
            self._step_over(steps)

    def measured(
        self,
        hook: Callable[[Any, GradBucket], Future[Tensor]] = allreduce_hook,
        wire_bytes: int | None = None,
    ) -> Callable[[Any, GradBucket], Future[Tensor]]:
        """Return the hook of DistributedDataParallel, counting; by default the one that it has anyway.

        ``wire_bytes``: of a number on the wire, where the hook makes it smaller.
        """

        def measured_hook(state: Any, bucket: GradBucket) -> Future[Tensor]:
            buffer = bucket.buffer()
            is_last = bucket.is_last()
            self._begin(buffer.numel() * (wire_bytes or buffer.itemsize))

            def done(future: Future[Tensor]) -> Tensor:
                self._end()
                if is_last:
                    self._step_over()
                return future.value()

            return hook(state, bucket).then(done)

        return measured_hook

    def _begin(self, number_of_bytes: int) -> None:
        with self._lock:
            self.bytes += number_of_bytes
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1

    def _end(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._spent += time.perf_counter() - self._since

    def _step_over(self, steps: int = 1) -> None:
        with self._lock:
            self.seconds += [0.0] * (steps - 1) + [self._spent]
            self._spent = 0.0
