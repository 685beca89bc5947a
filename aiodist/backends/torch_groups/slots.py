"""Tensors and arrays as torch's groups take them: flat, contiguous, on the group's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aiodist.backends.native_messages import load_now
from aiodist.errors import InvalidUsageError
from aiodist.tensors import Buffer, buffer_of
from aiodist.tensors.torch_memory import dtype_of_tensor, refuse_overlaps


class Slot:
    """One tensor's memory. ``raw``: its bytes, a flat uint8 tensor, the owner's own memory or a copy.

    ``load`` fills the copy, ``store`` copies it back; both do nothing without a copy.
    """

    __slots__ = ("_buffer", "_owner", "_staged", "count", "dtype", "kind", "raw", "shape")

    def __init__(self, tensor: Any, name: str, device: str, *, writable: bool) -> None:
        self._buffer: Buffer | None = None
        self._owner: torch.Tensor | None = None
        self._staged: torch.Tensor | None = None
        if device == "cpu":
            self._open_cpu(buffer_of(tensor, name, writable=writable, load=False))
        else:
            self._open_device(tensor, name, device, writable)

    def _open_cpu(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.dtype, self.count, self.shape = buffer.dtype, buffer.count, buffer.shape
        self.kind = buffer.kind
        if not buffer.nbytes:
            self.raw = torch.empty(0, dtype=torch.uint8, device="cpu")
        elif buffer.view.readonly:  # a numpy array that is only read, which torch does not know
            self.raw = torch.frombuffer(bytearray(buffer.view), dtype=torch.uint8)
        else:
            self.raw = torch.frombuffer(buffer.view, dtype=torch.uint8)

    def _open_device(self, tensor: Any, name: str, device: str, writable: bool) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != device:
            where = tensor.device if isinstance(tensor, torch.Tensor) else "the CPU"
            raise InvalidUsageError(
                f"{name} is on {where}, and this group's backend serves {device} tensors: pass "
                f'{name}.to("{device}"), or make a group with a backend for each device, such as '
                '"cpu:aiodist,cuda:nccl"'
            )
        self.dtype, owner = dtype_of_tensor(tensor, name), tensor.detach()
        self.count, self.shape = owner.numel(), tuple(owner.shape)
        self.kind = "torch"
        if not owner.is_contiguous() or owner.is_conj() or owner.is_neg():
            if writable:
                refuse_overlaps(owner, name)
            self._owner = owner
            self._staged = torch.empty(owner.shape, dtype=owner.dtype, device=owner.device)
            owner = self._staged
        # By strides, not by reshape: that keeps the stride of a single element, which bytes may not have.
        self.raw = owner.as_strided((self.count,), (1,)).view(torch.uint8)

    @property
    def nbytes(self) -> int:
        return self.raw.numel()

    @property
    def extent(self) -> tuple[int, int] | None:
        """As `Buffer.extent`."""
        if self._buffer is not None:
            return self._buffer.extent
        if self._staged is not None or not self.count:
            return None
        start = self.raw.data_ptr()
        return start, start + self.nbytes

    @property
    def device(self) -> torch.device:
        return self.raw.device

    @property
    def memory(self) -> list[torch.Tensor]:
        """The tensors that `load`, `store` and users of ``raw`` touch."""
        return [self.raw] if self._owner is None else [self.raw, self._owner]

    def stage(self) -> None:
        """Let ``raw`` be a copy, of memory that others write before it is read. Not for outputs."""
        if self._staged is None:
            self._owner, self._staged = self.raw, torch.empty_like(self.raw)
            self.raw = self._staged

    def load(self) -> None:
        if self._buffer is not None and self._buffer.is_staged:
            load_now(self._buffer)
        if self._staged is not None and self._owner is not None:
            self._staged.copy_(self._owner)

    def store(self) -> None:
        if self._buffer is not None:
            self._buffer.write_back()
        elif self._staged is not None and self._owner is not None:
            self._owner.copy_(self._staged)


def device_of(slots: Sequence[Slot]) -> torch.device:
    """Return the device of all slots. Raises InvalidUsageError if they are on several."""
    first, *others = (slot.device for slot in slots)
    for other in others:
        if other != first:
            raise InvalidUsageError(
                f"one tensor is on {first} and another on {other}; all tensors of an operation "
                "have to be on one device: pass tensor.to(that one)"
            )
    return first
