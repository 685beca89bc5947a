"""Ranks on the workers of a real LocalCluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiodist import InvalidUsageError, PeerLostError
from aiodist.rank_processes import RanksError
from tests.engines import ranks

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]


@pytest.fixture
def engine(dask_client: Any) -> Any:
    from aiodist.integrations import dask

    return dask


def test_ranks_train_one_model(engine: Any, dask_client: Any) -> None:
    results = engine.run(dask_client, ranks.train)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert results[0][1] == results[1][1] == results[2][1]


def test_futures_go_in_and_come_out(engine: Any, dask_client: Any) -> None:
    value = dask_client.submit(int, 3)
    futures = engine.submit(dask_client, ranks.add, value)
    pairs = dask_client.gather(dask_client.map(sorted, futures))
    assert pairs == [sorted((rank, 9.0)) for rank in range(3)]


def test_ranks_work_on_the_arrays_of_their_workers(engine: Any, dask_client: Any) -> None:
    workers = list(dask_client.nthreads())
    parts = [np.arange(number, number + 4) for number in range(5)]
    futures = [
        dask_client.submit(np.asarray, part, workers=[workers[number % 2]])
        for number, part in enumerate(parts)
    ]
    results = engine.run(dask_client, ranks.sum_blocks, data=futures)
    assert sorted(count for count, _ in results) == [0, 2, 3]
    assert {total for _, total in results} == {float(sum(part.sum() for part in parts))}


def test_data_of_other_workers_is_refused(engine: Any, dask_client: Any) -> None:
    first, second, _ = dask_client.nthreads()
    there = [dask_client.submit(np.ones, 3, workers=[first])]
    with pytest.raises(InvalidUsageError, match="in the memory of no chosen worker"):
        engine.submit(dask_client, ranks.sum_blocks, data=there, workers=[second])


def test_an_exception_is_told_by_rank(engine: Any, dask_client: Any) -> None:
    with pytest.raises(RanksError) as caught:
        engine.run(dask_client, ranks.raise_on, 1)
    assert isinstance(caught.value.exceptions[0], KeyError)
    assert isinstance(caught.value.by_rank[0], PeerLostError)


def test_a_killed_worker_is_lost_and_the_next_call_has_another(
    engine: Any, dask_client: Any
) -> None:
    with pytest.raises(RanksError) as caught:
        engine.run(dask_client, ranks.die_on, 2)
    lost = caught.value.exceptions[0]
    assert isinstance(lost, PeerLostError)
    assert lost.rank == 2
    dask_client.wait_for_workers(3)
    assert engine.run(dask_client, ranks.add, 1) == [(rank, 3.0) for rank in range(3)]
