"""A failure is an event for the whole group, and the group goes on after it where it can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.errors import PeerLostError
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_lifecycle import WHOLE_GROUP
from aiodist.groups.message import Send
from aiodist.groups.operation import Barrier
from aiodist.groups.shm_words import STEP_BITS
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.p2p.outbox import EAGER_BYTES
from aiodist.shm.group_area import SLOT_TAGS, SLOTS
from aiodist.testing import run_ranks
from tests.backends.at_once import at_once
from tests.engine.conftest import RunRanks, engine_of, outcome
from tests.limits import until

LARGE = EAGER_BYTES // 2  # float64: four times what travels eagerly


async def next_works(rank: int, size: int) -> None:
    """The group is as good as new."""
    for length in (3, LARGE):
        data = np.full(length, float(rank))
        await dist.all_reduce(data)
        assert (data == sum(range(size))).all()


def all_reduce(length: int, dtype: Any = np.float64, op: Any = dist.ReduceOp.SUM) -> Work[None]:
    return dist.all_reduce(np.ones(length, dtype), op=op)


def broadcast(root: int, length: int = 4) -> Work[None]:
    return dist.broadcast(np.ones(length), root)


MISMATCHES: dict[str, tuple[Callable[[int], Work[Any]], list[str]]] = {
    "operation": (
        lambda rank: all_reduce(4) if rank else dist.barrier(),
        ["all_reduce(4 x float64, SUM)", "barrier()"],
    ),
    "dtype": (
        lambda rank: all_reduce(4, np.float32 if rank == 1 else np.float64),
        ["4 x float32", "4 x float64"],
    ),
    "count": (lambda rank: all_reduce(5 if rank == 2 else 4), ["5 x float64", "4 x float64"]),
    "count, both large": (
        lambda rank: all_reduce(LARGE + (rank == 2)),
        [f"{LARGE} x float64", f"{LARGE + 1} x float64"],
    ),
    "count, one empty": (lambda rank: all_reduce(0 if rank == 2 else 4), ["0 x", "4 x"]),
    "op": (
        lambda rank: all_reduce(4, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM),
        ["SUM", "MAX"],
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
async def test_a_mismatch_reaches_all_ranks_and_shows_both_sides(
    ranks: RunRanks, case: str
) -> None:
    call, sides = MISMATCHES[case]

    async def main(rank: int) -> BaseException | None:
        error = await outcome(call(rank))
        await next_works(rank, 3)
        return error

    errors = await ranks(3, main)
    for error in errors:
        assert isinstance(error, dist.CollectiveMismatchError), errors
        assert all(side in str(error) for side in sides)
        assert (error.sequence, error.group) == (0, "default_pg")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("length", [None, 4, LARGE])
@pytest.mark.parametrize("sent", [4, LARGE])
async def test_a_rank_that_only_sends_may_complete_before_a_failure_is_known(
    ranks: RunRanks, caplog: pytest.LogCaptureFixture, size: int, length: int | None, sent: int
) -> None:
    """Let two ranks act as root: both have sent all their data, and no waiting rank waits for ever.

    The next operation raises on at least one of them. ``length``: of an all_reduce; None: a barrier.
    """

    async def main(rank: int) -> list[BaseException | None]:
        errors = [await outcome(broadcast(1 if rank == 1 else 0, sent))]
        for _ in range(3):
            errors.append(
                await outcome(
                    dist.barrier() if length is None else dist.all_reduce(np.ones(length))
                )
            )
        await next_works(rank, size)
        return errors

    with caplog.at_level(logging.ERROR, "aiodist"):
        errors = [error for each in await ranks(size, main) for error in each if error is not None]
    assert errors
    for error in errors:
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "ranks disagree about operation 0" in str(error)
        assert "root 0" in str(error)
        assert "root 1" in str(error)


@pytest.mark.parametrize("other", ["all_reduce", "broadcast_object_list"])
@pytest.mark.parametrize("nbytes", [10, 4 * EAGER_BYTES])
async def test_objects_without_a_posted_receive(
    ranks: RunRanks, other: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go over the streams on every transport; the other rank sends some, too, or is in memory.

    All ranks hear of it at once, before a rank that sleeps in shared memory sends a status query.
    """
    monkeypatch.setattr("aiodist.groups.shm_communicator.SUSPICION_SECONDS", 1000)

    async def main(rank: int) -> list[BaseException | None]:
        objects = [b"x" * nbytes]
        if rank == 0 and other == "all_reduce":
            errors = [await outcome(all_reduce(4))]
        else:
            errors = [await outcome(dist.broadcast_object_list(objects, rank))]
        errors += [await outcome(dist.barrier()) for _ in range(3)]
        await next_works(rank, 2)
        return errors

    errors = [error for each in await ranks(2, main) for error in each if error is not None]
    assert errors
    for error in errors:
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "ranks disagree about operation 0" in str(error)
        assert "root 1" in str(error)


