"""Tensors as torch's groups take them, on the device "meta", which has shapes and no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.backends.torch_groups.kinds import Gloo
from aiodist.backends.torch_groups.slots import Slot, device_of
from aiodist.testing.in_process import run_ranks
from tests.engine.conftest import engine_of


def on(device: str, *shape: int) -> Slot:
    return Slot(torch.empty(shape, device=device), "tensor", device, writable=False)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_bytes_of_a_strided_tensor_are_flat(count: int) -> None:
    tensor = torch.empty(2 * count, dtype=torch.float64, device="meta")[::2]
    raw = Slot(tensor, "tensor", "meta", writable=True).raw
    assert raw.dtype == torch.uint8
    assert raw.shape == (8 * count,)
    assert raw.is_contiguous()


def test_the_tensors_of_an_operation_are_on_one_device() -> None:
    assert device_of([on("meta", 1), on("meta", 2)]) == torch.device("meta")
    with pytest.raises(dist.InvalidUsageError, match=r"one tensor is on cpu and another on meta"):
        device_of([on("cpu", 1), on("meta", 2)])


class Elsewhere(Gloo):
    """Tensors on the CPU, where the group's own device is another one."""

    def place(self, chosen: Any) -> torch.device:
        return torch.device("meta")


async def test_a_rank_has_one_device_in_a_group() -> None:
    async def body(rank: int) -> None:
        group = await dist.new_group(backend="torch:gloo")
        engine_of(group).backend._messages.kind = Elsewhere()
        await dist.all_reduce(torch.ones(2), group=group)  # the first tensor says where
        await dist.barrier(group)
        chosen = await dist.new_group(backend="torch:gloo", device_id=0)
        engine_of(chosen).backend._messages.kind = Elsewhere()
        said = "the tensor is on cpu, and this rank's part in group .* is on meta"
        for call in (
            lambda: dist.all_reduce(torch.ones(2), group=chosen),
            lambda: dist.isend(torch.ones(2), 1 - rank, chosen),
            lambda: dist.irecv(torch.ones(2), 1 - rank, chosen),
            lambda: dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, torch.ones(2), 1 - rank, chosen)]
            ),
        ):
            with pytest.raises(dist.InvalidUsageError, match=said):
                call()

    await run_ranks(2, body)
