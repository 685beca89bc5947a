"""Messages between ranks over the whole engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.p2p.outbox import CHUNK_BYTES, EAGER_BYTES
from tests.engine.conftest import RunRanks, outcome
from tests.limits import until

SIZES = [0, 1, EAGER_BYTES, EAGER_BYTES + 1, 3 * CHUNK_BYTES + 1]


def pattern(size: int, salt: int = 0) -> np.ndarray:
    return (np.arange(size, dtype=np.int64) * 7 + salt).astype(np.uint8)


async def test_crossing_messages_of_every_protocol(streams: RunRanks) -> None:
    """Both ranks dial at once, and both send before they receive."""

    async def main(rank: int) -> None:
        other = 1 - rank
        sends = [dist.isend(pattern(size, rank), other, tag=i) for i, size in enumerate(SIZES)]
        for i, size in reversed(list(enumerate(SIZES))):
            into = np.zeros(size, np.uint8)
            assert await dist.recv(into, other, tag=i) == other
            assert (into == pattern(size, other)).all()
        for send in sends:
            await send

    await streams(2, main)


async def test_receive_posted_first_or_last(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        for size in SIZES:
            for receiver_waits in (True, False):
                if rank == 0:
                    work = dist.isend(pattern(size), 1)
                    if not receiver_waits:
                        await dist.send(np.zeros(1, np.uint8), 1, tag=1)
                    await work
                else:
                    if not receiver_waits:
                        await dist.recv(np.zeros(1, np.uint8), 0, tag=1)
                    into = np.zeros(size, np.uint8)
                    await dist.recv(into, 0)
                    assert (into == pattern(size)).all()

    await streams(2, main)


async def test_from_anybody_each_message_comes_once(streams: RunRanks) -> None:
    size, each = 5, 8

    async def main(rank: int) -> None:
        if rank:
            for number in range(each):
                length = 3 if number % 2 else EAGER_BYTES // 4 + 1
                await dist.send(np.full(length, 100 * rank + number, np.int64), 0)
            return
        got: dict[int, list[int]] = {source: [] for source in range(1, size)}
        for _ in range(each * (size - 1)):
            tensor, source = await dist.recv()
            assert len(set(tensor.tolist())) == 1
            got[source].append(int(tensor[0]))
        assert got == {s: [100 * s + n for n in range(each)] for s in range(1, size)}

    await streams(size, main)


async def test_tags_in_any_order_and_fifo_within_one(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            for number in range(30):
                await dist.send(np.array([number]), 1, tag=number % 3)
        else:
            for tag in (2, 0, 1):
                for turn in range(10):
                    into = np.zeros(1, np.int64)
                    await dist.recv(into, 0, tag=tag)
                    assert into[0] == 3 * turn + tag

    await streams(2, main)


async def test_a_cancelled_receive_leaves_its_message_to_the_next(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            await dist.recv(np.zeros(1), 1, tag=9)  # the first receive has been cancelled
            await dist.send(np.full(4, 7), 1)
            return
        given_up = np.zeros(4, np.int64)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dist.recv(given_up, 0), 0.01)
        await dist.send(np.zeros(1), 0, tag=9)
        into = np.zeros(4, np.int64)
        await dist.recv(into, 0)
        assert into.tolist() == [7] * 4
        assert given_up.tolist() == [0] * 4

    await streams(2, main)


def sent_of(kind: str, number: int) -> Any:
    """Return message ``number`` of a kind of RECEIVES."""
    array = np.full(4, number)
    return {"object": number, "parts": [array, np.full(200_000, number)]}.get(kind, array)


RECEIVES: dict[str, Callable[[], Work[Any]]] = {
    "tensor": lambda: dist.recv(np.zeros(4, np.int64), 0),
    "any": lambda: dist.recv(None),
    "new": lambda: dist.recv(None, 0),
    "object": lambda: dist.recv_object(0),
    "parts": lambda: dist.recv_object(0),
}


@pytest.mark.parametrize("next_one_waits", [False, True])
@pytest.mark.parametrize("kind", RECEIVES)
async def test_a_receive_that_ends_as_its_task_is_cancelled_leaves_its_message_to_the_next(
    streams: RunRanks, kind: str, next_one_waits: bool
) -> None:
    send = dist.send_object if kind in ("object", "parts") else dist.send

    async def main(rank: int) -> None:
        if rank == 0:
            for number in (1, 2):
                await dist.recv(np.zeros(1), 1, tag=9)
                await send(sent_of(kind, number), 1)
            return
        got: list[Any] = []

        async def receive(work: Work[Any]) -> None:
            got.append(await work)

        work = RECEIVES[kind]()
        task = asyncio.create_task(receive(work))
        work.add_done_callback(lambda _: task.cancel())  # before the task hears of the end
        second = RECEIVES[kind]() if next_one_waits else None
        await dist.send(np.zeros(1), 0, tag=9)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not got
        assert work.cancelled()
        await receive(second or RECEIVES[kind]())
        await dist.send(np.zeros(1), 0, tag=9)
        await receive(RECEIVES[kind]())
        for number, result in enumerate(got, 1):
            expected = sent_of(kind, number)
            value = expected if kind == "tensor" else result[0]
            assert str(value) == str(expected)
            assert result == 0 if kind == "tensor" else result[1] == 0

    await streams(2, main)


@pytest.mark.parametrize("kind", ["tensor", "object"])
async def test_a_receive_whose_task_is_cancelled_as_it_yields_leaves_its_message_to_the_next(
    ranks: RunRanks, kind: str
) -> None:
    send = dist.send_object if kind == "object" else dist.send

    async def receive() -> str:
        if kind == "object":
            return str((await dist.recv_object(0)).obj)
        into = np.zeros(4, np.int64)
        await dist.recv(into, 0)
        return str(into)

    async def main(rank: int) -> None:
        if rank == 0:
            for number in range(3):
                await send(sent_of(kind, number), 1)
            await dist.barrier()
            return
        first = await receive()  # the next ones go by its plan
        await dist.barrier()  # they are here
        current_world().endpoint.spin_policy._turn_due = 0
        task = asyncio.create_task(receive())
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        received = [first, await receive(), await receive()]
        assert received == [str(sent_of(kind, number)) for number in range(3)]

    await ranks(2, main)


@pytest.mark.parametrize("kind", RECEIVES)
async def test_a_receive_whose_task_is_cancelled_before_its_first_step_leaves_its_message(
    ranks: RunRanks, kind: str
) -> None:
    """Several receives, whose messages keep their order."""
    send = dist.send_object if kind in ("object", "parts") else dist.send

    async def main(rank: int) -> None:
        if rank == 0:
            for number in range(4):
                await send(sent_of(kind, number), 1)
            await dist.barrier()
            return
        received: list[str] = []

        async def receive() -> None:
            if kind == "tensor":
                into = np.zeros(4, np.int64)
                await dist.recv(into, 0)
                received.append(str(into))
            else:
                received.append(str((await RECEIVES[kind]())[0]))

        await receive()  # the next ones go by its plan
        for _ in range(2):
            works = [RECEIVES[kind]() for _ in range(2)]
            tasks = [asyncio.create_task(work) for work in works]
            for task in reversed(tasks):
                task.cancel()
            for task in tasks:
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert all(work.cancelled() for work in works)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(RECEIVES[kind](), 0)
        for _ in range(3):
            await receive()
        assert received == [str(sent_of(kind, number)) for number in range(4)]
        await dist.barrier()

    await ranks(2, main)


async def test_a_large_receive_cancelled_half_way(streams: RunRanks) -> None:
    size = 24 * CHUNK_BYTES

    async def main(rank: int) -> None:
        data = pattern(size)
        if rank == 0:
            await dist.send(data, 1)
            return
        given_up = np.zeros(size, np.uint8)
        work = dist.irecv(given_up, 0)
        await until(lambda: bool(given_up[CHUNK_BYTES // 2 : CHUNK_BYTES].any()))
        assert work.cancel()
        assert isinstance(work.exception(), asyncio.CancelledError)
        before = given_up.copy()
        into = np.zeros(size, np.uint8)
        assert await dist.recv(into, 0) == 0
        assert (into == data).all()
        assert (given_up == before).all()
        assert not (given_up == data).all()

    await streams(2, main)


async def test_a_large_send_cancelled_half_way_leaves_the_receive_to_the_next(
    streams: RunRanks,
) -> None:
    size = 24 * CHUNK_BYTES

    async def main(rank: int) -> None:
        if rank == 0:
            work = dist.isend(pattern(size), 1)
            await until(lambda: bool(current_world().endpoint.peer(1).outbox.bulk))
            assert work.cancel()
            await dist.send(pattern(size, 5), 1)
        else:
            into = np.zeros(size, np.uint8)
            await dist.recv(into, 0)
            assert (into == pattern(size, 5)).all()

    await streams(2, main)


@pytest.mark.parametrize("size", [8, EAGER_BYTES])
async def test_the_memory_of_a_send_cancelled_on_its_way_is_the_callers_again(
    streams: RunRanks, size: int
) -> None:
    """Too late to take it back: it arrives as it was, whatever the caller writes now."""

    async def main(rank: int) -> None:
        await dist.barrier()
        if rank == 0:
            works = []
            for number in range(4):
                data = pattern(size, number)
                works.append(dist.isend(data, 1))
                works[-1].cancel()
                data[:] = 0xEE
            for work in works:
                await outcome(work)
            await dist.send(pattern(size, 100), 1)
        else:
            await asyncio.sleep(0.01)
            into = np.zeros(size, np.uint8)
            for number in (0, 1, 2, 3, 100):
                await dist.recv(into, 0)
                assert (into == pattern(size, number)).all()

    await streams(2, main)


async def test_sends_cancelled_before_the_connection_is_there(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            works = [dist.isend(np.array([n]), 1) for n in range(3)]
            works[1].cancel()
            await works[0]
            await works[2]
        else:
            got = [int((await dist.recv(src=0)).tensor[0]) for _ in range(2)]
            assert got == [0, 2]

    await streams(2, main)


async def test_a_timed_out_receive_tells_of_messages_with_another_tag(ranks: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            await dist.send(np.zeros(1), 1, tag=5)
            await dist.send(np.zeros(1), 1, tag=4)
        else:
            await dist.recv(np.zeros(1), 0, tag=4)
            error = await outcome(dist.irecv(np.zeros(1), 0, tag=3, timeout=0.02))
            assert "rank 0, from where tensors with tag 5 have come that no receive" in str(error)
            await dist.recv(np.zeros(1), 0, tag=5)
        await dist.barrier()

    await ranks(2, main)


async def test_a_timed_out_receive_stays_a_matter_of_its_rank(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 1:
            error = await outcome(dist.irecv(np.zeros(1), 0, tag=3, timeout=0.02))
            assert isinstance(error, dist.CollectiveTimeoutError)
            assert error.waiting_for == (0,)
            assert "recv from rank 0 with tag 3" in str(error)
            assert "still waiting for rank 0" in str(error)
        await dist.barrier()

    await streams(2, main)


async def test_wrong_shape_fails_the_receive_alone(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        if rank == 0:
            for size in (5, EAGER_BYTES):
                await dist.send(np.zeros(size), 1)
            await dist.send(np.array([3.0]), 1)
        else:
            for _ in range(2):
                error = await outcome(dist.irecv(np.zeros(1), 0))
                assert isinstance(error, dist.InvalidUsageError)
                assert "sent float64" in str(error)
            into = np.zeros(1)
            await dist.recv(into, 0)
            assert into[0] == 3.0
        await dist.barrier()

    await streams(2, main)


async def test_messages_for_a_group_that_the_receiver_makes_later(streams: RunRanks) -> None:
    """new_group does not wait for the others where it need not; their messages keep."""
    made = asyncio.Event()

    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        if rank == 0:
            small = dist.isend(np.array([1, 2]), 1, group)
            large = dist.isend(pattern(EAGER_BYTES + 1), 1, group, tag=1)
            await small
            made.set()
            await large
        else:
            await made.wait()
            into = np.zeros(2, np.int64)
            await dist.recv(into, 0, group)
            assert into.tolist() == [1, 2]
            big = np.zeros(EAGER_BYTES + 1, np.uint8)
            await dist.recv(big, 0, group, tag=1)
            assert (big == pattern(EAGER_BYTES + 1)).all()

    await streams(2, main)


async def test_messages_for_a_destroyed_group_are_dropped(streams: RunRanks) -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group([0, 1])
        await dist.barrier()
        if rank == 1:
            await dist.destroy_process_group(group)
            await dist.barrier()
        else:
            await dist.barrier()
            await dist.send(np.zeros(10), 1, group)
            await dist.send(np.zeros(EAGER_BYTES), 1, group)
        await dist.barrier()
        if rank == 1:
            assert current_world().endpoint.inbox.matcher.arrived_bytes() == 0

    await streams(2, main)


async def test_no_connection_before_the_first_message(streams: RunRanks) -> None:
    """A ring of messages opens a ring of connections, not one for every pair.

    Two neighbours may have two: a receive connects too, where no message comes soon.
    """
    met = asyncio.Barrier(5)  # a rank that leaves says goodbye over further connections

    async def main(rank: int) -> None:
        left, right = (rank - 1) % 5, (rank + 1) % 5
        into = np.zeros(1)
        recv = dist.irecv(into, left)
        await dist.send(np.ones(1), right)
        await recv
        await met.wait()
        peers = current_world().endpoint._peers
        assert {other for other, peer in peers.items() if peer.links} == {left, right}
        await met.wait()

    await streams(5, main)
