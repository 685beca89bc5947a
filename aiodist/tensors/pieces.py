"""Several tensors' bytes as one row of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor


class Pieces:
    """Flat uint8 tensors, one after the other; ``nbytes`` together."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self.nbytes = sum(tensor.numel() for tensor in tensors)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """What holds bytes ``start`` to ``stop``, part by part, each with its place after ``start``."""
        before = 0
        for tensor in self._tensors:
            low, high = max(start - before, 0), min(stop - before, tensor.numel())
            if low < high:
                yield before + low - start, tensor[low:high]
            before += tensor.numel()
