"""Which tensors bring in what shares a device."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.backends import registry
from aiodist.backends.devices.backend import DeviceBackend
from aiodist.backends.devices.choice import NativeOnDevices, host_of
from aiodist.backends.native import NativeBackend
from aiodist.groups.operation import AllReduce
from aiodist.links.host import host_id
from aiodist.testing.in_process import run_ranks
from tests.backends.at_once import native
from tests.engine.conftest import engine_of


@pytest.mark.parametrize("has_driver", [False, True])
async def test_a_machine_with_a_gpu_driver_gets_the_backend_for_devices(
    has_driver: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    if has_driver:
        driver.touch()
    monkeypatch.setattr(registry, "_DRIVERS", ("/nowhere", str(driver)))

    async def body(rank: int) -> None:
        group = dist.group.WORLD
        assert type(engine_of(group).backend) is (NativeOnDevices if has_driver else NativeBackend)
        assert dist.get_backend() == "aiodist"
        tensor, array = torch.ones(3), np.ones(3)
        await dist.all_reduce(tensor)
        await dist.all_reduce(array)
        assert tensor.tolist() == array.tolist() == [2, 2, 2]
        objects = [rank]
        await dist.broadcast_object_list(objects, 1)
        assert objects == [1]
        with pytest.raises(dist.InvalidUsageError, match="is on meta"):
            dist.all_reduce(torch.zeros(1, device="meta"))
        assert AllReduce(tensor, dist.ReduceOp.SUM).key() in native(group).plans.plans

    await run_ranks(2, body)


async def test_the_device_backend_is_made_at_the_first_cuda_tensor() -> None:
    async def body(rank: int) -> None:
        backend = NativeOnDevices(engine_of())
        assert isinstance(backend.backend_of(torch.ones(1)), NativeBackend)
        cuda = SimpleNamespace(device=SimpleNamespace(type="cuda"))
        made = backend.backend_of(cuda)
        assert isinstance(made, DeviceBackend)
        assert backend.backend_of(cuda) is made
        backend.close()

    await run_ranks(1, body)
    assert "aiodist.tensors.device_memory" in sys.modules


def test_one_rank_may_say_that_nothing_is_shared() -> None:
    assert host_of({}) == host_of({"AIODIST_CUDA_IPC": "1"}) == host_id()
    alone = {host_of({"AIODIST_CUDA_IPC": "0"}) for _ in range(3)}
    assert len(alone | {host_id()}) == 4
    with pytest.raises(dist.InvalidUsageError, match="AIODIST_CUDA_IPC must be 0 or 1, not 'no'"):
        host_of({"AIODIST_CUDA_IPC": "no"})
