"""The handle of an operation that was over as soon as it began: a `Work` in every respect."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.groups.completed_work import CompletedWork
from aiodist.groups.work import Work
from aiodist.observe.recorder import GroupLabel, Recorder, recent
from aiodist.sync.coalescing import overlapped

LABEL = GroupLabel(7, "g", (0, 1))
SENT = ("send", 1, 0, b"", 4)


async def over(*, yields: bool = False) -> CompletedWork:
    record = Recorder().ended(LABEL, 3, SENT, 10)
    return CompletedWork(asyncio.get_running_loop(), record, yields)


async def test_a_completed_work_has_every_attribute_of_a_work() -> None:
    work = await over()
    for name in Work.__slots__:
        if name != "__weakref__":
            getattr(work, name)
    assert weakref.ref(work)() is work
    assert repr(work) == "<Work: done>"
    await work


async def test_a_completed_work_has_succeeded() -> None:
    work = await over()
    assert work.is_completed()
    assert work.done()
    assert work.is_success()
    assert not work.cancelled()
    assert work.exception() is None
    assert work.result() is None
    assert work.wait()
    assert not work.cancel()
    assert work.is_success()
    with pytest.raises(InvalidUsageError):
        work.source_rank()
    assert await work is None
    assert await asyncio.wait_for(work, 1) is None


async def test_callbacks_of_a_completed_work_are_called() -> None:
    work = await over()
    told: list[object] = []
    work.add_done_callback(told.append)
    assert not told  # as of a future: in the loop's next turn
    done, pending = await asyncio.wait([asyncio.ensure_future(work)])
    assert told == [work]
    assert len(done) == 1
    assert not pending
    assert work.remove_done_callback(told.append) == 0
    assert work.get_future().result() is None
    overlapped(lambda: work, [1, 2], True)
    assert work.get_future().result() == [1, 2]


async def test_the_loop_has_a_turn_where_it_is_due() -> None:
    for yields in (True, False):
        work = await over(yields=yields)
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        await work
        assert turned == [True] * yields
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(turned.append, False)
        await work
        assert turned == [True]  # once
        await asyncio.sleep(0)


async def test_its_record_is_made_on_demand() -> None:
    recorder = Recorder(2)
    running = recorder.begin(LABEL, 0, SENT)
    for sequence in (1, 2, 3):
        ended = recorder.ended(LABEL, sequence, SENT, sequence)
    work = CompletedWork(asyncio.get_running_loop(), ended)
    (record,) = recorder.latest(1)
    assert (record.number, record.sequence, record.state) == (3, 3, "done")
    assert record.created == record.started == 3
    assert record.finished >= 3
    assert [record.sequence for record in recorder.records()] == [2, 3]
    assert recorder.count == 4
    await work
    living: Work[None] = Work(asyncio.get_running_loop(), None, running)
    assert [each.sequence for each in recent(recorder, [living])] == [0, 2, 3]
    assert not living.is_completed()
