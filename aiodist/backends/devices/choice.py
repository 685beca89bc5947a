"""Backend "aiodist" on a machine with a GPU. Imports torch at the first CUDA tensor and not before."""

from __future__ import annotations

from typing import Any

from aiodist.backends.mixed import MixedBackend
from aiodist.backends.native import NativeBackend
from aiodist.groups.backend import CollectiveBackend, Tensor
from aiodist.groups.process_group import ProcessGroup
from aiodist.mesh.host import host_id
from aiodist.types import Backend

CUDA = "cuda"


class NativeOnDevices(MixedBackend):
    """CPU tensors go as everywhere; for CUDA tensors there is a `DeviceBackend` from the first on."""

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(Backend.AIODIST, {"cpu": NativeBackend(group)})
        self._group = group

    def _for(self, tensor: Tensor) -> CollectiveBackend:
        kind = getattr(getattr(tensor, "device", None), "type", "cpu")
        if kind == CUDA and CUDA not in self._by_device:
            self._serve(CUDA, self._make())
        return super()._for(tensor)

    def _make(self) -> CollectiveBackend:
        from aiodist.backends.devices.backend import DeviceBackend
        from aiodist.tensors.device_memory import CudaMemory

        def make_memory(device: Any) -> CudaMemory:
            return CudaMemory(device, host_id())

        return DeviceBackend(self._group, make_memory, CUDA)
