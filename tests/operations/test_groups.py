"""Groups: their members, numbers and operations, and how ranks agree on them."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
import torch

import aiodist as dist
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks
from tests.limits import until

LIMIT = 20


async def total(value: int, group: Any = None) -> int:
    tensor = torch.tensor([value])
    await dist.all_reduce(tensor, group=group)
    return int(tensor)


@pytest.mark.parametrize("ranks", [[0], [3], [1, 2], [0, 3], [0, 1, 2, 3], [4, 0, 2], None])
async def test_members_and_numbers(ranks: list[int] | None) -> None:
    members = list(range(5)) if ranks is None else sorted(ranks)

    async def on_rank(number: int) -> None:
        group = await dist.new_group(ranks)
        if number not in members:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == -1
            assert dist.get_world_size(group) == -1
        else:
            mine = members.index(number)
            assert dist.get_rank(group) == mine
            assert dist.get_world_size(group) == len(members)
            assert dist.get_process_group_ranks(group) == members
            assert [dist.get_group_rank(group, rank) for rank in members] == list(
                range(len(members))
            )
            assert [dist.get_global_rank(group, i) for i in range(len(members))] == members
            assert dist.get_backend(group) == "aiodist"
            assert await total(number, group) == sum(members)
        assert dist.get_rank() == number
        assert dist.get_world_size() == 5

    await run_ranks(5, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("order", list(permutations([0, 2, 3])))
async def test_order_of_ranks(order: tuple[int, ...]) -> None:
    """Kept where asked for; what a collective gathers follows it."""

    async def on_rank(number: int) -> None:
        group = await dist.new_group(list(order), sort_ranks=False)
        if number not in order:
            return
        assert dist.get_process_group_ranks(group) == list(order)
        assert dist.get_rank(group) == order.index(number)
        gathered: list[Any] = [None] * 3
        await dist.all_gather_object(gathered, number, group)
        assert gathered == list(order)
        out = torch.zeros(3, dtype=torch.int64)
        await dist.all_gather_into_tensor(out, torch.tensor([number]), group)
        assert out.tolist() == list(order)
        mine = torch.zeros(1, dtype=torch.int64)
        await dist.reduce_scatter_tensor(mine, torch.tensor(order), group=group)
        assert mine.item() == 3 * number

    await run_ranks(4, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("root", [0, 1, 2])
async def test_roots_by_global_and_by_group_rank(root: int) -> None:
    """Every operation with a root or a peer, by both kinds of number, in a group out of order."""
    ranks = [3, 0, 2]
    chief = ranks[root]

    async def on_rank(number: int) -> None:
        group = await dist.new_group(ranks, sort_ranks=False)
        if number not in ranks:
            return
        is_root = number == chief
        for src, dst in (
            ({"src": chief}, {"dst": chief}),
            ({"group_src": root}, {"group_dst": root}),
        ):
            tensor = torch.tensor([number])
            await dist.broadcast(tensor, group=group, **src)
            assert tensor.item() == chief

            tensor = torch.tensor([number])
            await dist.reduce(tensor, group=group, **dst)
            assert tensor.item() == (5 if is_root else number)

            places = [torch.zeros(1, dtype=torch.int64) for _ in ranks] if is_root else None
            await dist.gather(torch.tensor([number]), places, group=group, **dst)
            if places is not None:
                assert [place.item() for place in places] == ranks

            parts = [torch.tensor([10 * rank]) for rank in ranks] if is_root else None
            await dist.scatter(tensor, parts, group=group, **src)
            assert tensor.item() == 10 * number

            objects = [number, [number]]
            await dist.broadcast_object_list(objects, group=group, **src)
            assert objects == [chief, [chief]]

            gathered = [None] * 3 if is_root else None
            await dist.gather_object(number, gathered, group=group, **dst)
            assert gathered == (ranks if is_root else None)

            output = [None]
            given = [f"for {rank}" for rank in ranks] if is_root else None
            await dist.scatter_object_list(output, given, group=group, **src)
            assert output == [f"for {number}"]

            if is_root:
                for _ in range(2):
                    source = await dist.recv(tensor, group=group)
                    assert tensor.item() == source
                    objects = [None]
                    assert await dist.recv_object_list(objects, source, group=group) == source
                    assert objects == [source]
            else:
                await dist.send(torch.tensor([number]), group=group, **dst)
                await dist.send_object_list([number], group=group, **dst)

    await run_ranks(4, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("named", ["argument", "method"])
async def test_peers_by_group_rank_in_a_batch(named: str) -> None:
    """The group is an argument, or the one whose method the message names."""

    async def on_rank(number: int) -> None:
        group = await dist.new_group([2, 1], sort_ranks=False)
        if number == 0:
            return
        where: dict[str, Any] = {"group_peer": 1 - dist.get_rank(group)}
        functions: Any = group
        if named == "argument":
            functions = dist
            where["group"] = group
        into = torch.zeros(1, dtype=torch.int64)
        batch = [
            dist.P2POp(functions.isend, torch.tensor([number]), **where),
            dist.P2POp(functions.irecv, into, **where),
        ]
        sources = [await work for work in dist.batch_isend_irecv(batch)]
        assert into.item() == 3 - number == sources[1]

    await run_ranks(3, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_overlapping_groups_at_the_same_time(transport: str) -> None:
    """Each rank starts its groups' operations in an order of its own, and awaits them together."""
    lists = [[0, 1, 2], [1, 2, 3], [0, 3], [0, 1, 2, 3], [2]]

    async def on_rank(number: int) -> None:
        groups = [await dist.new_group(ranks) for ranks in lists]
        mine = [(ranks, g) for ranks, g in zip(lists, groups, strict=True) if number in ranks]
        turn = number % len(mine)
        for step in range(5):
            started = []
            for ranks, group in [*mine[turn:], *mine[:turn]]:
                tensor = torch.full((100,), number + step)
                started.append((ranks, tensor, dist.all_reduce(tensor, group=group)))
            await asyncio.gather(*(_done(work) for _, _, work in started))
            for ranks, tensor, _ in started:
                assert tensor.tolist() == [sum(ranks) + step * len(ranks)] * 100

    await run_ranks(4, on_rank, transport, timeout=LIMIT)


