"""Ranks as actors of a real Ray."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aiodist import PeerLostError
from aiodist.rank_processes import RanksError
from tests.engines import ranks
from tests.limits import scaled

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _nothing_is_left(ray_cluster: Any) -> Any:
    """Every call gives back its actors and its placement group; Ray takes a moment over it."""
    yield
    limit = time.monotonic() + scaled(10)
    while True:
        table = ray_cluster.util.placement_group_table()
        states = {row["state"] for row in table.values()}
        free = ray_cluster.available_resources().get("CPU", 0)
        if states <= {"REMOVED"} and free == ray_cluster.cluster_resources()["CPU"]:
            return
        assert time.monotonic() < limit, (table, free)
        time.sleep(0.1)


@pytest.fixture
def engine(ray_cluster: Any) -> Any:
    from aiodist.integrations import ray

    return ray


def test_ranks_train_one_model(engine: Any) -> None:
    results = engine.run(ranks.train, n=3)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert results[0][1] == results[1][1] == results[2][1]


def test_a_coroutine_function_takes_an_object_of_the_store(engine: Any, ray_cluster: Any) -> None:
    value = ray_cluster.put(3)
    assert engine.run(ranks.add, value, n=2) == [(0, 6.0), (1, 6.0)]


def test_an_exception_is_told_by_rank(engine: Any) -> None:
    with pytest.raises(RanksError, match="ranks 1, 0 of 2 failed") as caught:
        engine.run(ranks.raise_on, 1, n=2)
    assert isinstance(caught.value.by_rank[1], KeyError)
    assert isinstance(caught.value.by_rank[0], PeerLostError)
    assert "raise_on" in "".join(caught.value.by_rank[1].__notes__)


def test_a_killed_rank_is_lost(engine: Any) -> None:
    with pytest.raises(RanksError) as caught:
        engine.run(ranks.die_on, 0, n=2)
    lost = caught.value.exceptions[0]
    assert isinstance(lost, PeerLostError)
    assert lost.rank == 0
    assert "rank 0 of 2 was lost" in str(lost)


def test_ray_starts_a_killed_rank_anew_and_it_rejoins(engine: Any) -> None:
    results = engine.run(ranks.survive, 1, n=3, max_restarts=1)
    counts = [float(ranks.STEPS)] * 3
    assert results == [(0, 0, counts), (1, 1, counts), (2, 0, counts)]


def test_resources_that_are_not_there_end_the_wait(engine: Any) -> None:
    with pytest.raises(TimeoutError, match="Ray has not had 9 times"):
        engine.run(ranks.train, n=9, placement_timeout=1)


def test_an_error_that_does_not_unpickle_is_no_lost_process(engine: Any) -> None:
    with pytest.raises(RanksError) as caught:
        engine.run(ranks.raise_unloadable, 1, n=2)
    error = caught.value.by_rank[1]
    assert not isinstance(error, PeerLostError)
    assert "UnloadableError" in str(error)
    assert "rank 1 of 2 has no result: its outcome did not arrive" in error.__notes__


def test_ranks_may_ask_for_memory(engine: Any) -> None:
    resources = {"CPU": 1, "memory": 50 << 20}
    assert engine.run(ranks.add, 1, n=2, resources=resources) == [(0, 2.0), (1, 2.0)]
