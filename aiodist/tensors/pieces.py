"""Several tensors' bytes as one row of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Addresses = NDArray[np.int64]


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

    def overwrites(self, read: Pieces, position: int) -> bool:
        """Whether writing this row from its first byte on changes a byte of ``read`` before its turn.

        Both go forward alike: byte k here is written when byte ``position`` + k of ``read`` has been read.
        """
        at, start, end = self._address_ranges()
        other_at, other_start, other_end = read._address_ranges()
        shared = np.less.outer(start, other_end) & np.greater.outer(end, other_start)
        early = np.greater.outer(start - at - position, other_start - other_at)
        return bool((shared & early).any())

    def _address_ranges(self) -> tuple[Addresses, Addresses, Addresses]:
        """Return of each tensor that is not empty the place in the row, and the addresses of both ends."""
        lengths = [tensor.numel() for tensor in self._tensors]
        ends = list(accumulate(lengths))
        rows = [
            (end - length, tensor.data_ptr(), tensor.data_ptr() + length)
            for tensor, length, end in zip(self._tensors, lengths, ends, strict=True)
            if length
        ]
        at, start, end = np.array(rows, np.int64).reshape(-1, 3).T
        return at, start, end
