"""Memory that operations in the background use is not used anew before they are over."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from aiodist.tensors.device_memory import CudaMemory
from aiodist.tensors.staging import CudaStaging

COUNT = 1 << 20
STEPS = 50

pytestmark = pytest.mark.gpu


def fill(tensor: torch.Tensor) -> None:
    for _ in range(STEPS):
        tensor.fill_(7)


def check_memory_of_the_next_tensors() -> None:
    """They are as long as the one that was dropped, so one of them has its memory."""
    others = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert all(torch.all(other == -1).item() for other in others)


def test_memory_that_is_held_for_a_stream() -> None:
    memory = CudaMemory(torch.device("cuda", 0), "host")
    tensor = torch.ones(COUNT, device="cuda")
    memory.after_caller(tensor)()
    memory.hold(tensor)
    memory.run(partial(fill, tensor))
    del tensor
    check_memory_of_the_next_tensors()


@pytest.mark.parametrize("stride", [1, 2])
def test_memory_that_is_staged(stride: int) -> None:
    whole = torch.ones(COUNT * stride, device="cuda")
    staging = CudaStaging(whole[::stride])
    staging.host.fill_(7)
    for _ in range(STEPS):
        staging.store()
    del whole, staging
    check_memory_of_the_next_tensors()
