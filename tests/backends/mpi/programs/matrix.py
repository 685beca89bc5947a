"""Every operation against numpy, over the cases of `tests.operations.design`, on this job's ranks."""

from __future__ import annotations

import torch

import aiodist as dist
from tests.operations.design import cases
from tests.operations.programs import PROGRAMS, Rank

SHOWN = 30


async def matrix() -> None:
    """All cases of this world's size; the transport is MPI's affair."""
    torch.set_num_threads(1)
    number, size = dist.get_rank(), dist.get_world_size()
    batch = [case for case in cases() if case.size == size]
    assert batch
    wrong: list[str] = []
    for case in batch:
        rank = Rank(case, number)
        try:
            await PROGRAMS[case.operation](rank)
        except Exception as error:
            error.add_note(f"{case}: rank {number}")
            raise
        wrong.extend(rank.wrong())
    assert not wrong, "\n".join([f"{len(wrong)} things are wrong:", *wrong[:SHOWN]])
