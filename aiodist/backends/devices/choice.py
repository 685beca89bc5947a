"""Backend "aiodist" on a machine with a GPU. Imports torch at the first CUDA tensor and not before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from functools import partial

from aiodist.backends.mixed import MixedBackend
from aiodist.backends.native import NativeBackend
from aiodist.groups.collective_backend import CollectiveBackend
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Tensor
from aiodist.groups.switches import switch_from
from aiodist.links.host import host_id
from aiodist.types import Backend

CUDA = "cuda"

VARIABLE = "AIODIST_CUDA_IPC"
"""0: no memory is shared; CUDA tensors go through the host on all ranks, if any rank says so."""


class NativeOnDevices(MixedBackend):
    """The native backend, with a `DeviceBackend` from the first CUDA tensor on."""

    def __init__(self, group: GroupEngine) -> None:
        super().__init__(Backend.AIODIST, {"cpu": NativeBackend(group)})
        self._group = group

    def backend_of(self, tensor: Tensor) -> CollectiveBackend:
        kind = getattr(getattr(tensor, "device", None), "type", "cpu")
        if kind != CUDA:
            return self._first  # it raises for tensors of other devices
        if CUDA not in self.by_device:
            from aiodist.backends.devices.backend import DeviceBackend
            from aiodist.tensors.device_memory import CudaMemory

            make_memory = partial(CudaMemory, host=host_of(os.environ))
            self._serve(CUDA, DeviceBackend(self._group, make_memory, CUDA))
        return self.by_device[CUDA]


def host_of(environ: Mapping[str, str]) -> str:
    """Return a name of the host whose ranks may share devices with this one, unique if sharing is off.

    Raises InvalidUsageError for an invalid value.
    """
    return secrets.token_hex(8) if switch_from(VARIABLE, environ) is False else host_id()