@pytest.mark.parametrize("sent", [4, LARGE])
async def test_two_roots_without_a_later_operation_are_reported_when_the_group_ends(
    ranks: RunRanks, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    async def main(rank: int) -> list[BaseException | None]:
        await dist.barrier()
        failure = await outcome(broadcast(rank, sent))
        # Each has the other's by now, in memory or as a message that came before this one.
        work = dist.isend(np.ones(1), 1 - rank)
        await dist.recv(np.zeros(1), 1 - rank)
        await work
        error = await outcome(dist.destroy_process_group())
        assert not dist.is_initialized()
        return [failure, error]

    with caplog.at_level(logging.ERROR, "aiodist"):
        outcomes = await ranks(2, main)
    # Who begins when the other's message is there fails at once; the other one when it ends.
    for failure, last in outcomes:
        assert (failure is None) != (last is None)
        error = failure or last
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "root 0" in str(error)
        assert "root 1" in str(error)


@pytest.mark.parametrize("kind", [dist.CollectiveMismatchError, dist.CollectiveCancelledError])
async def test_closing_reports_a_late_failure_only_if_it_is_a_disagreement(
    inproc: RunRanks, kind: type[dist.CollectiveError]
) -> None:
    async def main(rank: int) -> None:
        await dist.all_reduce(np.ones(1))
        group = current_world().default_group()
        error = kind("rank 7 says so")
        group.failed_elsewhere(0, error)
        assert group.disagreement() is (error if kind is dist.CollectiveMismatchError else None)
        await dist.all_reduce(np.ones(1))
        assert group.disagreement() is None, "a later one has been well"

    await inproc(2, main)


async def test_the_last_rank_sees_two_roots_before_the_operation_completes() -> None:
    """Its barrier could be over at once; the other one waits in it, and sees the same when it has it."""

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        await dist.barrier()
        await broadcast(rank)
        group = dist.group.WORLD
        assert isinstance(group, dist.ProcessGroup)
        if rank == 1:
            communicator = engine_of(group).communicator
            assert communicator is not None
            word, there = (
                SLOT_TAGS[engine_of(group).n_started % SLOTS],
                engine_of(group).n_started + 1 << STEP_BITS,
            )
            await until(lambda: communicator.words[0][word] == there)
            work = at_once(group, Barrier())
            assert isinstance(work, dist.Work)
            error = await outcome(work)
        else:
            error = await outcome(dist.barrier())
        await next_works(rank, 2)
        return error

    errors = [error for error in await run_ranks(2, main, "shm", timeout=20) if error is not None]
    assert errors
    assert all(isinstance(error, dist.CollectiveMismatchError) for error in errors)


async def test_a_root_that_uses_its_slot_again_sees_that_another_was_root_there() -> None:
    """It has read no peer's slot since, so it may publish the third broadcast at once."""
    ready = [asyncio.Event() for _ in range(3)]

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        await dist.barrier()
        errors = [await outcome(broadcast(1 if rank == 1 else 0))]
        if rank != 1:  # which is in no other one as yet
            errors.append(await outcome(broadcast(0)))
        assert not any(errors)
        ready[rank].set()
        for event in ready:
            await event.wait()
        error = await outcome(broadcast(0)) if rank == 0 else None
        for _ in range((0, 2, 1)[rank]):
            await outcome(broadcast(0))  # as many as the others
        for _ in range(3):
            await outcome(dist.barrier())
        await next_works(rank, 3)
        return error

    error, *_ = await run_ranks(3, main, "shm", timeout=20)
    assert isinstance(error, dist.CollectiveMismatchError)
    assert "root 1" in str(error)


def check_names_both_roots(outcomes: Sequence[Sequence[BaseException | None]]) -> None:
    errors = [error for each in outcomes for error in each if error is not None]
    assert errors
    for error in errors:
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "root 0" in str(error)
        assert "root 1" in str(error)


async def test_two_roots_that_only_read_later_see_each_other() -> None:
    """The third rank has begun two further broadcasts before the second root publishes."""
    first, ahead, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> list[BaseException | None]:
        await dist.barrier()
        await dist.barrier()
        if rank == 0:
            await broadcast(0)
            first.set()
        elif rank == 2:
            await first.wait()
            for root in (0, 2, 2):
                await broadcast(root)
            ahead.set()
        else:
            await ahead.wait()
            await broadcast(1)
            second.set()
        await second.wait()
        errors = [await outcome(broadcast(2)) for _ in range(0 if rank == 2 else 2)]
        errors += [await outcome(dist.barrier()) for _ in range(3)]
        await next_works(rank, 3)
        return errors

    check_names_both_roots(await run_ranks(3, main, "shm", timeout=20))


async def test_a_root_remembers_its_slot_until_all_others_have_come_to_it() -> None:
    """It leaves the slot unread again before the second root has published there, and uses it again before
    that one compares."""
    ahead, second, used = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> list[BaseException | None]:
        await dist.barrier()
        await dist.barrier()
        if rank != 1:
            for root in (0, 2, 2):
                await broadcast(root)
            if rank == 0:
                ahead.set()
            await second.wait()
            errors = [await outcome(broadcast(root)) for root in (2, 0)]
            used.set()
        else:
            await ahead.wait()
            await broadcast(1)
            await broadcast(2)
            second.set()
            await used.wait()
            errors = [await outcome(broadcast(root)) for root in (2, 2, 0)]
        errors += [await outcome(dist.barrier()) for _ in range(3)]
        await next_works(rank, 3)
        return errors

    check_names_both_roots(await run_ranks(3, main, "shm", timeout=20))


async def test_a_rank_that_raised_a_disagreement_removes_its_fingerprint() -> None:
    """A peer that completed before must not find it again in its next operation."""

    async def main(rank: int) -> None:
        await dist.barrier()
        group = dist.group.WORLD
        assert isinstance(group, dist.ProcessGroup)
        communicator, word = (
            engine_of(group).communicator,
            SLOT_TAGS[engine_of(group).n_started % SLOTS],
        )
        assert communicator is not None
        error = await outcome(dist.all_reduce(np.ones(3 + rank)))
        assert isinstance(error, dist.CollectiveMismatchError)
        assert communicator.mine[word] == 0
        await next_works(rank, 2)

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_message_that_tells_of_another_operation_spoils_the_next(
    ranks: RunRanks, under_way: bool
) -> None:
    """Over streams, where both have succeeded: the one under way, or the next, on all ranks.

    Also where these share memory, in which objects do not go: there an empty one only tells where
    a rank sleeps, while over sockets it may be all that a rank sends.
    """
    other = Fingerprint("all_gather").encoded

    async def main(rank: int) -> None:
        await dist.barrier()
        group = dist.group.WORLD
        assert isinstance(group, dist.ProcessGroup)
        if rank == 0:
            work = dist.barrier() if under_way else None
            engine_of(group).late_message(
                0, 1, other, 0 if engine_of(group).communicator is None else 8
            )
            await asyncio.sleep(0)
            work = work or dist.barrier()
        else:
            await dist.recv(src=0) if under_way else None
            work = dist.barrier()
        if rank == 0 and under_way:
            await asyncio.sleep(0)
            await dist.send(np.ones(1), 1)
        error = await outcome(work)
        assert isinstance(error, dist.CollectiveMismatchError)
        assert "ranks disagree about operation 0" in str(error)
        assert error.rank == 1
        await next_works(rank, 2)

    await ranks(2, main)


async def _disagree_while_rank_1_is_away(ranks: RunRanks, *, met: bool) -> None:
    """The root waits for rank 1 first; rank 2's message says at once that something is wrong."""

    async def main(rank: int) -> BaseException | None:
        if met:
            await dist.barrier()
        if rank == 1:
            engine = engine_of(dist.group.WORLD)
            await until(lambda: engine._failures)  # else its part could end before it hears
            error = await outcome(dist.gather(np.ones(2), None, 0))
        elif rank == 2:
            error = await outcome(dist.gather(np.ones(2, np.float32), None, 0))
        else:
            error = await outcome(dist.gather(np.ones(2), [np.ones(2) for _ in range(3)], 0))
        await next_works(rank, 3)
        return error

    errors = await ranks(3, main)
    assert isinstance(errors[0], dist.CollectiveMismatchError)
    assert isinstance(errors[1], dist.CollectiveMismatchError)


async def test_a_mismatch_is_seen_while_waiting_for_another_rank(streams: RunRanks) -> None:
    await _disagree_while_rank_1_is_away(streams, met=False)


async def test_a_mismatch_among_ranks_that_have_met_is_seen_too(ranks: RunRanks) -> None:
    """Shared memory begins when all have entered an operation; from then on it is as above."""
    await _disagree_while_rank_1_is_away(ranks, met=True)


@pytest.mark.parametrize("length", [4, LARGE])
async def test_a_timeout_reaches_all_ranks_and_names_the_missing_ones(
    ranks: RunRanks, length: int
) -> None:
    over = asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        data = np.ones(length)
        if rank == 2:
            await over.wait()
            error = await outcome(dist.all_reduce(data))
        else:
            timeout = 0.1 if rank == 0 else None
            error = await outcome(dist.all_reduce(data, timeout=timeout))
            over.set()
        await next_works(rank, 3)
        return error

    errors = await ranks(3, main)
    for error in errors:
        assert isinstance(error, dist.CollectiveTimeoutError)
        assert error.rank == 0
        assert error.waiting_for == (2,)
        assert "all_reduce (operation 0 of 'default_pg') timed out after 0.1 s on rank 0" in str(
            error
        )


@pytest.mark.parametrize("size", [2, 4, 5])
async def test_a_timed_out_barrier_names_the_missing_rank_and_no_cycle(
    inproc: RunRanks, size: int
) -> None:
    """Each rank waits for a neighbour; only one rank has never entered the barrier."""
    over = asyncio.Event()

    async def main(rank: int) -> BaseException | None:
        if rank == 1:
            await over.wait()
            return await outcome(dist.barrier())
        error = await outcome(dist.barrier(timeout=0.1 if rank == 0 else None))
        over.set()
        return error

    for error in await inproc(size, main):
        assert isinstance(error, dist.CollectiveTimeoutError)
        assert error.waiting_for == (1,)


@pytest.mark.parametrize("length", [4, LARGE])
async def test_a_cancelled_collective_is_cancelled_everywhere(ranks: RunRanks, length: int) -> None:
    async def main(rank: int) -> BaseException | None:
        data = np.ones(length)
        error: BaseException | None = None
        if rank == 0:
            try:
                async with asyncio.timeout(0.02):
                    await dist.all_reduce(data)
            except TimeoutError as raised:
                error = raised
        elif rank == 1:
            error = await outcome(dist.all_reduce(data))
        else:
            await until(lambda: bool(current_world().default_group()._failures))
            error = await outcome(dist.all_reduce(data))
        await next_works(rank, 3)
        return error

    errors = await ranks(3, main)
    assert isinstance(errors[0], TimeoutError)
    for error in errors[1:]:
        assert isinstance(error, dist.CollectiveCancelledError)
        assert (error.rank, error.sequence, error.operation) == (0, 0, "all_reduce")
        assert "rank 0 cancelled all_reduce" in str(error)


async def test_many_collectives_at_once_on_several_groups_in_any_order(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        world = await dist.new_group([0, 1, 2])
        pair = await dist.new_group([0, 2])
        works: list[tuple[Work[None], np.ndarray, float]] = []
        for number in range(20):
            for group, members in ((None, 3), (world, 3), (pair, 2)):
                if members == 2 and rank == 1:
                    continue
                data = np.full(3 if number % 5 else LARGE // 4, float(number))
                works.append((dist.all_reduce(data, group=group), data, number * members))
        # Awaited in an order of each rank's own.
        order = np.random.default_rng(rank).permutation(len(works))
        for position in order:
            work, data, expected = works[position]
            await work
            assert (data == expected).all()

    await ranks(3, main)


async def test_one_failure_among_many_leaves_the_others_alone(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        data = [np.full(4, float(rank)) for _ in range(5)]
        works = [
            dist.all_reduce(each if number != 2 or rank else each.astype(np.float32))
            for number, each in enumerate(data)
        ]
        errors = [await outcome(work) for work in works]
        assert isinstance(errors.pop(2), dist.CollectiveMismatchError)
        assert errors == [None] * 4
        assert all((data[number] == 3).all() for number in (0, 1, 3, 4))

    await ranks(3, main)


async def test_an_exception_inside_a_reduction_reaches_all_ranks(
    streams: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aiodist.backends import native

    real = native.reduction

    class Broken:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __call__(self, *args: Any) -> None:
            raise ArithmeticError("x" * (2 << 20))  # as long as a printed tensor

        into = __call__

    broken = [True]
    monkeypatch.setattr(
        native,
        "reduction",
        lambda *args: (
            Broken(real(*args)) if broken[0] and current_world().rank == 1 else real(*args)
        ),
    )
    done = asyncio.Barrier(3)

    async def main(rank: int) -> BaseException | None:
        error = await outcome(dist.all_reduce(np.ones(4)))
        await done.wait()
        broken[0] = False
        await next_works(rank, 3)
        return error

    errors = await streams(3, main)
    assert isinstance(errors[1], ArithmeticError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, dist.DistBackendError)
        assert "failed on rank 1: ArithmeticError" in str(error)


async def test_after_destroy_everything_is_refused(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        await dist.barrier(group=group)
        posted = dist.irecv(np.zeros(1), 1 - rank, group)
        await dist.destroy_process_group(group)
        assert isinstance(await outcome(posted), dist.GroupClosedError)
        backend = engine_of(group).backend
        with pytest.raises(dist.GroupClosedError, match="was destroyed; make a new one"):
            backend.start(Barrier())
        with pytest.raises(dist.GroupClosedError):
            backend.start(Send(np.zeros(1), 1 - rank, 0))
        await next_works(rank, 2)

    await ranks(2, main)


async def cut(rank: int) -> None:
    """Break this rank's connections as a cable would: the transport aborts, no goodbye."""
    for connection in current_world().endpoint.connections():
        connection.abort()


@pytest.mark.parametrize("pending", [True, False])
async def test_a_rank_whose_connections_are_cut_is_lost_to_all(
    ranks: RunRanks, pending: bool
) -> None:
    """Also to rank 3, which never had a connection to it, and to what comes later."""
    was_cut = asyncio.Event()
    over = asyncio.Barrier(4)

    async def main(rank: int) -> list[BaseException | None]:
        errors: list[BaseException | None] = []
        if rank < 3:  # rank 2 talks to 0 only
            peer = 2 if rank == 0 else 0
            await dist.send(np.ones(1), peer, tag=rank)
            if rank == 0:
                await dist.recv(np.ones(1), 1, tag=1)
            await dist.recv(np.ones(1), 0 if rank == 2 else 2, tag=2 if rank == 0 else 0) if (
                rank != 1
            ) else None
        await over.wait()  # no rank waits for a message any more
        if rank == 2:
            await cut(rank)
            was_cut.set()
        else:
            work = dist.barrier() if pending else None
            await was_cut.wait()
            if work is not None:
                errors.append(await outcome(work))
            try:
                errors.append(await outcome(dist.barrier()))
            except dist.DistError as error:
                errors.append(error)
            with pytest.raises(dist.PeerLostError):
                await dist.barrier()
        await over.wait()
        return errors

    results = await ranks(4, main)
    for rank in (0, 1, 3):
        assert results[rank]
        for error in results[rank]:
            assert isinstance(error, dist.PeerLostError), results
            assert (error.departed, error.departure) == ((error.rank,), "died")
    assert any("rank 2" in str(error) for error in results[0])


async def test_pending_messages_fail_when_the_peer_is_cut(streams: RunRanks) -> None:
    ready = asyncio.Event()

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            await ready.wait()
            await cut(rank)
            return
        works = [
            dist.irecv(np.zeros(1), 1),
            dist.irecv(np.zeros(1)),
            dist.isend(np.zeros(LARGE), 1),
            dist.all_reduce(np.zeros(3)),
        ]
        ready.set()
        for work in works:
            error = await outcome(work)
            assert isinstance(error, dist.PeerLostError)
            assert error.rank == 1
            assert "died, ended without destroy_process_group, or was cut off" in str(error)
            assert error.__cause__ is None, "which the message repeats"

    await streams(2, main)


async def test_a_rank_may_leave_while_others_work_on(ranks: RunRanks) -> None:
    left = asyncio.Event()

    async def main(rank: int) -> None:
        pair = await dist.new_group([0, 1])
        await dist.barrier()
        if rank == 2:
            await dist.send(np.full(LARGE, 5.0), 0)  # arrives, although it leaves at once
            asyncio.get_running_loop().call_later(0.02, left.set)
            return
        await left.wait()
        for _ in range(3):
            await dist.all_reduce(np.ones(4), group=pair)
        if rank == 0:
            into = np.zeros(LARGE)
            error = await outcome(dist.irecv(into, 2, tag=1))
            assert isinstance(error, dist.PeerLostError)
            assert (error.departed, error.departure) == ((error.rank,), "left")
            assert "has left" in str(error)
        else:
            await dist.send(np.ones(2), 0)
        if rank == 0:
            await dist.recv(np.zeros(2), 1)

    async def with_receive(rank: int) -> None:
        if rank == 0:
            into = np.zeros(LARGE)
            early = dist.irecv(into, 2)
            await main(rank)
            await early
            assert (into == 5).all()
        else:
            await main(rank)

    await ranks(3, with_receive)


async def test_a_collective_without_a_rank_that_left_fails_on_all_that_are_there(
    ranks: RunRanks,
) -> None:
    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        if rank == 2:
            return None
        return await outcome(dist.all_reduce(np.ones(4)))

    errors = await ranks(3, main)
    for error in errors[:2]:
        assert isinstance(error, dist.PeerLostError)


async def test_a_receive_from_any_rank_fails_when_all_others_have_left(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            await dist.recv(np.zeros(1))
            error = await outcome(dist.irecv(np.zeros(1)))
            assert isinstance(error, dist.PeerLostError)
            assert "all other ranks have left" in str(error)
            assert isinstance(await outcome(dist.irecv(np.zeros(1))), dist.PeerLostError)
        elif rank == 1:
            await dist.send(np.zeros(1), 0)

    await ranks(3, main)


async def test_a_failure_in_a_group_that_is_made_later_is_not_lost(
    ranks: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has made the group, used it and given up before rank 1 knows of it."""
    gave_up = asyncio.Event()
    from aiodist.groups import world as module

    real = module.World.add

    async def main(rank: int) -> BaseException | None:
        await dist.barrier()
        world = current_world()
        if rank == 1:
            held: list[Any] = []
            monkeypatch.setattr(world, "add", held.append)
            group = await dist.new_group([0, 1])
            monkeypatch.undo()
            await gave_up.wait()
            await asyncio.sleep(0.05)
            real(world, engine_of(group))
        else:
            group = await dist.new_group([0, 1])
            work = dist.barrier(group=group)
            await asyncio.sleep(0)
            work.cancel()
            work.exception()
            gave_up.set()
            return None
        return await outcome(dist.barrier(group=group))

    errors = await ranks(2, main)
    assert isinstance(errors[1], dist.CollectiveCancelledError)


async def test_one_error_is_not_raised_by_many(inproc: RunRanks) -> None:
    """A broken group raises a new error each time: a shared one would collect tracebacks."""

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            await cut(rank)
            return
        first = await outcome(dist.barrier())
        seen: list[BaseException] = []
        for _ in range(3):
            with pytest.raises(dist.PeerLostError) as caught:
                dist.barrier()
            seen.append(caught.value)
        assert len({id(error) for error in (first, *seen)}) == 4
        depths = {_depth(error) for error in seen}
        assert len(depths) == 1

    await inproc(2, main)


async def test_each_message_to_a_rank_that_has_left_raises_an_error_of_its_own(
    inproc: RunRanks,
) -> None:
    """The rank's own would keep what the frames of its last caller hold."""

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            return
        into = np.zeros(1)
        works = [dist.irecv(into, 1), dist.irecv(into, 1, tag=1)]
        errors = [await outcome(work) for work in works]
        errors += [await outcome(dist.isend(into, 1)) for _ in range(2)]
        assert all(isinstance(error, dist.PeerLostError) for error in errors)
        assert len(set(map(str, errors))) == 1
        known = current_world().endpoint.error_of(1)
        assert known is not None
        assert known.__traceback__ is None
        assert len({id(error) for error in (known, *errors)}) == 5

    await inproc(2, main)


async def test_each_await_of_a_failed_operation_shows_its_own_frames_alone(
    inproc: RunRanks,
) -> None:
    async def main(rank: int) -> None:
        work = dist.irecv(np.zeros(1), 1 - rank, timeout=0.01)
        depths = []
        for _ in range(3):
            error = await outcome(work)
            assert isinstance(error, dist.CollectiveTimeoutError)
            depths.append(_depth(error))
        assert len(set(depths[1:])) == 1
        assert depths[0] == depths[1]
        await dist.barrier()

    await inproc(2, main)


def _depth(error: BaseException) -> int:
    depth, frame = 0, error.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    return depth


async def test_done_callbacks_that_raise_do_not_harm_the_operation(inproc: RunRanks) -> None:
    complaints: list[Any] = []

    async def main(rank: int) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        work = dist.barrier()
        called: list[int] = []

        def bad() -> None:
            raise ValueError("mine")

        work._when_done(bad)
        work._when_done(lambda: called.append(1))
        await work
        assert called == [1]
        await next_works(rank, 2)

    await inproc(2, main)
    assert [str(error) for error in complaints] == ["mine", "mine"]


async def test_a_rank_that_hears_of_its_own_loss_by_a_group_raises_its_own_loss(
    inproc: RunRanks,
) -> None:
    """A survivor passes the news on to all members, before it knows that one of them is meant."""
    said = "rank 1 (process 7 on there) is lost: it was silent"
    told = PeerLostError(said, rank=1, host="there", pid=7, noticed_by=2)

    async def main(rank: int) -> BaseException | None:
        if rank == 2:
            world = current_world()
            world.announce(world.default_group(), WHOLE_GROUP, told, [1])
        return await outcome(dist.barrier())

    error = (await inproc(3, main))[1]
    assert isinstance(error, PeerLostError)
    assert (error.rank, error.noticed_by) == (1, 2)
    assert "rank 1 (process 7 on there) is this rank, and was given up by the others" in str(error)
