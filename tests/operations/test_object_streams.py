"""Streams of objects between two ranks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.testing.in_process import run_ranks
from tests.limits import scaled, until

TRANSPORTS = ["inproc", "tcp", "shm"]
MIB = 1 << 20


async def test_no_send_overtakes_one_of_another_task_that_was_called_before() -> None:
    async def on_rank(rank: int) -> list[str] | None:
        async with dist.open_stream(1 - rank) as stream:
            if rank == 1:
                await asyncio.sleep(0.05)  # the sends wait
                return [item async for item in stream]

            async def first() -> None:
                await stream.send("a 1")
                await stream.send("a 2")

            await asyncio.gather(first(), stream.send("b 1"))
        return None

    assert (await run_ranks(2, on_rank))[1] == ["a 1", "b 1", "a 2"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_objects_arrive_in_order_until_the_end(transport: str) -> None:
    def item(number: int) -> Any:
        return [
            {"number": number},
            torch.full((3,), number),
            np.full(2 * MIB, number, np.uint8),
            "text" * number,
            [[n] for n in range(10_000)] if number % 50 == 3 else None,
        ][number % 5]

    async def on_rank(rank: int) -> None:
        if rank == 0:
            async with dist.open_stream(1) as stream:
                for number in range(100):
                    await stream.send(item(number))
            return
        count = 0
        async with dist.open_stream(0) as stream:
            async for got in stream:
                expected = item(count)
                assert type(got) is type(expected)
                same = got == expected
                assert same if isinstance(same, bool) else same.all()
                count += 1
        assert count == 100

    await run_ranks(2, on_rank, transport, timeout=60)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_both_ranks_send_and_receive_at_once(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        async with dist.open_stream(1 - rank, tag=3, window=2) as stream:

            async def send() -> None:
                for number in range(200):
                    await stream.send((rank, number))
                await stream.end()

            async def receive() -> list[Any]:
                return [item async for item in stream]

            _, got = await asyncio.gather(send(), receive())
            assert got == [(1 - rank, number) for number in range(200)]

    await run_ranks(2, on_rank, transport, timeout=60)


async def ahead(stream: dist.ObjectStream, obj: Any, expected: int) -> int:
    """Send ``obj`` ``expected`` times, and once more; return how many have gone without a wait.

    Only the one too many has a limit, so that a busy machine is not taken for a receiver that is full.
    """
    for _ in range(expected):
        await stream.send(obj)
    try:
        async with asyncio.timeout(0.2):
            await stream.send(obj)
    except TimeoutError:
        return expected
    return expected + 1


@pytest.mark.parametrize(
    ("window", "max_bytes", "obj", "expected"),
    [
        (1, MIB, "x", 1),
        (5, MIB, "x", 5),
        (100, MIB, "x", 100),
        (100, MIB, bytes(300_000), 3),
        (100, 1000, bytes(MIB), 1),
        (3, 100 * MIB, bytes(3 * MIB), 3),
    ],
)
async def test_a_sender_waits_when_the_receiver_buffers_enough(
    window: int, max_bytes: int, obj: Any, expected: int
) -> None:
    """The limits are those of the receiver, in items and in bytes."""

    async def on_rank(rank: int) -> None:
        if rank == 0:
            async with dist.open_stream(1) as stream:
                assert await ahead(stream, obj, expected) == expected
                await dist.barrier()
                await stream.send(obj)
                await stream.send("last")
            return
        async with dist.open_stream(0, window=window, max_bytes=max_bytes) as stream:
            await dist.barrier()
            got = [item async for item in stream]
            assert got == [obj] * (expected + 1) + ["last"]

    await run_ranks(2, on_rank, timeout=60)


@pytest.mark.parametrize("size", [600, 200_000])
async def test_a_peer_that_sends_more_bytes_than_the_receiver_buffers_fails_the_stream(
    size: int,
) -> None:
    has_failed = asyncio.Event()

    async def on_rank(rank: int) -> None:
        stream = dist.open_stream(1 - rank, max_bytes=3 * size)
        if rank == 0:
            await until(lambda: stream._error is not None)  # type: ignore[attr-defined]
            has_failed.set()
            with pytest.raises(dist.DistNetworkError, match="rank 1 sent more into a stream"):
                assert [await anext(stream) for _ in range(8)]
            return
        await stream.send(0)
        stream._bytes = 1 << 40  # type: ignore[attr-defined]  # as if it ignored the limit
        sends = [asyncio.ensure_future(stream.send(b"x" * size)) for _ in range(7)]
        await has_failed.wait()
        for send in sends:
            send.cancel()
        await asyncio.wait(sends)

    await run_ranks(2, on_rank, timeout=20)


async def test_a_sender_waits_until_the_peer_opens_the_stream() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            async with dist.open_stream(1) as stream:
                assert await ahead(stream, 1, 0) == 0
                await dist.barrier()
                await stream.send(2)
        else:
            await dist.barrier()
            async with dist.open_stream(0) as stream:
                assert [item async for item in stream] == [2]

    await run_ranks(2, on_rank, timeout=60)


async def test_a_cancelled_send_takes_its_object_back() -> None:
    """Also one whose long part was announced and not sent yet."""

    async def on_rank(rank: int) -> None:
        if rank == 0:
            async with dist.open_stream(1) as stream:
                await stream.send("first")
                for obj in ("short", np.zeros(4 * MIB)):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await stream.send(obj)
                await dist.barrier()
                task = asyncio.create_task(stream.send(np.zeros(4 * MIB)))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await stream.send("last")
            return
        async with dist.open_stream(0, window=1) as stream:
            await dist.barrier()
            got = [item async for item in stream]
            assert got[0] == "first"
            assert got[-1] == "last"
            assert len(got) <= 3
            assert "short" not in [item for item in got if isinstance(item, str)]

    await run_ranks(2, on_rank, timeout=60)


async def test_a_cancelled_receive_loses_no_object() -> None:
    long = [[n] for n in range(50_000)]

    async def on_rank(rank: int) -> None:
        if rank == 0:
            async with dist.open_stream(1) as stream:
                for number in range(20):
                    await stream.send([number, long])
                    await asyncio.sleep(0.001)
            return
        got = []
        async with dist.open_stream(0) as stream:
            cancelled = 0
            while True:
                task = asyncio.ensure_future(anext(stream))
                for _ in range(3):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    got.append((await task)[0])
                except asyncio.CancelledError:
                    cancelled += 1
                    if cancelled % 3 == 0:
                        try:
                            got.append((await anext(stream))[0])
                        except StopAsyncIteration:
                            break
                except StopAsyncIteration:
                    break
        assert got == list(range(20))
        assert cancelled

    await run_ranks(2, on_rank, timeout=60)


async def test_several_tasks_share_a_stream() -> None:
    async def on_rank(rank: int) -> None:
        async with dist.open_stream(1 - rank) as stream:
            if rank == 0:
                await asyncio.gather(*(send(stream, first) for first in (0, 100, 200)))
                return
            parts = await asyncio.gather(*(receive(stream) for _ in range(3)))
            assert sorted(chain.from_iterable(parts)) == [
                *range(10),
                *range(100, 110),
                *range(200, 210),
            ]

    async def send(stream: dist.ObjectStream, first: int) -> None:
        for number in range(first, first + 10):
            await stream.send(number)

    async def receive(stream: dist.ObjectStream) -> list[Any]:
        return [item async for item in stream]

    await run_ranks(2, on_rank, timeout=60)


async def send_on(stream: dist.ObjectStream, obj: Any) -> None:
    """Send ``obj`` again and again, until a send raises."""
    while True:
        await stream.send(obj)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_receiver_that_closes_stops_the_sender(transport: str) -> None:
    async def on_rank(rank: int) -> None:
        for _ in range(3):  # what an old stream has left is not in the way of a new one
            if rank == 0:
                async with dist.open_stream(1) as stream:
                    with pytest.raises(dist.StreamClosedError, match="rank 1 has closed the str"):
                        await send_on(stream, np.zeros(200_000))
            else:
                async with dist.open_stream(0) as stream:
                    async for item in stream:
                        assert item.shape == (200_000,)
                        break
        stream = dist.open_stream(1 - rank)
        if rank == 0:
            await stream.send("new")
        else:
            assert await anext(stream) == "new"
        await stream.close()

    await run_ranks(2, on_rank, transport, timeout=60)


async def test_ranks_that_close_at_once_end_the_sends_that_wait_for_each_other() -> None:
    both_wait = asyncio.Barrier(2)

    async def produce(stream: dist.ObjectStream) -> None:
        while True:
            await stream.send("more than the peer reads")

    async def on_rank(rank: int) -> None:
        async with dist.open_stream(1 - rank, window=1) as stream:
            producing = asyncio.ensure_future(produce(stream))
            await until(lambda: stream._granted and not stream._items and stream._writers)  # type: ignore[attr-defined]
            await both_wait.wait()
        with pytest.raises(dist.StreamClosedError, match=f"rank {1 - rank} has closed the stream"):
            await producing

    async with asyncio.timeout(scaled(20)):
        await run_ranks(2, on_rank)


async def test_a_receiver_that_closes_and_leaves_has_closed_the_stream() -> None:
    """Its end, of which the sender learns a moment later, is no loss to the sender."""

    async def on_rank(rank: int) -> None:
        stream = dist.open_stream(1 - rank)
        if rank == 1:
            assert await anext(stream) == "first"
            await stream.close()
            await dist.destroy_process_group()
            return
        await stream.send("first")
        with pytest.raises(dist.PeerLostError):
            await dist.barrier()
        with pytest.raises(dist.StreamClosedError, match="rank 1 has closed the stream"):
            await stream.send("second")
        await stream.close()

    await run_ranks(2, on_rank, timeout=60)


@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_sender_learns_why_its_receiver_gave_up(ends_first: bool) -> None:
    async def receive() -> None:
        async with dist.open_stream(0) as stream:
            if ends_first:
                await stream.end()
            await anext(stream)
            raise OSError("disk full")

    async def send() -> None:
        async with dist.open_stream(1) as stream:
            for number in range(1000):
                await stream.send(number)

    async def on_rank(rank: int) -> None:
        if rank == 1:
            with pytest.raises(OSError, match="disk full"):
                await receive()
            return
        match = "^rank 1 gave the stream up: OSError: disk full$"
        with pytest.raises(dist.StreamClosedError, match=match):
            await send()

    await run_ranks(2, on_rank, timeout=60)


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), Mute()])
async def test_a_sender_that_fails_is_told_from_one_that_ends(error: Exception) -> None:
    async def on_rank(rank: int) -> None:
        kind = type(error)
        if rank == 0:
            with pytest.raises(kind):
                await fail()
            return
        got: list[Any] = []
        async with dist.open_stream(0) as stream:
            match = f"rank 0 gave the stream up: {kind.__name__}: "
            with pytest.raises(dist.StreamClosedError, match=match):
                await read(stream, got)
        assert got == [1]

    async def fail() -> None:
        async with dist.open_stream(1) as stream:
            await stream.send(1)
            raise error

    async def read(stream: dist.ObjectStream, got: list[Any]) -> None:
        async for item in stream:
            got.append(item)

    await run_ranks(2, on_rank, timeout=60)


async def test_a_block_that_is_cancelled_while_it_closes_gives_the_stream_up() -> None:
    left = asyncio.Event()

    async def on_rank(rank: int) -> None:
        if rank == 0:
            waiting: list[asyncio.Future[None]] = []
            ends = asyncio.Event()
            block = asyncio.ensure_future(send_ahead(waiting, ends))
            await ends.wait()
            block.cancel()
            with pytest.raises(asyncio.CancelledError):
                await block
            left.set()
            with pytest.raises(dist.InvalidUsageError, match="ended the stream"):
                await waiting[1]
            await waiting[0]
            async with dist.open_stream(1) as stream:
                await stream.send("again")
            return
        first = dist.open_stream(0, window=1)
        await left.wait()
        assert await anext(first) == [1, 2]
        with pytest.raises(dist.StreamClosedError, match="CancelledError"):
            await anext(first)
        await first.close()
        async with dist.open_stream(0) as second:
            assert await anext(second) == "again"

    async def send_ahead(waiting: list[asyncio.Future[None]], ends: asyncio.Event) -> None:
        async with dist.open_stream(1) as stream:
            waiting.append(asyncio.ensure_future(stream.send([1, 2])))
            waiting.append(asyncio.ensure_future(stream.send(3)))
            await waiting[0]  # the other one waits for room
            ends.set()

    await run_ranks(2, on_rank, timeout=20)


async def test_a_stream_that_closes_before_an_earlier_one_is_over_ends_after_that() -> None:
    closed = asyncio.Event()

    async def on_rank(rank: int) -> None:
        first = dist.open_stream(1 - rank)
        if rank == 0:
            await first.close()
            async with dist.open_stream(1):
                pass
            closed.set()
            await dist.barrier()
            return
        await closed.wait()
        assert [item async for item in first] == []
        await first.close()
        async with dist.open_stream(0) as second:
            assert [item async for item in second] == []
        await dist.barrier()

    async with asyncio.timeout(scaled(20)):
        await run_ranks(2, on_rank)


async def test_a_closed_stream_leaves_nothing_under_its_tag() -> None:
    async def on_rank(rank: int) -> None:
        closed = []
        for tag in range(20):
            async with dist.open_stream(1 - rank, tag=tag) as stream:
                await stream.send(tag)
                assert await anext(stream) == tag
            closed.append(weakref.ref(stream))
        del stream
        await dist.barrier()
        gc.collect()
        # The end of the last ones may be on its way.
        assert [ref() for ref in closed[:-2]] == [None] * 18
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=20)


async def test_a_peer_that_leaves_fails_the_stream_after_what_it_has_sent() -> None:
    async def on_rank(rank: int) -> None:
        stream = dist.open_stream(1 - rank)
        if rank == 0:
            await stream.send("before")
            await dist.barrier()
            return  # without closing
        await dist.barrier()
        assert await anext(stream) == "before"
        with pytest.raises(dist.PeerLostError):
            await anext(stream)
        # An error that is raised again has no frames of the calls before.
        depths = set()
        for _ in range(3):
            with pytest.raises(dist.PeerLostError) as raised:
                await stream.send(1)
            depths.add(len(raised.traceback))
        assert len(depths) == 1
        with pytest.raises(dist.PeerLostError):
            await stream.close()

    await run_ranks(2, on_rank, timeout=60)


async def test_objects_that_are_sent_right_before_the_group_is_destroyed_arrive() -> None:
    async def on_rank(rank: int) -> list[Any]:
        stream = dist.open_stream(1 - rank)
        await stream.send("open")
        assert await anext(stream) == "open"
        if rank == 0:
            await stream.send("last words")
            await dist.destroy_process_group()
            return []
        got = [await anext(stream)]
        with pytest.raises(dist.PeerLostError):
            await anext(stream)
        return got

    assert (await run_ranks(2, on_rank, timeout=60))[1] == ["last words"]


async def test_a_group_that_is_closed_ends_its_streams() -> None:
    async def on_rank(rank: int) -> None:
        group = await dist.new_group([0, 1])
        stream = dist.open_stream(1 - rank, group=group)
        waiting = asyncio.ensure_future(anext(stream))
        await dist.barrier()
        await dist.destroy_process_group(group)
        with pytest.raises(dist.DistError):
            await waiting

    await run_ranks(2, on_rank, timeout=60)


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_the_end_of_the_group_ends_sends_that_the_peer_takes_no_more(transport: str) -> None:
    """The peer waits for the sender in `shrink`, so the sends must not wait for the peer."""
    groups: dict[int, dist.ProcessGroup] = {}

    async def on_rank(rank: int) -> None:
        groups[rank] = group = await dist.new_group()
        stream = dist.open_stream(1 - rank, group=group)
        await stream.send("first")
        assert await anext(stream) == "first"
        await dist.barrier()
        if rank == 0:
            # The second send waits for the first one.
            sends = [asyncio.create_task(stream.send(np.zeros(2 * MIB))) for _ in range(2)]
            groups[1].revoke()
            for send in sends:
                with pytest.raises(dist.GroupRevokedError, match="rank 1 revoked"):
                    await send
        await dist.shrink(group)

    async with asyncio.timeout(scaled(5)):
        await run_ranks(2, on_rank, transport)


async def test_objects_that_do_not_travel_leave_the_stream_as_it_was() -> None:
    async def on_rank(rank: int) -> None:
        async with dist.open_stream(1 - rank, allow_pickle=rank == 0) as stream:
            if rank == 0:
                await stream.send(1)
                with pytest.raises(TypeError, match="cannot be pickled"):
                    await stream.send(lambda: 0)
                await stream.send(object())
                await stream.send(2)
            else:
                assert await anext(stream) == 1
                with pytest.raises(TypeError, match="allow_pickle"):
                    await anext(stream)
                assert await anext(stream) == 2

    await run_ranks(2, on_rank, timeout=60)


async def test_another_event_loop_is_refused_and_told_the_way() -> None:
    async def on_rank(rank: int) -> None:
        async with dist.open_stream(1 - rank) as stream:
            for call in (partial(stream.send, 1), stream.__anext__, stream.end, stream.close):
                with pytest.raises(dist.InvalidUsageError, match="run_coroutine_threadsafe"):
                    await asyncio.to_thread(asyncio.run, call())
            await stream.send(2)
            assert await anext(stream) == 2

    await run_ranks(2, on_rank, timeout=60)


async def test_misuse_of_streams() -> None:
    async def on_rank(rank: int) -> None:
        peer = 1 - rank
        for arguments in ({"window": 0}, {"max_bytes": 0}, {"window": 1 << 63}):
            with pytest.raises(dist.InvalidUsageError, match="must be at least 1"):
                dist.open_stream(peer, **arguments)
        with pytest.raises(dist.InvalidUsageError, match="is this rank itself"):
            dist.open_stream(rank)
        with pytest.raises(dist.InvalidUsageError, match="outside any event loop"):
            await asyncio.to_thread(dist.open_stream, peer)
        stream = dist.open_stream(peer)
        with pytest.raises(dist.InvalidUsageError, match="tag 0 is open: close it first"):
            dist.open_stream(peer)
        other = dist.open_stream(peer, tag=1)
        await stream.end()
        with pytest.raises(dist.InvalidUsageError, match="has ended the stream"):
            await stream.send(1)
        await stream.close()
        await stream.close()
        with pytest.raises(dist.InvalidUsageError, match="has closed the stream"):
            await anext(stream)
        await other.close()
        assert "closed" in repr(stream)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=60)
