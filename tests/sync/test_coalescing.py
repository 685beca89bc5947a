"""Collectives in a ``with _coalescing_manager()`` end together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist

Run = Callable[..., list[Any]]


def test_coalesced_operations_have_completed_after_the_block(run_threads: Run) -> None:
    def main(rank: int) -> None:
        sums = [np.full(n, float(rank)) for n in (1, 5, 300_000)]
        gathered = np.zeros(4)
        with dist._coalescing_manager() as manager:
            for each in sums:
                assert dist.all_reduce(each) is None
            work = dist.all_gather_into_tensor(gathered, np.full(2, float(rank)), async_op=True)
            assert work is not None
            assert len(manager.works) == 4
        assert work.is_completed()
        assert all((each == 1).all() for each in sums)
        assert gathered.tolist() == [0, 0, 1, 1]
        dist.barrier()

    run_threads(2, main)


def test_a_receive_inside_names_the_sender_where_it_is_known(run_threads: Run) -> None:
    def main(rank: int) -> None:
        data = np.full(3, float(rank))
        with dist._coalescing_manager():
            if rank == 0:
                dist.send(data, 1)
                dist.send(data, 1)
            else:
                others = np.ones(3)
                assert dist.recv(data, 0) == 0
                assert dist.recv(others) == -1  # the sender is not known yet
        assert (data == 0).all()
        assert rank == 0 or (others == 0).all()
        dist.barrier()

    run_threads(2, main)


def test_what_returns_an_object_or_a_new_tensor_waits_for_it_inside_too(run_threads: Run) -> None:
    def main(rank: int) -> None:
        data = np.full(3, float(rank))
        with dist._coalescing_manager():
            dist.all_reduce(data)
            assert dist.broadcast_object("a" if rank == 0 else None, 0) == "a"
            assert dist.broadcast_new(np.ones(2) if rank == 0 else None, 0).tolist() == [1, 1]
            assert [each.tolist() for each in dist.all_gather_new(np.full(1, rank))] == [[0], [1]]
            if rank == 0:
                dist.send_object("b", 1)
                dist.send(np.ones(2), 1)
            else:
                assert dist.recv_object(0) == ("b", 0)
                assert dist.recv(None, 0).tensor.tolist() == [1, 1]
        assert (data == 1).all()
        dist.barrier()

    run_threads(2, main)


def test_with_async_ops_the_caller_waits(run_threads: Run) -> None:
    def main(rank: int) -> None:
        data = np.full(3, float(rank))
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(data)
            if rank == 1:
                assert not manager.works[0].is_completed() or (data == 1).all()
        manager.wait()
        manager.wait()  # nothing is left
        assert (data == 1).all()

    run_threads(2, main)


def test_the_first_error_is_raised_when_all_have_ended(run_threads: Run) -> None:
    def main(rank: int) -> None:
        good = np.ones(1)

        def two() -> None:
            with dist._coalescing_manager():
                dist.all_reduce(np.ones(2 + rank))
                dist.all_reduce(good)

        with pytest.raises(dist.CollectiveMismatchError, match="operation 0"):
            two()
        assert good[0] == 2
        with pytest.raises(KeyError), dist._coalescing_manager():
            raise KeyError("the caller's")
        dist.barrier()

    run_threads(2, main)


def test_a_cancelled_operation_does_not_hide_one_that_is_under_way(run_threads: Run) -> None:
    def main(rank: int) -> None:
        data = np.full(1, 1.0)
        if rank == 0:
            with dist._coalescing_manager(async_ops=True) as manager:
                never = dist.irecv(np.ones(1), 1, tag=5)
                dist.all_reduce(data)
            assert never is not None
            never.cancel()
            with pytest.raises(asyncio.CancelledError):
                manager.wait()
        else:
            time.sleep(0.05)
            dist.all_reduce(data)
        assert data[0] == 2

    run_threads(2, main)
