"""How one batch ended on each rank, as the leader sees it."""

from __future__ import annotations

import pytest

import aiodist as dist
from aiodist.service.outcomes import Outcome, Round


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        (dist.WorkerError("bad", rank=1, kind="ValueError"), ValueError("bad")),
        (dist.InvalidUsageError("bad"), dist.InvalidUsageError("bad")),
    ],
)
async def test_an_error_that_all_ranks_raise_is_that_of_the_leader(theirs, mine):
    """Also where another rank was faster: the caller catches one class, whatever rank comes first."""
    batch = Round([0, 1])
    batch.ended(Outcome(1, 0, theirs))
    batch.mine = Outcome(0, 0, mine)
    batch.ended(batch.mine)
    assert batch.error is mine


async def test_an_error_that_follows_from_that_of_a_worker_does_not_hide_it():
    batch = Round([0, 1])
    theirs = dist.WorkerError("bad", rank=1, kind="ValueError")
    batch.ended(Outcome(1, 0, theirs))
    batch.mine = Outcome(0, 0, RuntimeError("the batch failed"))
    batch.ended(batch.mine)
    assert batch.error is theirs
