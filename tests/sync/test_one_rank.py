"""Arguments and return values, where one rank is enough to see them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist.sync as dist
from aiodist.errors import NotInitializedError
from aiodist.groups.world import current_world
from aiodist.sync.loop_handoff import LoopHandoff
from aiodist.sync.portal import portal

pytestmark = pytest.mark.usefixtures("alone")


def test_a_receive_is_refused_where_no_other_rank_can_send() -> None:
    with pytest.raises(dist.InvalidUsageError, match="has no other rank"):
        dist.irecv(torch.ones(1))


def test_a_group_from_before_destroy_is_of_no_effect_on_the_next_one() -> None:
    old = dist.group.WORLD
    for _ in range(2):
        dist.destroy_process_group()
        old.revoke()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with pytest.raises(dist.GroupClosedError, match="was destroyed"):
            dist.barrier(old)
        dist.destroy_process_group(old)
        old.revoke()
        old.abort()
        dist.barrier()
        assert dist.get_world_size() == 1


def test_a_call_that_the_end_of_the_loop_has_overtaken_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loop takes what another thread hands over, ends, and calls nothing any more."""
    ended = asyncio.new_event_loop()
    ended.close()
    monkeypatch.setattr("aiodist.sync.portal._hand_over", lambda *_: None)
    with pytest.raises(NotInitializedError):
        portal()._call(ended, lambda: None, True)
    group, own = current_world().default, current_world().its_loop
    assert group is not None
    monkeypatch.setattr(ended, "call_soon_threadsafe", lambda _: None)
    current_world().its_loop = ended
    group.revoke()
    current_world().its_loop = own
    dist.barrier()


def test_a_collective_returns_none_or_a_work() -> None:
    tensor = torch.ones(3)
    assert dist.all_reduce(tensor) is None
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert work.get_future().result() == [tensor]


def test_the_future_of_a_collective_is_as_torchs() -> None:
    tensor, one = torch.ones(2), [torch.zeros(2)]
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0] is future.value()[0] is tensor
    assert future.then(lambda done: done.value()[0] * 3).wait().tolist() == [3, 3]
    values = [
        dist.all_gather(one, tensor, async_op=True).get_future().wait(),
        dist.gather(tensor, one, 0, async_op=True).get_future().wait(),
        dist.all_gather_into_tensor(one[0], tensor, async_op=True).get_future().wait(),
        dist.gather_single(tensor, one[0], 0, async_op=True).get_future().wait(),
    ]
    assert all(value[0] is one[0] for value in values)
    assert dist.barrier(async_op=True).get_future().wait() == []


def test_a_callback_of_an_operation_that_has_ended_is_called_although_the_loop_sleeps() -> None:
    work, called = dist.barrier(async_op=True), threading.Event()
    work.wait()
    time.sleep(0.2)  # the loop's thread sleeps until a stream or a timer wakes it
    work.add_done_callback(lambda _: called.set())
    assert called.wait(10)


def test_positional_arguments_of_the_early_documentation() -> None:
    tensor, one = torch.ones(2), [torch.zeros(2)]
    dist.gather(tensor, one, 0)
    assert one[0].tolist() == [1, 1]
    dist.scatter(tensor, [torch.full((2,), 7.0)], 0)
    assert tensor.tolist() == [7, 7]
    dist.reduce(tensor, 0, dist.ReduceOp.SUM, dist.group.WORLD)
    dist.broadcast(tensor, 0, dist.group.WORLD, False)
    dist.all_gather(one, tensor, dist.group.WORLD)
    assert one[0].tolist() == [7, 7]
    with pytest.warns(FutureWarning, match="reduce_op is deprecated"):
        old = dist.reduce_op.SUM
    dist.all_reduce(tensor, old)
    dist.barrier()
    assert tensor.tolist() == [7, 7]


def test_torch_reduce_ops_are_taken() -> None:
    tensor = torch.ones(2)
    dist.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    assert tensor.tolist() == [1, 1]


def test_every_collective_and_object_function_returns() -> None:
    a, b = np.arange(4.0), np.zeros(4)
    assert dist.all_gather_into_tensor(b, a) is None
    assert dist.all_gather_coalesced([[np.zeros(4)]], [a]) is None
    assert dist.reduce_scatter_tensor(b, a) is None
    assert dist.reduce_scatter(b, [a]) is None
    assert dist.all_to_all([b], [a]) is None
    assert dist.all_to_all_single(b, a) is None
    assert dist.all_reduce_coalesced([a, b]) is None
    assert b.tolist() == [0, 1, 2, 3]
    objects = [None]
    dist.all_gather_object(objects, {"x": 1})
    assert objects == [{"x": 1}]
    dist.gather_object("y", objects, 0)
    assert objects == ["y"]
    dist.broadcast_object_list(objects, 0)
    dist.scatter_object_list(objects, ["z"], 0)
    assert objects == ["z"]


