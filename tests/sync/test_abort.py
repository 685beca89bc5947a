"""A thread that waits for an operation is freed by another one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist

Run = Callable[..., list[Any]]


@pytest.mark.parametrize("how", ["group.abort", "group.revoke", "abort_process_group"])
def test_another_thread_frees_a_blocked_one(run_threads: Run, how: str) -> None:
    def main(rank: int) -> None:
        group = dist.new_group([0, 1])
        assert isinstance(group, dist.ProcessGroup)
        dist.barrier(group)
        if rank == 0:
            raised: list[BaseException] = []
            about_to_wait = threading.Event()
            context = contextvars.copy_context()

            def wait() -> None:
                about_to_wait.set()
                try:
                    dist.recv(np.zeros(1), 1, group)
                except dist.DistError as error:
                    raised.append(error)

            thread = threading.Thread(target=context.run, args=(wait,))
            thread.start()
            about_to_wait.wait()
            if how == "group.abort":
                group.abort()
            elif how == "group.revoke":
                group.revoke()
            else:
                dist.abort_process_group(group)
            thread.join()
            expected = dist.GroupRevokedError if how == "group.revoke" else dist.GroupClosedError
            assert [type(error) for error in raised] == [expected]
        else:
            with pytest.raises(dist.GroupRevokedError, match="rank 0"):
                dist.recv(np.zeros(1), 0, group)
        dist.barrier()

    run_threads(2, main)


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_blocked_collective_ends_once_the_other_ranks_have_left(
    run_apart: Run, length: int
) -> None:
    def main(rank: int) -> None:
        dist.barrier()
        if rank == 1:
            with pytest.raises(dist.PeerLostError, match=r"rank [02] .* has left"):
                dist.all_reduce(np.ones(length))

    run_apart(3, main)


def test_abort_of_the_world_ends_its_threads() -> None:
    before = set(threading.enumerate())
    dist.init_process_group(rank=0, world_size=1)
    names = sorted(each.name for each in set(threading.enumerate()) - before)
    assert names == ["aiodist", "aiodist answers for rank 0"]
    dist.abort_process_group()
    assert not dist.is_initialized()
    assert set(threading.enumerate()) <= before
