"""Recovery through the blocking door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist

Run = Callable[..., list[Any]]


def test_shrink_after_a_revocation(run_threads: Run) -> None:
    def main(rank: int) -> None:
        if rank == 1:
            dist.revoke()
        else:
            with pytest.raises(dist.GroupRevokedError, match="rank 1"):
                dist.recv(np.zeros(1), 1)
        group = dist.shrink(timeout=20)
        assert (list(group.ranks), group.generation) == ([0, 1, 2], 1)
        data = np.full(3, float(rank))
        dist.all_reduce(data)
        assert (data == 3).all()
        with pytest.raises(dist.InvalidUsageError, match="outside any event loop"):
            group.shrink()

    run_threads(3, main)
