"""Memory that one collective of a training step works on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aiodist.errors import InvalidUsageError
from aiodist.groups.work import Work
from aiodist.training.parameters import pack, unpack


class Row:
    """A flat tensor, and the operation on it: a sum over the ranks, or a broadcast."""

    def __init__(self, flat: torch.Tensor, source: int | None = None) -> None:
        """``source``: the group rank whose values go to all; None for the sum over the ranks."""
        self.flat = flat
        self.source = source
        self.work: Work[None] | None = None
        self.error: Exception | None = None
        """Why the operation could not start, or None."""

    def failure(self) -> BaseException | None:
        """Return the error that the operation has ended with, or None. Call it after the end."""
        if self.error is not None:
            return self.error
        if self.work is None:
            return InvalidUsageError(
                "backward() was interrupted as it sent gradients, so the ranks may be at different "
                "operations: call shrink() on all ranks, and make a reducer for the new group"
            )
        return self.work.exception()


class BufferRow(Row):
    """Buffers of a model, on their way from one rank to all."""

    def __init__(self, buffers: Sequence[torch.Tensor], source: int) -> None:
        """``buffers``: of one dtype and device, of equal shapes on all ranks."""
        super().__init__(pack(buffers), source)
        self._buffers = buffers

    def hand_out(self) -> None:
        """Copy what has come into the buffers."""
        unpack(self._buffers, self.flat)


class ActiveReducers(Row):
    """A number for each rank: 0 after its last step, else the number of the reducer that it uses.

    The ranks add up these numbers before the first bucket of a step. So a rank without data
    knows whether, and with which reducer, the others make another step.
    """

    def __init__(self, n_ranks: int, device: torch.device, own_rank: int, number: int) -> None:
        """``number``: of this rank's reducer, from 1 on; 0 if it has no data left."""
        super().__init__(torch.zeros(n_ranks, dtype=torch.int32, device=device))
        self.flat[own_rank].fill_(number)

    def numbers(self) -> list[int]:
        """Return the number of each group rank. Call it after the sum."""
        return [int(number) for number in self.flat.tolist()]
