"""How a blocked thread and its loop wait for the same word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.shm_words import Wait
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.shm.group_area import CONTROL_BYTES, PROGRESS


def test_a_thread_learns_that_the_loop_went_on_for_it() -> None:
    """It then sleeps over another word, and looks again soon: the other rank's store may be on its way."""
    endpoint = SimpleNamespace(
        rank=0, spin_policy=SpinPolicy(lambda _: None), inbox=SimpleNamespace(matcher=None)
    )
    world = SimpleNamespace(loop=SimpleNamespace(call_soon=lambda *_: None))
    group: Any = SimpleNamespace(ranks=(0, 1), global_rank=0, id=1, endpoint=endpoint, world=world)
    communicator = ShmCommunicator(group, SimpleNamespace(), 0)  # type: ignore[arg-type]
    mine, theirs = (memoryview(bytearray(CONTROL_BYTES)).cast("Q") for _ in range(2))
    communicator.mine = mine
    first, second = (Wait(1, theirs, PROGRESS, progress, progress) for progress in (1, 2))
    first.callback = lambda: communicator.wait(second)
    communicator.wait(first)
    assert communicator.fall_asleep()
    assert not communicator.look()
    theirs[PROGRESS] = 1
    communicator.poll()  # as the loop does when it is woken
    assert communicator.look()
    assert communicator.fall_asleep()
    assert not communicator.look()
    theirs[PROGRESS] = 2
    assert communicator.look()  # the operation has ended in this very look