async def _done(work: dist.Work[Any]) -> Any:
    return await work


async def test_equal_tags_in_different_groups_do_not_meet() -> None:
    async def on_rank(number: int) -> None:
        one, two = await dist.new_group(), await dist.new_group()
        if number == 0:
            await dist.send(torch.tensor([1]), 1, one, tag=4)
            await dist.send(torch.tensor([2]), 1, two, tag=4)
            await dist.send(torch.tensor([3]), 1, tag=4)
            return
        for group, value in ((None, 3), (two, 2), (one, 1)):
            into = torch.zeros(1, dtype=torch.int64)
            await dist.recv(into, group=group, tag=4)
            assert into.item() == value

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_new_subgroups() -> None:
    async def on_rank(number: int) -> None:
        own, every = await dist.new_subgroups(2)
        start = number // 2 * 2
        assert dist.get_process_group_ranks(own) == [start, start + 1]
        assert every.index(own) == number // 2
        assert [dist.get_rank(group) for group in every] == [
            number % 2 if i == number // 2 else -1 for i in range(3)
        ]
        assert await total(number, own) == 2 * start + 1
        # All ranks are on one host.
        host, _ = await dist.new_subgroups()
        assert dist.get_world_size(host) == 6

    await run_ranks(6, on_rank, timeout=LIMIT)


async def test_new_subgroups_without_a_size_are_the_ranks_of_each_host() -> None:
    async def on_rank(number: int) -> None:
        own, every = await dist.new_subgroups()
        ranks = [(0, 2), (1,)][number % 2]
        assert own.ranks == ranks
        assert every.index(own) == number % 2
        assert await total(number, own) == sum(ranks)

    await run_ranks(3, on_rank, timeout=LIMIT, hosts=[7, 3, 7])


async def test_new_subgroups_by_enumeration() -> None:
    async def on_rank(number: int) -> None:
        own, every = await dist.new_subgroups_by_enumeration([[4, 0], [2, 1]])
        assert len(every) == 2
        if number == 3:
            assert own is dist.GroupMember.NON_GROUP_MEMBER
            return
        assert dist.get_process_group_ranks(own) == ([0, 4] if number in (0, 4) else [1, 2])
        assert await total(number, own) == (4 if number in (0, 4) else 3)

    await run_ranks(5, on_rank, timeout=LIMIT)


async def test_split_group_by_numbers_in_the_parent() -> None:
    async def on_rank(number: int) -> None:
        parent = await dist.new_group([1, 2, 4, 5])
        if number not in (1, 2, 4, 5):
            return
        part = await dist.split_group(parent, [[0, 2], [1]])
        expected = {1: [1, 4], 4: [1, 4], 2: [2]}.get(number)
        if expected is None:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
        else:
            assert dist.get_process_group_ranks(part) == expected
            assert await total(number, part) == sum(expected)
        assert await total(number, parent) == 12

    await run_ranks(6, on_rank, timeout=LIMIT)


