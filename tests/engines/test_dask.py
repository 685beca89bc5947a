"""Ranks on the workers of a real LocalCluster."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

from aiodist import InvalidUsageError, PeerLostError
from aiodist.rank_processes import RanksError
from tests.engines import ranks
from tests.limits import scaled

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


def test_jobs_with_one_run_id_are_different_jobs(engine: Any, dask_client: Any) -> None:
    env = {"AIODIST_RUN_ID": "of-the-test"}
    first = engine.submit(dask_client, ranks.add, 1, env=env)
    second = engine.submit(dask_client, ranks.add, 2, env=env)
    assert dask_client.gather(first) == [(rank, 3.0) for rank in range(3)]
    assert dask_client.gather(second) == [(rank, 6.0) for rank in range(3)]


def test_a_result_that_cannot_travel_is_told_by_rank(engine: Any, dask_client: Any) -> None:
    with pytest.raises(RanksError) as caught:
        engine.run(dask_client, ranks.return_unsendable, 1)
    assert list(caught.value.by_rank) == [1]
    assert caught.value.results == {0: None, 2: None}
    assert "the result of rank 1 of 3 did not arrive" in caught.value.by_rank[1].__notes__


def test_workers_are_checked(engine: Any, dask_client: Any) -> None:
    first, *_ = dask_client.nthreads()
    with pytest.raises(InvalidUsageError, match="not the string"):
        engine.submit(dask_client, ranks.add, 1, workers=first)
    with pytest.raises(InvalidUsageError, match="is no address of a worker"):
        engine.submit(dask_client, ranks.add, 1, workers=["tcp://127.0.0.1:1"])
    with pytest.raises(InvalidUsageError, match="named twice"):
        engine.submit(dask_client, ranks.add, 1, workers=[first, first])


def test_data_that_failed_or_is_no_future_is_refused(engine: Any, dask_client: Any) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        engine.submit(dask_client, ranks.sum_blocks, data=[dask_client.submit(int, "x")])
    with pytest.raises(InvalidUsageError, match="data must be futures"):
        engine.submit(dask_client, ranks.sum_blocks, data=[np.ones(3)])


def test_the_port_of_a_rank_that_never_began_is_given_back(engine: Any, dask_client: Any) -> None:
    from distributed import Event

    first, *_ = dask_client.nthreads()
    before = dask_client.run(_held_ports, workers=[first])[first]
    free = Event(client=dask_client)
    busy = dask_client.submit(_wait_for, free.name, workers=[first], pure=False)
    futures = engine.submit(dask_client, ranks.fail_without_meeting, 1)
    assert dask_client.run(_held_ports, workers=[first])[first] == before + 1
    dask_client.cancel(futures)
    free.set()
    busy.result()
    until = time.monotonic() + scaled(20)
    while dask_client.run(_held_ports, workers=[first])[first] != before:
        assert time.monotonic() < until, "the port is still held"
        time.sleep(0.1)


def test_the_port_is_free_after_a_call_that_never_begins(engine: Any, dask_client: Any) -> None:
    first, *_ = dask_client.nthreads()
    before = dask_client.run(_held_ports, workers=[first])[first]
    with pytest.raises(TypeError, match="serialize"):
        engine.run(dask_client, ranks.add, threading.Lock())
    with pytest.raises(RanksError):
        engine.run(dask_client, ranks.add, dask_client.submit(int, "no number", pure=False))
    until = time.monotonic() + scaled(20)
    while dask_client.run(_held_ports, workers=[first])[first] != before:
        assert time.monotonic() < until, "the port is still held"
        time.sleep(0.1)


def _wait_for(event: str) -> None:
    from distributed import Event

    Event(event).wait()


def _held_ports() -> int:
    """Return how many TCP sockets of this process have a port, and neither listen nor are connected."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            each = socket.socket(fileno=os.dup(int(fd)))
        except OSError:  # no socket
            continue
        with each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1]:
                listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                try:
                    each.getpeername()
                except OSError:
                    count += not listens
    return count


def test_a_worker_of_several_threads_carries_one_rank(engine: Any) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        (_, error, total), other = engine.run(client, ranks.call_from_rank_0)
    assert re.findall("this worker carries rank (.) of job", error) == ["0", "1"]
    assert total == 2
    assert other == (1, "", 2.0)


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
