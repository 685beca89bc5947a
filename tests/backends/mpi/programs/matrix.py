"""Every operation against numpy, over the cases of `tests.operations.design`, on this job's ranks."""

from __future__ import annotations

import torch

import aiodist as dist
from tests.operations.batch import complain, run_batch
from tests.operations.design import DTYPES, MOVING, REDUCING, cases


async def matrix() -> None:
    """All cases of this world's size; the transport is MPI's affair."""
    torch.set_num_threads(1)
    number, size = dist.get_rank(), dist.get_world_size()
    batch = [case for case in cases() if case.size == size]
    assert {case.operation for case in batch} == {*MOVING, *REDUCING}
    assert {case.dtype for case in batch} == set(DTYPES)
    complain(await run_batch(number, batch))