def test_groups() -> None:
    world = dist.group.WORLD
    assert isinstance(world, dist.ProcessGroup)
    assert (world.rank(), world.size(), world.name()) == (0, 1, "gloo")
    assert world is dist.GroupMember.WORLD
    group = dist.new_group([0], group_desc="mine")
    assert (dist.get_rank(group), dist.get_world_size(group)) == (0, 1)
    assert dist.get_process_group_ranks(group) == [0]
    own, every = dist.new_subgroups(1)
    assert every == [own]
    assert dist.new_subgroups_by_enumeration([[0]])[0].size() == 1
    assert dist.split_group(split_ranks=[[0]]).rank() == 0
    dist.destroy_process_group(group)
    with pytest.raises(dist.GroupClosedError):
        dist.barrier(group)
    dist.barrier()


def test_a_second_init_shows_the_way_there_and_nothing_else() -> None:
    with pytest.raises(dist.InvalidUsageError, match="twice") as caught:
        dist.init_process_group(rank=0, world_size=1)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["init_process_group", "run", "init_process_group"]


def test_wrong_arguments_raise_at_the_call_and_show_the_way_there() -> None:
    with pytest.raises(dist.InvalidUsageError, match="src 3 is out of range") as caught:
        dist.broadcast(torch.ones(1), 3, async_op=True)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0].startswith("test_wrong_arguments")
    assert names[-1] == "check_rank"
    assert "start" not in names[3:]  # of the loop's thread only what was called there
    with pytest.raises(TypeError, match="tensor"):
        dist.all_reduce([1.0])  # type: ignore[arg-type]
    dist.barrier()


def broadcast_from_nobody() -> None:
    dist.broadcast(torch.ones(1), 3)


def receive_nothing() -> None:
    dist.recv(torch.ones(1), timeout=0.01)


def wait_for_nothing() -> None:
    dist.irecv(torch.ones(1), timeout=0.01).wait()  # type: ignore[union-attr]


@pytest.mark.parametrize("fail", [broadcast_from_nobody, receive_nothing, wait_for_nothing])
def test_an_error_leaves_no_cycle_behind(fail: Callable[[], None]) -> None:
    def caught() -> weakref.ref[BaseException]:
        try:
            fail()
        except dist.DistError as error:
            return weakref.ref(error)
        raise AssertionError("no error")

    gc.disable()
    try:
        reference = caught()
        dist.barrier()  # the loop's thread has released the operation
        assert reference() is None
    finally:
        gc.enable()


def test_a_batch_is_started_at_once_and_wrong_operations_refused() -> None:
    assert dist.P2POp(dist.isend, torch.ones(1), 0).sends
    assert not dist.P2POp(dist.irecv, torch.ones(1), 0).sends
    with pytest.raises(dist.InvalidUsageError, match="this rank itself"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 0)])
    with pytest.raises(dist.InvalidUsageError):
        dist.P2POp(dist.broadcast, torch.ones(1), 0)


def test_init_twice_is_refused_and_the_first_goes_on() -> None:
    with pytest.raises(dist.InvalidUsageError, match="twice"):
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()


def test_no_call_returns_after_the_end() -> None:
    group = dist.group.WORLD
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert dist.group.WORLD is None
    for call in (dist.barrier, dist.get_rank, dist.new_group, dist.destroy_process_group):
        with pytest.raises(dist.NotInitializedError, match=r"since destroy_process_group\(\)"):
            call()
    with pytest.raises(dist.GroupClosedError):
        dist.barrier(group)


class Own:
    """A class of this test: it travels by pickle alone."""


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_pickle_is_allowed_for_all_operations_at_once(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.destroy_process_group()  # the fixture's
    argument = True if how == "argument" else None
    if how == "variable":
        monkeypatch.setenv("AIODIST_ALLOW_PICKLE", "1")
    dist.init_process_group(rank=0, world_size=1, allow_pickle=argument)
    try:
        objects: list[Any] = [None]
        dist.all_gather_object(objects, Own())
        assert isinstance(objects[0], Own)
        with pytest.raises(TypeError, match="allow_pickle=True"):
            dist.all_gather_object(objects, Own(), allow_pickle=False)
    finally:
        dist.destroy_process_group()
    monkeypatch.setenv("AIODIST_ALLOW_PICKLE", "1")
    dist.init_process_group(rank=0, world_size=1, allow_pickle=False)
    try:
        with pytest.raises(TypeError, match="allow_pickle=True"):
            dist.broadcast_object(Own())
    finally:
        dist.destroy_process_group()
    monkeypatch.setenv("AIODIST_ALLOW_PICKLE", "yes")
    with pytest.raises(dist.InvalidUsageError, match="AIODIST_ALLOW_PICKLE must be 0 or 1"):
        dist.init_process_group(rank=0, world_size=1)


def test_a_completed_operation_does_not_wake_the_loops_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[str] = []
    resume = LoopHandoff.resume

    def noted(self: LoopHandoff) -> None:
        woken.append("resume")
        resume(self)

    loop, handoff = portal()._loop, portal().handoff
    assert loop is not None
    monkeypatch.setattr(LoopHandoff, "resume", noted)
    calls = 50
    for _ in range(calls):
        while loop.has_callbacks() or not handoff._lent:
            time.sleep(0.001)
        work = dist.all_reduce(np.ones(2), async_op=True)
        assert work is not None
        work.wait()
    assert len(woken) < calls / 2  # now and then its thread is awake, and in the way
