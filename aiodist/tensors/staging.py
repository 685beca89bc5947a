"""Copies in host memory of tensors that the CPU cannot read, filled and brought back in the background.

Imported where torch is. What is about CUDA is in `CudaStaging` alone: all else sees copies in the
background, and a question whether a copy is over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

IsOver = Callable[[], bool]
"""Whether a copy has ended. Cheap, and never waits."""


class Staging(ABC):
    """A flat copy of ``owner`` in host memory.

    ``host``: that copy, with nothing in it until `load`.
    """

    def __init__(self, owner: Tensor) -> None:
        self._owner = owner.detach()
        plain = self._owner.is_contiguous() and not owner.is_conj() and not owner.is_neg()
        self._twin = None if plain else self._contiguous()
        self._flat = (self._owner if self._twin is None else self._twin).reshape(-1)
        self.host = self._allocate(owner.numel(), owner.dtype)

    def load(self) -> IsOver:
        """Begin to copy the owner into ``host``."""
        return self._copy(self.host, self._flat)

    def store(self) -> IsOver:
        """Begin to copy ``host`` into the owner."""
        is_over = self._copy(self._flat, self.host)
        return is_over if self._twin is None else self._copy(self._owner, self._twin)

    def _contiguous(self) -> Tensor:
        return self._owner.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()

    @abstractmethod
    def _allocate(self, count: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device copies from and to without help."""

    @abstractmethod
    def _copy(self, target: Tensor, source: Tensor) -> IsOver:
        """Begin a copy, after those that have begun."""


class CudaStaging(Staging):
    """Pinned memory, and a stream of its own for the copies.

    The first copy comes after what the caller's current stream had to do at the call.
    """

    def __init__(self, owner: Tensor) -> None:
        with torch.cuda.device(owner.device):
            super().__init__(owner)
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
            self._stream.wait_stream(torch.cuda.current_stream())
            # Its memory is not reused before the copies are over, whatever the caller drops.
            self._flat.record_stream(self._stream)
            self._owner.record_stream(self._stream)

    def _allocate(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)

    def _copy(self, target: Tensor, source: Tensor) -> IsOver:
        with (
            torch.cuda.device(self._owner.device),
            torch.cuda.stream(self._stream),
            torch.inference_mode(target.is_inference()),
        ):
            target.copy_(source, non_blocking=True)
            over = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            over.record()
        query: IsOver = over.query
        return query
