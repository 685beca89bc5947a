"""Every operation leaves a record: what it was, when, and how it ended."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiodist as dist
from aiodist.errors import CollectiveTimeoutError, InvalidUsageError
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.world import current_world
from aiodist.observe.recorder import GroupLabel, Record, Recorder, operation, size_from
from aiodist.tensors import dtype_named
from aiodist.testing import run_ranks

GROUP = GroupLabel(7, "some", (0, 1))


def test_the_ring_keeps_the_last_in_order() -> None:
    recorder = Recorder(4)
    for number in range(10):
        recorder.begin(GROUP, number, Fingerprint("barrier")).end()
    assert [record.sequence for record in recorder.records()] == [6, 7, 8, 9]
    assert recorder.count == 10


def test_the_times_are_in_order_and_of_one_clock() -> None:
    record = Recorder().begin(GROUP, 0, Fingerprint("barrier"))
    assert record.state == "running"
    assert record.started == record.finished == 0
    record.started = record.created
    record.end()
    assert 0 < record.created <= record.started <= record.finished
    assert record.state == "done"


def test_a_failure_is_kept_as_text() -> None:
    record = Recorder().begin(GROUP, 0, Fingerprint("barrier"))
    record.fail(CollectiveTimeoutError("no rank came"), [1])
    told = operation(record)
    assert (told.state, told.error) == ("failed", "CollectiveTimeoutError: no rank came")
    assert told.waiting_for == (1,)
    given_up = Recorder().begin(GROUP, 0, Fingerprint("barrier"))
    given_up.fail(asyncio.CancelledError(), [])
    assert operation(given_up).state == "cancelled"


def test_a_failure_is_never_seen_as_a_success() -> None:
    """Another thread may look at any moment: here, while the error says what it is."""
    record = Recorder().begin(GROUP, 0, Fingerprint("barrier"))
    seen: list[str] = []

    class SeenWhileRead(Exception):
        def __str__(self) -> str:
            seen.append(record.state)
            return "no rank came"

    record.fail(SeenWhileRead(), [1])
    assert seen == ["running"]
    assert record.state == "failed"


def test_an_operation_that_ends_while_it_is_described_runs_or_is_done() -> None:
    class EndsAfterALook(Record):
        looks = 0

        @property
        def finished(self) -> int:
            self.looks += 1
            return self.looks - 1

        @finished.setter
        def finished(self, nanoseconds: int) -> None:
            pass

    told = operation(EndsAfterALook(0, GROUP, 0, Fingerprint("barrier"), 1))
    assert (told.finished, told.state) == (0, "running")


def test_a_digest_is_not_taken_for_a_count() -> None:
    what = Fingerprint("all_reduce_coalesced", dtype_named("float32"), count=123456)
    told = operation(Recorder().begin(GROUP, 0, what))
    assert (told.count, told.nbytes, told.dtype) == (-1, -1, "float32")
    told = operation(Recorder().begin(GROUP, 0, Fingerprint("new_group", count=99)))
    assert told.call == "new_group()"


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", str(1 << 30)])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="AIODIST_RECORDER_SIZE must be a number"):
        size_from({"AIODIST_RECORDER_SIZE": text})


def test_the_size_comes_from_the_environment() -> None:
    assert size_from({}) == size_from({"AIODIST_RECORDER_SIZE": ""}) == 1024
    assert size_from({"AIODIST_RECORDER_SIZE": "12"}) == 12


async def test_collectives_and_messages_are_recorded() -> None:
    async def main(rank: int) -> None:
        x = np.ones((2, 3), np.float32)
        await dist.all_reduce(x, op=dist.ReduceOp.MAX)
        await dist.broadcast(x, src=1)
        if rank == 0:
            await dist.send(x, 1, tag=5)
        else:
            await dist.recv(x, 0, tag=5)
        reduce, broadcast, message = dist.recent_operations()
        assert reduce.call == "all_reduce(6 x float32, MAX)"
        assert (reduce.sequence, reduce.nbytes, reduce.state) == (0, 24, "done")
        assert broadcast.call == "broadcast(6 x float32, root 1)"
        assert (broadcast.sequence, broadcast.group) == (1, "default_pg")
        other = 1 - rank
        direction = "send(to" if rank == 0 else "recv(from"
        assert message.call == f"{direction} rank {other}, 6 x float32, tag 5)"
        assert (message.sequence, message.nbytes, message.peer) == (-1, 24, other)
        assert [each.number for each in dist.recent_operations()] == [0, 1, 2]

    await run_ranks(2, main)


async def test_an_operation_in_progress_names_its_peers_and_is_never_forgotten() -> None:
    async def main(rank: int) -> None:
        current_world().recorder = Recorder(2)
        if rank == 1:
            for _ in range(5):
                await dist.recv(np.zeros(1), 0, tag=1)
            await dist.send(np.zeros(1), 0, tag=2)
            return
        waiting = dist.irecv(np.zeros(1), 1, tag=2)
        for _ in range(5):
            await dist.send(np.zeros(1), 1, tag=1)
        recent = dist.recent_operations()
        assert [each.number for each in recent] == [0, 4, 5]
        assert (recent[0].state, recent[0].waiting_for) == ("running", (1,))
        await waiting

    await run_ranks(2, main)


async def test_an_operation_that_failed_tells_why_and_which_ranks_were_missing() -> None:
    failed = asyncio.Event()

    async def main(rank: int) -> None:
        if rank == 1:
            await failed.wait()
            return
        with pytest.raises(CollectiveTimeoutError):
            await dist.all_reduce(np.ones(1), timeout=0.05)
        last = dist.recent_operations()[-1]
        assert last.state == "failed"
        assert last.error.startswith("CollectiveTimeoutError: ")
        assert last.waiting_for == (1,)
        failed.set()

    await run_ranks(2, main)


async def test_there_is_nothing_to_tell_without_a_world() -> None:
    assert dist.recent_operations() == []