async def test_a_default_group_can_be_split() -> None:
    async def on_rank(number: int) -> None:
        part = await dist.split_group(None, [[0, 2], [1, 3]])
        assert await total(number, part) == 2 + 2 * (number % 2)

    await run_ranks(4, on_rank, timeout=LIMIT)


async def test_names_are_equal_on_members_and_unlike_each_other() -> None:
    """Also where some of the ranks have made groups that others have not."""

    async def on_rank(number: int) -> list[str]:
        half, _ = await dist.new_subgroups(2)
        if number < 2:  # groups of this half only
            await dist.new_subgroups(1, half)
            await dist.split_group(half, [[0], [1]])
            await dist.new_group([0, 1], use_local_synchronization=True)
        made = [
            await dist.new_group(),
            await dist.new_group(),
            (await dist.new_subgroups(4))[0],
            (await dist.new_subgroups_by_enumeration([[0, 1, 2, 3]]))[0],
            await dist.split_group(None, [[0, 1, 2, 3]]),
            await dist.new_group(group_desc="of mine"),
        ]
        for group in made:
            assert await total(1, group) == 4
        return [group.group_name for group in made]

    names = await run_ranks(4, on_rank, timeout=LIMIT)
    assert len({tuple(each) for each in names}) == 1
    assert len(set(names[0])) == 6
    assert "of mine" in names[0][-1]


async def test_groups_of_equal_ranks_made_in_different_groups_are_two() -> None:
    """Also where the calls that make them have the same number, each in its group."""

    async def on_rank(number: int) -> None:
        half, _ = await dist.new_subgroups(2)  # operation 0 of the world
        await dist.barrier(half)
        pairs = [[0, 1]]
        inner = await dist.split_group(half, pairs)
        outer = await dist.split_group(None, pairs)  # operation 1, as the line before
        if number < 2:
            one, two = torch.tensor([1]), torch.tensor([10])
            works = [dist.all_reduce(one, group=inner), dist.all_reduce(two, group=outer)]
            for work in works:
                await work
            assert (one.item(), two.item()) == (2, 20)
        assert await total(1, half) == 2

    await run_ranks(4, on_rank, timeout=LIMIT)


async def test_different_lists_are_an_error_on_all_ranks_with_both_lists() -> None:
    async def on_rank(number: int) -> None:
        with pytest.raises(CollectiveMismatchError) as caught:
            await dist.new_group([0, 1] if number != 2 else [0, 2])
        assert "[0, 1]" in str(caught.value)
        assert "[0, 2]" in str(caught.value)
        # Nothing is broken by it.
        group = await dist.new_group([0, 2])
        if number != 1:
            assert await total(1, group) == 2
        assert await total(1) == 3

    await run_ranks(3, on_rank, timeout=LIMIT)


async def test_different_ways_to_make_groups_are_an_error_and_the_next_one_works() -> None:
    async def on_rank(number: int) -> None:
        with pytest.raises(CollectiveMismatchError, match="disagree about the new group"):
            await (dist.new_subgroups(1) if number else dist.new_group())
        group, _ = await dist.new_subgroups(2)
        assert await total(1, group) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_an_argument_refused_on_one_rank_can_be_given_again() -> None:
    async def on_rank(number: int) -> None:
        if number == 1:
            with pytest.raises(InvalidUsageError):
                dist.new_group([0, 7])
        group = await dist.new_group([0, 1])
        assert await total(1, group) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_local_synchronization_needs_the_members_only() -> None:
    async def on_rank(number: int) -> None:
        if number == 0:
            return
        group = await dist.new_group([1, 2], use_local_synchronization=True)
        again = await dist.new_group([1, 2], use_local_synchronization=True)
        assert await total(number, group) == 3
        assert await total(2 * number, again) == 6

    await run_ranks(3, on_rank, timeout=LIMIT)


async def test_a_group_of_its_members_alone_that_could_not_be_made_leaves_nothing() -> None:
    async def on_rank(number: int) -> None:
        for _ in range(3):
            making = asyncio.ensure_future(dist.new_group([0, 1], use_local_synchronization=True))
            await asyncio.sleep(0)
            if number == 0:
                making.cancel()
            await asyncio.wait([making])
            assert making.cancelled() or making.exception() is not None
        assert [group.group_name for group in current_world().groups] == ["default_pg"]
        group = await dist.new_group([0, 1], use_local_synchronization=True)
        assert await total(1, group) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("local", [False, True])
