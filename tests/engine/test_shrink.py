"""Those that are left go on: shrink, also while more of them die."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import numpy as np
import pytest

import aiodist as dist
from aiodist.errors import ProtocolError
from aiodist.groups.agreement import DONE
from aiodist.groups.world import MAX_REPLACED, current_world
from aiodist.liveness import LossNotice
from tests.engine.conftest import RunRanks, engine_of, outcome
from tests.engine.deaths import barrier_of_all, die
from tests.limits import scaled, until


async def works(group: dist.ProcessGroup, members: list[int]) -> None:
    """The group is as good as a new one, and it is the default."""
    assert list(group.ranks) == members
    assert dist.get_world_size() == len(members)
    assert dist.get_rank() == members.index(current_world().rank)
    for length in (3, 200_000):
        data = np.full(length, float(current_world().rank))
        await dist.all_reduce(data)
        assert (data == sum(members)).all()
    own: list[object] = [None] * len(members)
    await dist.all_gather_object(own, current_world().rank)
    assert own == members
    made = await dist.new_group()
    assert isinstance(made, dist.ProcessGroup)
    assert list(made.ranks) == members
    await dist.barrier(made)
    if len(members) > 1:
        first, last = members[0], members[-1]
        if current_world().rank == first:
            await dist.send(np.ones(2), last, tag=7)
        elif current_world().rank == last:
            await dist.recv(np.zeros(2), first, tag=7)


@pytest.mark.parametrize("dead", [0, 1, 3])
async def test_the_others_go_on_without_the_dead(ranks: RunRanks, dead: int) -> None:
    left = [rank for rank in range(4) if rank != dead]
    over = asyncio.Barrier(4)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == dead:
            await die()
        else:
            error = await outcome(dist.all_reduce(np.ones(3)))
            assert isinstance(error, (dist.PeerLostError, dist.GroupRevokedError))
            old = dist.group.WORLD
            group = await dist.shrink()
            assert group.group_name == "default_pg~1"
            assert await dist.shrink(old) is group
            with pytest.raises(dist.GroupRevokedError, match="replaced by 'default_pg~1'"):
                dist.barrier(old)
            await works(group, left)
        await over.wait()

    await ranks(4, main)


async def test_ranks_that_die_during_the_agreement_and_after_it(ranks: RunRanks) -> None:
    """0 is dead; 1, the coordinator, dies when it has asked; then 2; the last one is alone."""
    over, worked = asyncio.Barrier(4), asyncio.Barrier(2)
    asked = asyncio.Event()

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 0:
            await die()
        elif rank == 1:
            shrinking = asyncio.ensure_future(dist.shrink())
            await asyncio.sleep(0)
            group = current_world().default_group()
            # until a member has answered its question
            await until(lambda: any(a._joined for a in group.agreements._agreements.values()))
            asked.set()
            await die()
            shrinking.cancel()
        elif rank == 2:
            first = asyncio.ensure_future(dist.shrink())
            await asked.wait()
            group = await first
            while 1 in group.ranks:
                group = await dist.shrink(group)
            await works(group, [2, 3])
            await worked.wait()
            await die()
        else:
            await asyncio.sleep(0)
            group = await dist.shrink()
            while 1 in group.ranks:
                group = await dist.shrink(group)
            await works(group, [2, 3])
            await worked.wait()
            with pytest.raises(dist.PeerLostError):  # at once, where its end is known by now
                await dist.irecv(np.zeros(1), 2)
            group = await dist.shrink()
            await works(group, [3])
        await over.wait()

    await ranks(4, main)


async def test_a_subgroup_shrinks_by_itself(ranks: RunRanks) -> None:
    over = asyncio.Barrier(4)

    async def main(rank: int) -> None:
        group = await dist.new_group([3, 1, 2], sort_ranks=False)
        other = await dist.new_group([0, 1])
        await barrier_of_all(over)
        if rank == 2:
            await die()
        elif rank:
            assert isinstance(group, dist.ProcessGroup)
            left = await group.shrink(timeout=20)
            assert list(left.ranks) == [3, 1]
            await dist.barrier(left)
        if rank in (0, 1):
            await dist.barrier(other)
            assert current_world().default_group().group_name == "default_pg"
        await over.wait()

    await ranks(4, main)


async def test_a_revoked_group_without_any_dead_gets_a_successor_of_all(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            dist.revoke()
        await works(await dist.shrink(), [0, 1, 2])

    await ranks(3, main)


async def test_the_successor_has_the_timeout_that_was_set_last(inproc: RunRanks) -> None:
    async def main(rank: int) -> None:
        engine_of(dist.group.WORLD).timeout = 33.0
        assert engine_of(await dist.shrink()).timeout == 33.0

    await inproc(2, main)


async def test_a_member_that_does_not_call_shrink_is_named_and_may_call_later(
    inproc: RunRanks,
) -> None:
    given_up = asyncio.Barrier(3)  # a rank that calls again may admit a rank that has not given up

    async def main(rank: int) -> None:
        missing: tuple[int, ...] = ()
        while rank != 2 and missing != ((2,) if rank == 0 else (0,)):
            with pytest.raises(dist.CollectiveTimeoutError, match="has to call it") as caught:
                await dist.shrink(timeout=0.05)
            missing = caught.value.waiting_for
            assert missing == (0,) if rank else 2 in missing  # 1 too, until rank 0 has heard of it
        await given_up.wait()
        await works(await dist.shrink(), [0, 1, 2])

    await inproc(3, main)


async def test_a_message_of_the_old_group_that_comes_late_is_no_disagreement(
    ranks: RunRanks, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:  # its tag is the number of that barrier
            await dist.send(np.ones(2), 1, tag=0)
        await dist.barrier()
        await dist.shrink()  # a message that no receive asked for may still wait in the ring
        for _ in range(2):
            if rank == 0:
                await dist.send(np.arange(3), 1)
            else:
                into = np.zeros(3, int)
                await dist.recv(into, 0)
                assert into.tolist() == [0, 1, 2]
        await dist.barrier()

    await ranks(2, main)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_cancelled_shrink_can_be_called_again(inproc: RunRanks) -> None:
    cancelled = asyncio.Event()

    async def main(rank: int) -> None:
        if rank:
            await cancelled.wait()
        else:
            task = asyncio.ensure_future(dist.shrink())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled.set()
        await works(await dist.shrink(), [0, 1])

    await inproc(2, main)


async def test_a_rank_that_closed_the_group_is_left_out(ranks: RunRanks) -> None:
    closed = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        if rank == 0:
            await dist.destroy_process_group(group)
        elif rank == 1:
            group.abort()
            with pytest.raises(dist.GroupClosedError, match="rank 1 aborted"):
                await dist.shrink(group)
        await closed.wait()
        if rank == 2:
            left = await dist.shrink(group)
            assert list(left.ranks) == [2]
        await dist.barrier()

    await ranks(3, main)


@pytest.mark.parametrize("enters", [True, False])
@pytest.mark.parametrize("closing", [0, 1])
async def test_a_rank_that_closes_the_group_while_others_agree_is_left_out(
    inproc: RunRanks, closing: int, enters: bool
) -> None:
    """Also where it coordinates, or has promised to take part."""
    begun = asyncio.Event()
    agreements: dict[int, Any] = {}

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        agreements[rank] = engine_of(group).agreements._agreements
        await dist.barrier()
        if rank == closing:
            waiting = asyncio.create_task(dist.shrink(group)) if enters else None
            if enters:  # until the coordinator has heard the promise: the goodbye comes behind it
                await until(lambda: any(a._joined for a in agreements[0].values()))
            else:
                await until(lambda: any(a._waiting for a in agreements[closing].values()))
            group.abort()
            if waiting is not None:
                with pytest.raises(dist.GroupClosedError):
                    await waiting
            begun.set()
        else:
            if rank == 2:  # the last one comes when the first has been closed
                await begun.wait()
            left = await dist.shrink(group, timeout=scaled(10))
            assert list(left.ranks) == [1 - closing, 2]
            await left.barrier()
        await dist.barrier()

    await inproc(3, main)


@pytest.mark.parametrize("end", ["abort", "destroy"])
async def test_two_ranks_that_have_closed_the_group_do_not_answer_each_other_for_ever(
    inproc: RunRanks, end: str
) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        assert isinstance(group, dist.ProcessGroup)
        endpoint, sent = current_world().endpoint, 0
        agree = endpoint.agree

        def counted(*what: Any) -> None:
            nonlocal sent
            sent += 1
            agree(*what)

        endpoint.agree = counted  # type: ignore[method-assign]
        if rank == 1:  # its question is on its way as it closes the group
            waiting = asyncio.create_task(dist.shrink(group))
            await asyncio.sleep(0)
        if end == "abort":
            group.abort()
        else:
            await dist.destroy_process_group(group)
        if rank == 1:
            with pytest.raises(dist.GroupClosedError):
                await waiting
        for _ in range(20):
            await dist.barrier()
        assert sent < 5

    await inproc(2, main)


@pytest.mark.parametrize("end", ["abort", "destroy"])
async def test_a_shrink_that_waits_ends_when_its_group_is_closed_here(
    inproc: RunRanks, end: str
) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        assert isinstance(group, dist.ProcessGroup)
        if rank == 1:
            waiting = asyncio.create_task(dist.shrink(group))
            await asyncio.sleep(0)
            if end == "abort":
                group.abort()
            else:
                await dist.destroy_process_group(group)
            async with asyncio.timeout(scaled(5)):
                with pytest.raises(dist.GroupClosedError, match=f"{end}ed"):
                    await waiting
        await dist.barrier()

    await inproc(2, main)


@pytest.mark.parametrize("value", [None, [[], []]], ids=["of shrink", "of grow"])
async def test_a_group_that_is_closed_as_its_members_agree_has_no_successor(
    inproc: RunRanks, value: Any
) -> None:
    """The decision comes in the same turn of the loop, before `shrink` reads it.

    The value of a `grow` without newcomers has `shrink` agree again.
    """

    async def main(rank: int) -> None:
        made = await dist.new_group([0, 1])
        group = engine_of(made)
        if rank == 1:
            waiting = asyncio.create_task(dist.shrink(made))
            await asyncio.sleep(0)
            group.agreements.received(0, 0, msgpack.packb([DONE, 0, [0, 1], value]))
            group.abort()
            async with asyncio.timeout(scaled(5)):
                with pytest.raises(dist.GroupClosedError):
                    await waiting
            assert group.successor is None
        await dist.barrier()

    await inproc(2, main)


async def test_a_rank_that_the_decision_left_out_hears_so_each_time_it_asks(
    inproc: RunRanks,
) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        if rank == 1:
            engine_of(group).agreements.received(0, 0, msgpack.packb([DONE, 0, [0], None]))
            for _ in range(2):
                with pytest.raises(dist.PeerLostError, match="went on without this rank") as caught:
                    await dist.shrink(group, timeout=1)
                assert caught.value.rank == 1
        await dist.barrier()

    await inproc(2, main)


@pytest.mark.parametrize(("closing", "knows"), [(0, True), (1, True), (1, False)])
async def test_a_rank_that_closes_the_group_after_the_decision_is_left_out_of_the_next(
    inproc: RunRanks, closing: int, knows: bool
) -> None:
    """It ``knows`` the decision, or that is on its way. Its call of `shrink` was cancelled before."""
    over = asyncio.Barrier(3)
    agreements: dict[int, Any] = {}

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        agreements[rank] = engine_of(group).agreements._agreements
        if rank == closing:
            if not knows:  # rank 0 decides as this rank's promise comes, and its goodbye behind it
                await until(lambda: 0 in agreements.get(0, ()) and 2 in agreements[0][0]._joined)
            waiting = asyncio.create_task(dist.shrink(group))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            own = agreements[rank][0]
            await until(lambda: own.decision is not None if knows else own._promised >= 0)
            group.abort()
        else:
            left = await dist.shrink(group, timeout=scaled(10))
            async with asyncio.timeout(scaled(5)):
                while list(left.ranks) == [0, 1, 2]:
                    with pytest.raises(dist.GroupRevokedError, match=f"rank {closing} closed"):
                        await left.barrier()
                    left = await dist.shrink(left)
            assert list(left.ranks) == [1 - closing, 2]
            await left.barrier()
        await over.wait()

    await inproc(3, main)


async def test_a_rank_that_has_gone_on_still_says_how_after_it_destroyed_the_old_group(
    inproc: RunRanks,
) -> None:
    """Rank 0 coordinates, and dies before rank 2 hears the decision."""
    over = asyncio.Barrier(3)
    gone = asyncio.Event()

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1, 2])
        assert isinstance(group, dist.ProcessGroup)
        if rank == 0:
            endpoint = current_world().endpoint
            agree = endpoint.agree

            def cut_off(to: int, *what: Any) -> None:
                if to == 1 or b"done" not in what[-1]:
                    agree(to, *what)

            endpoint.agree = cut_off  # type: ignore[method-assign]
            await dist.shrink(group)
            await gone.wait()
            await die()
        else:
            if rank == 1:
                left = await dist.shrink(group)
                await dist.destroy_process_group(group)
                gone.set()
            else:
                left = await dist.shrink(group, timeout=scaled(10))
            assert list(left.ranks) == [0, 1, 2]
            with pytest.raises(dist.PeerLostError):
                await left.barrier()
            left = await dist.shrink(left, timeout=scaled(10))
            assert list(left.ranks) == [1, 2]
            await left.barrier()
        await over.wait()

    await inproc(3, main)


async def test_operations_in_progress_on_the_old_group_fail(inproc: RunRanks) -> None:
    sent = asyncio.Barrier(2)

    async def main(rank: int) -> None:
        waits = dist.irecv(np.zeros(1), 1 - rank)
        await dist.isend(np.zeros(1), 1 - rank, tag=3)
        await sent.wait()
        group = await dist.shrink()
        assert isinstance(await outcome(waits), dist.GroupRevokedError)
        stray = dist.irecv(np.ones(1), 1 - rank, group, tag=3)  # not the message to the old group
        await dist.send(np.full(1, 5.0), 1 - rank, group, tag=3)
        await stray
        await dist.barrier()

    await inproc(2, main)


async def test_a_rank_that_the_others_gave_up_does_not_go_on_alone(ranks: RunRanks) -> None:
    over = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 1:
            await die()
            notice = LossNotice(
                1, current_world().endpoint.rank_info.mark, 0, "it was stopped for long"
            )
            current_world().endpoint._declared_lost(notice)
            for call in (dist.shrink, lambda: dist.grow(dist.MemoryStore())):
                with pytest.raises(dist.PeerLostError, match="given up by the others") as caught:
                    await call()
                assert caught.value.rank == 1
        else:
            await works(await dist.shrink(), [0, 2])
        await over.wait()

    await ranks(3, main)


@pytest.mark.parametrize("call", ["shrink", "grow"])
async def test_a_rank_that_hears_it_while_it_agrees_does_not_go_on_alone_either(
    ranks: RunRanks, call: str
) -> None:
    """It has entered, and has revoked its group; the others never answer it."""
    over = asyncio.Barrier(2)

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 1:
            calls = {"shrink": dist.shrink, "grow": lambda: dist.grow(dist.MemoryStore())}
            agreeing = asyncio.ensure_future(calls[call]())
            await asyncio.sleep(0.05)
            endpoint = current_world().endpoint
            notice = LossNotice(1, endpoint.rank_info.mark, 0, "it was stopped for long")
            endpoint._declared_lost(notice)
            for waiting in (agreeing, calls[call]()):
                with pytest.raises(dist.PeerLostError, match="given up by the others") as caught:
                    await waiting
                assert caught.value.rank == 1
        await over.wait()

    await ranks(2, main)


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", *map(msgpack.packb, (["ask"], ["ask", "0", []], ["ask", 2, []]))],
    ids=["empty", "no list", "too short", "text as a number", "no such member"],
)
async def test_a_message_that_makes_no_sense_is_refused_as_it_comes(
    inproc: RunRanks, message: bytes
) -> None:
    """And not by the `shrink` that this rank calls later."""

    async def main(rank: int) -> None:
        if rank == 1:
            group = current_world().default_group()
            with pytest.raises(ProtocolError, match="rank 0 sent a message of an agreement"):
                group.agreements.received(0, 0, message)
        await works(await dist.shrink(), [0, 1])

    await inproc(2, main)


async def test_a_rank_outside_has_no_say(inproc: RunRanks) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0])
        if rank == 1:
            with pytest.raises(dist.InvalidUsageError, match="not a member"):
                await dist.shrink(group)
            with pytest.raises(dist.InvalidUsageError, match="not a member"):
                dist.revoke(group)

    await inproc(2, main)


async def test_replaced_groups_are_forgotten(ranks: RunRanks) -> None:
    met = asyncio.Barrier(2)

    async def main(rank: int) -> None:
        for _ in range(MAX_REPLACED + 4):
            await dist.shrink()
            await barrier_of_all(met)
        groups = current_world().groups
        assert len(groups) == MAX_REPLACED + 1  # the default one, and those that it follows on
        assert dist.group.WORLD.group_name == f"default_pg~{MAX_REPLACED + 4}"

    await ranks(2, main)
