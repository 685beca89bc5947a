"""Memory of a device that several processes map, and copies in it that run in the background.

Imported where torch is. `CudaMemory` is the one for GPUs; all else sees `DeviceMemory` alone, and
works with whatever keeps its promises.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiodist.tensors.staging import IsOver

Offer = list[Any]
"""How one other process may map an area: numbers, bytes and booleans."""


class DeviceMemory(ABC):
    """What one rank has of it. An area is a flat uint8 tensor.

    ``where`` is equal on ranks that can map each other's areas. ``process`` differs between them,
    where one process cannot map its own; else it is empty.
    """

    where: str
    process: str

    @abstractmethod
    def allocate(self, nbytes: int) -> Tensor:
        """A new area; its address is a multiple of every element's size."""

    @abstractmethod
    def offer(self, area: Tensor) -> Offer:
        """For one other process to `open`, once: while it has the area, the memory stays."""

    @abstractmethod
    def open(self, offer: Offer) -> Tensor:
        """Another process's area. Raises where that cannot be. It is given back when dropped."""

    @abstractmethod
    def after_caller(self, tensor: Tensor) -> Callable[[], None]:
        """Call the result before the first `run`: that comes after what the caller's current
        stream of the tensor's device has to do by now.
        """

    @abstractmethod
    def hold(self, tensor: Tensor) -> None:
        """`run` will use it, which is on this device: its memory is not used anew before that is over."""

    @abstractmethod
    def run(self, job: Callable[[], None]) -> IsOver:
        """Begin what ``job()`` asks of torch, after all that has begun, and tell when it is over."""


class CudaMemory(DeviceMemory):
    """CUDA IPC, by the means that torch has for its multiprocessing.

    A handle opens the whole allocation in which torch's allocator has put the area. torch counts
    the uses in shared memory: each offer is one, which ends when the other process drops its
    storage; until then the memory is kept, even where this process has dropped it. So every process
    that opens needs an offer of its own, and one that is never opened keeps the memory until this
    process ends. An offer brings an event with it: what this process had begun by then is over
    before the other one's stream goes on. CUDA opens no handle in the process that made it.
    """

    def __init__(self, device: torch.device, host: str) -> None:
        """``host``: a name of this host that all its processes know."""
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
        self.where = f"{host}/{torch.cuda.get_device_properties(device).uuid}"
        self.process = str(os.getpid())

    def allocate(self, nbytes: int) -> Tensor:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def offer(self, area: Tensor) -> Offer:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            storage: Any = area.untyped_storage()  # Any's: torch has no types for this one
            _, *facts = storage._share_cuda_()
        return list(facts)

    def open(self, offer: Offer) -> Tensor:
        # The device's number is this process's own: the two may see different ones.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            storage = torch.UntypedStorage._new_shared_cuda(self._device.index, *offer)
            area = torch.empty(0, dtype=torch.uint8, device=self._device)
            return area.set_(storage, 0, (storage.nbytes(),), (1,))

    def after_caller(self, tensor: Tensor) -> Callable[[], None]:
        with torch.cuda.device(tensor.device):
            now = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            now.record()
        return lambda: self._stream.wait_event(now)

    def hold(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)

    def run(self, job: Callable[[], None]) -> IsOver:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            job()
            over = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            over.record()
        query: IsOver = over.query
        return query