async def test_a_group_whose_caller_is_cancelled_as_it_has_been_made_is_aborted(
    local: bool,
) -> None:
    async def on_rank(number: int) -> None:
        work = dist.new_group([0, 1], use_local_synchronization=local)
        making = asyncio.ensure_future(work)
        if number == 0:
            work.add_done_callback(lambda _: making.cancel())
            with pytest.raises(asyncio.CancelledError):
                await making
            assert [group.group_name for group in current_world().groups] == ["default_pg"]
        else:
            with pytest.raises(dist.GroupRevokedError, match="rank 0 aborted group"):
                await dist.barrier(await making)
        assert await total(1) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)


@pytest.mark.parametrize("local", [False, True])
async def test_a_group_that_one_rank_has_made_and_another_has_cancelled_is_over(
    local: bool,
) -> None:
    works: list[dist.Work[Any]] = []

    async def on_rank(number: int) -> None:
        await dist.barrier()
        if number == 1:
            await until(
                lambda: works
            )  # then it sends its last message first, and waits for another
        works.append(work := dist.new_group([0, 1], use_local_synchronization=local))
        if number == 1:
            works[0]._when_done(work._give_up)
            with pytest.raises(asyncio.CancelledError):
                await work
        else:
            with pytest.raises(dist.GroupRevokedError, match="rank 1 cancelled new_group"):
                await dist.barrier(await work)
        assert await total(1) == 2
        world = current_world()  # what came for that group is dropped
        assert not world._early
        assert not world.endpoint.inbox.matcher.arrived

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_a_group_has_a_timeout_of_its_own() -> None:
    async def on_rank(number: int) -> None:
        group = await dist.new_group([0, 1], timeout=0.05)
        if number == 0:
            with pytest.raises(dist.CollectiveTimeoutError, match=r"timed out after 0\.05 s"):
                await dist.recv(torch.zeros(1), 1, group)
        assert await total(1) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_a_timeout_that_is_set_holds_for_later_operations() -> None:
    async def on_rank(number: int) -> None:
        group = await dist.new_group([0, 1], timeout=LIMIT)
        if number == 0:
            early = dist.recv(torch.zeros(1), 1, group)
            dist.set_timeout(timedelta(seconds=0.05), group)
            assert group.timeout == 0.05
            with pytest.raises(dist.CollectiveTimeoutError, match=r"timed out after 0\.05 s"):
                await dist.recv(torch.zeros(1), 1, group, tag=1)
            group.set_timeout(math.inf)
            assert group.timeout is None
            await group.send(torch.zeros(1), 1)
            await early
        else:
            await group.recv(torch.zeros(1), 0)
            await group.send(torch.zeros(1), 0)
        dist.set_timeout(LIMIT)
        assert dist.group.WORLD.timeout == LIMIT

    await run_ranks(2, on_rank, timeout=2 * LIMIT)


async def test_a_wrong_timeout_is_refused_and_the_old_one_stays() -> None:
    async def on_rank(number: int) -> None:
        for wrong in (0, -3, timedelta(0)):
            with pytest.raises(dist.InvalidUsageError, match="timeout must be positive"):
                dist.set_timeout(wrong)
        for of_a_wrong_type in (None, "3", True):
            with pytest.raises(TypeError, match="timeout must be a number of seconds or a"):
                dist.set_timeout(of_a_wrong_type)
        assert dist.group.WORLD.timeout == LIMIT
        alone = await dist.new_group([0])
        if number:
            with pytest.raises(dist.InvalidUsageError, match="rank 1 is not a member"):
                dist.set_timeout(3, alone)

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_backend_as_asked_for() -> None:
    async def on_rank(number: int) -> None:
        assert dist.get_backend() == "aiodist"
        assert dist.get_backend(await dist.new_group(backend="GLOO")) == "gloo"
        assert dist.get_backend(await dist.new_group(backend=dist.Backend.AIODIST)) == "aiodist"

    await run_ranks(2, on_rank, timeout=LIMIT)


async def test_a_destroyed_group_leaves_the_others_alone() -> None:
    async def on_rank(number: int) -> None:
        one, two = await dist.new_group(), await dist.new_group()
        await dist.destroy_process_group(one)
        assert await total(1, two) == 3
        three = await dist.new_group()
        assert await total(1, three) == 3
        with pytest.raises(dist.GroupClosedError):
            dist.barrier(one)

    await run_ranks(3, on_rank, timeout=LIMIT)


async def test_a_destroyed_group_of_others_is_nothing_to_this_rank() -> None:
    async def on_rank(number: int) -> None:
        group = await dist.new_group([0])
        await dist.destroy_process_group(group)
        assert await total(1) == 2

    await run_ranks(2, on_rank, timeout=LIMIT)
