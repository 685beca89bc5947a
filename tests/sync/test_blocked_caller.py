"""A blocked thread sleeps by itself, and goes on with its operation itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.errors import CollectiveMismatchError, CollectiveTimeoutError, PeerLostError
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.shm_opening import FIRST_LOOK_SECONDS
from aiodist.groups.world import current_world
from aiodist.p2p.spin_policy import LOOK_AGAIN_SECONDS, SUSPICION_SECONDS
from aiodist.shm.group_area import ASLEEP
from aiodist.sync.blocked_caller import BlockedCaller
from aiodist.sync.portal import portal

RunThreads = Callable[..., list[Any]]


def communicator_here() -> ShmCommunicator:
    group = current_world().default
    assert group is not None
    assert group.communicator is not None
    return group.communicator


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0)


def until_asleep(communicator: ShmCommunicator) -> None:
    """Return when a thread sleeps over this memory, and the loop has nothing to do there."""
    until(lambda: bool(communicator.mine[ASLEEP]) and not communicator._arming)


def test_the_thread_that_was_woken_finishes_the_operation(
    run_apart: RunThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the loop's thread may be in the way now and then, not each time."""
    finish, finished = AllReduceSlots.finish, []
    communicators: dict[int, ShmCommunicator] = {}

    def noted(*args: Any) -> bool:
        finished.append(threading.current_thread().name)
        return finish(*args)

    monkeypatch.setattr(AllReduceSlots, "finish", noted)

    def main(rank: int) -> str:
        dist.all_reduce(np.ones(3))  # opens the shared memory
        communicators[rank] = communicator_here()
        finished.clear()
        for _ in range(8):
            dist.barrier()
            if rank:
                until_asleep(communicators[0])
            data = np.ones(3)
            dist.all_reduce(data)
            assert data.tolist() == [2, 2, 2]
        return threading.current_thread().name

    assert set(run_apart(2, main)) <= set(finished)


def test_threads_that_sleep_in_different_operations_learn_of_it(run_threads: RunThreads) -> None:
    def main(rank: int) -> None:
        data = np.ones(3)
        dist.all_reduce(data)
        dist.barrier()
        with pytest.raises(CollectiveMismatchError):
            dist.all_reduce(data) if rank else dist.barrier()
        assert data.tolist() == [2, 2, 2]

    run_threads(2, main)


def test_a_thread_that_sleeps_times_out(run_threads: RunThreads) -> None:
    done = threading.Event()

    def main(rank: int) -> None:
        dist.barrier()
        dist.barrier()
        if rank == 0:
            with pytest.raises(CollectiveTimeoutError, match="rank 1"):
                dist.all_reduce(np.ones(1), timeout=0.1)
            done.set()
        assert done.wait(20)

    run_threads(2, main)


def test_a_thread_suspects_only_after_it_has_slept_for_long() -> None:
    """A ring may be for less than the thread waits for: it looks again soon, and suspects nothing."""
    rings, slept, suspected = [True, False, True, False, False, False, False, True], [], []

    def wait(seconds: float) -> bool:
        slept.append(seconds)
        work._done = len(slept) == len(rings)
        return rings[len(slept) - 1]

    def nothing(*args: object) -> None:
        pass

    work = SimpleNamespace(_done=False)
    sleeper = SimpleNamespace(
        doorbell=SimpleNamespace(wait=wait),
        look=lambda: False,
        fall_asleep=lambda: True,
        suspect=lambda: suspected.append(len(slept)),
    )
    handoff = SimpleNamespace(
        interrupts=SimpleNamespace(hold=lambda: False), take=lambda: True, give_back=nothing
    )
    caller: Any = BlockedCaller
    caller(work, sleeper, None, handoff).acquire()

    soon, later = LOOK_AGAIN_SECONDS, SUSPICION_SECONDS
    growing = [FIRST_LOOK_SECONDS, 2 * FIRST_LOOK_SECONDS, 4 * FIRST_LOOK_SECONDS]
    assert slept == [soon, soon, later, soon, later, *growing]
    assert suspected == [5, 6, 7]


def test_a_call_in_the_middle_of_another_is_refused(run_threads: RunThreads) -> None:
    """By a signal's handler, or as an object is packed: the thread would wait for its own turn."""

    def main(rank: int) -> None:
        dist.barrier()
        handoff = portal().handoff
        until(handoff.acquire)
        try:
            for call in (dist.barrier, dist.new_group):
                with pytest.raises(
                    dist.InvalidUsageError, match="signal's handler, or by an object"
                ):
                    call()
        finally:
            handoff.resume()
        dist.barrier()

    run_threads(1, main)


def test_a_peer_that_is_lost_as_a_thread_falls_asleep_is_the_error_of_its_call(
    run_threads: RunThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall_asleep, failed = ShmCommunicator.fall_asleep, threading.Event()
    both = threading.Barrier(2)

    def lost(communicator: ShmCommunicator) -> bool:
        world = current_world()
        if world.rank == 0:
            world.peer_lost(1, PeerLostError("rank 1 has left", rank=1), departed=False)
        return fall_asleep(communicator)

    def main(rank: int) -> None:
        dist.barrier()
        dist.barrier()
        both.wait(20)  # one thread at a time sleeps by itself, and the other may do so until here
        if rank == 0:
            handoff = portal().handoff
            acquire = handoff.acquire

            def acquire_later() -> bool:
                until(
                    acquire
                )  # a call that finds the loop's thread in a turn sleeps in that thread
                return True

            monkeypatch.setattr(handoff, "acquire", acquire_later)
            monkeypatch.setattr(ShmCommunicator, "fall_asleep", lost)
            with pytest.raises(PeerLostError, match="rank 1"):
                dist.barrier()
            failed.set()
        assert failed.wait(20)

    run_threads(2, main)
