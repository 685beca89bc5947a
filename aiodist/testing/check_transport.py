"""The promises of `aiodist.transport.base_transport`, as checks that every transport must pass.

A *maker* returns a fresh pair of transports that can reach each other: the first listens, the
second connects (the same object twice is fine). Run them all with `check_transport`, or one by
one from `TRANSPORT_CHECKS`, which makes for clearer test reports.
"""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, ProtocolError
from aiodist.testing.sinks import Memory, Sent, Sink
from aiodist.transport.base_transport import Connection, Transport

Make = Callable[[], Awaitable[tuple[Transport, Transport]]]

LIMIT_SECONDS = 30.0
MIB = 1 << 20


async def check_transport(make: Make) -> None:
    """Run all checks of a transport on pairs from ``make``.

    Args:
        make: ``await make()`` returns the transport that listens, and the one that connects.

    Raises:
        AssertionError: A promise is broken.
        TimeoutError: A check takes longer than 30 seconds.
    """
    for check in TRANSPORT_CHECKS:
        async with asyncio.timeout(LIMIT_SECONDS):
            await check(make)


@asynccontextmanager
async def connected(make: Make) -> AsyncIterator[tuple[Connection, Connection]]:
    """The two ends of a new connection, neither started; both gone afterwards."""
    listening, connecting = await make()
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await listening.listen(accepted.put_nowait)
    try:
        ours = await connecting.connect(listener.address, Deadline(LIMIT_SECONDS))
        theirs = await accepted.get()
        try:
            yield ours, theirs
        finally:
            ours.abort()
            theirs.abort()
    finally:
        await listener.close()


def pattern(size: int) -> bytes:
    """``size`` bytes in which no stretch repeats, the same ones every time."""
    return np.random.default_rng(size).bytes(size)


async def turns(count: int = 20) -> None:
    """Let the loop go round: time for what should not happen to happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def bytes_arrive_whole_both_ways(make: Make) -> None:
    """Every size from 0 B to 32 MiB, in one part and in several, in both directions at once."""
    async with connected(make) as ends:
        for size in (0, 1, 7, 4096, 65537, MIB, 32 * MIB):
            data = pattern(size)
            view = memoryview(data)
            memories = [Memory(size + 3), Memory(size + 3)]
            sent = Sent()
            for end, memory in zip(ends, memories, strict=True):
                end.start(memory)
            for end in ends:
                end.send([view[: size // 3], b"", view[size // 3 :]], sent)
                end.send([b"end"], sent)
            for memory in memories:
                await memory.full()
                assert memory.data == data + b"end"
            await sent.all_of(4)
            assert sent.errors == []


async def memory_of_get_buffer_is_written_in_place(make: Make) -> None:
    """Bytes land in the receiver's memory, in order, and never beyond the buffer it handed out."""
    data = pattern(200_000)
    async with connected(make) as (a, b):
        memory = Memory(len(data), pieces=(1, 2, 1000, 7, 65536))
        b.start(memory)
        a.send([data])
        await memory.full()
        assert memory.data == data


async def memory_may_be_reused_after_on_sent(make: Make) -> None:
    """After ``on_sent(None)`` the sender overwrites its memory and the receiver never sees it."""
    rounds, size = 40, 300_000
    async with connected(make) as (a, b):
        memory = Memory(rounds * size)
        b.start(memory)
        buffer = bytearray(size)
        for number in range(rounds):
            buffer[:] = bytes([number]) * size
            sent = Sent()
            a.send([memoryview(buffer)], sent)
            await sent.all_of(1)
            assert sent.errors == []
        await memory.full()
        data = memory.data
        for number in range(rounds):
            assert data[number * size : (number + 1) * size] == bytes([number]) * size


async def many_small_sends_keep_their_order(make: Make) -> None:
    """Thousands of sends of a few bytes, empty ones among them, each told once and in order."""
    count = 5000
    pieces = [str(number).encode() for number in range(count)]
    async with connected(make) as (a, b):
        sink = Sink()
        b.start(sink)
        order: list[int] = []
        done = Sent()

        def tell(number: int, error: BaseException | None) -> None:
            order.append(number)
            done(error)

        for number, piece in enumerate(pieces):
            parts = [] if number % 7 == 0 else [piece[:1], piece[1:]]
            a.send(parts, lambda error, number=number: tell(number, error))  # type: ignore[misc]
        await done.all_of(count)
        assert order == list(range(count))
        expected = b"".join(piece for number, piece in enumerate(pieces) if number % 7)
        await sink.holds(len(expected))
        assert sink.data == expected


async def close_sends_what_is_queued(make: Make) -> None:
    """Everything queued before ``close`` arrives, then the other side sees a clean end, once."""
    data = pattern(8 * MIB)
    async with connected(make) as (a, b):
        ours, theirs, sent = Sink(), Sink(), Sent()
        a.start(ours)
        a.send([data], sent)
        closing = asyncio.create_task(a.close())
        await turns()
        b.start(theirs)
        await closing
        await theirs.ended()
        assert theirs.data == data
        assert theirs.ends == [None]
        await sent.all_of(1)
        assert sent.errors == []
        await a.close()
        await turns()
        assert ours.ends == []  # not after one's own close
        a.send([b"late"], sent)
        await sent.all_of(2)
        assert isinstance(sent.errors[0], DistNetworkError)


async def both_sides_may_close_at_once(make: Make) -> None:
    """Two sides that flush at each other and no longer listen both come to an end."""
    data = pattern(8 * MIB)
    async with connected(make) as (a, b):
        sinks = Sink(), Sink()
        a.start(sinks[0])
        b.start(sinks[1])
        a.send([data])
        b.send([data])
        await asyncio.gather(a.close(), b.close(), a.close())
        assert sinks[0].ends == sinks[1].ends == []


async def abort_drops_what_is_queued(make: Make) -> None:
    """Queued sends fail, the other side learns of the end once, and abort is idempotent."""
    buffer = memoryview(bytearray(MIB))
    async with connected(make) as (a, b):
        ours, theirs, sent = Sink(), Sink(), Sent()
        a.start(ours)
        for _ in range(64):
            a.send([buffer], sent)
        a.abort()
        a.abort()
        await sent.all_of(64)
        assert all(isinstance(error, DistNetworkError) for error in sent.errors)
        assert sent.errors
        b.start(theirs)
        await theirs.ended()
        await turns()
        assert len(theirs.ends) == 1
        assert len(theirs.data) < 64 * MIB
        assert ours.ends == []


async def an_abort_behind_the_last_bytes_is_told(make: Make) -> None:
    """The other side aborts with bytes unread: its last bytes and the end come at once."""
    async with connected(make) as (a, b):
        theirs = Sink()
        b.start(theirs)
        b.send([b"never read"])
        await turns()
        a.send([b"last words"])
        a.abort()
        await theirs.ended()
        await turns()
        assert bytes(theirs.data) in (b"last words", b"")
        assert len(theirs.ends) == 1


async def end_of_the_other_side_fails_queued_sends(make: Make) -> None:
    """The other side goes while sends wait: ``lost`` once, and each ``on_sent`` with an error."""
    buffer = memoryview(bytearray(MIB))
    async with connected(make) as (a, b):
        ours, sent = Sink(), Sent()
        a.start(ours)
        for _ in range(64):
            a.send([buffer], sent)
        await turns()
        b.abort()
        await ours.ended()
        await sent.all_of(64)
        assert any(isinstance(error, DistNetworkError) for error in sent.errors)
        assert len(ours.ends) == 1


async def end_before_start_is_reported_at_start(make: Make) -> None:
    """What was sent before the end arrives first, then the clean end, even without a reader."""
    async with connected(make) as (a, b):
        sent = Sent()
        a.send([b"last words"], sent)
        closing = asyncio.create_task(a.close())
        await turns()
        sink = Sink()
        b.start(sink)
        await sink.ended()
        await closing
        assert sink.data == b"last words"
        assert sink.ends == [None]


async def receivers_hand_over_in_mid_stream(make: Make) -> None:
    """``start`` from within ``received``: what has arrived stays with the old one."""
    data = pattern(100_000)
    async with connected(make) as (a, b):
        new = Memory(len(data) - 5)
        old = Memory(5, pieces=(2,), then=lambda: b.start(new))
        b.start(old)
        a.send([data])
        await new.full()
        assert old.data + new.data == data


async def slow_reader_makes_sends_wait(make: Make) -> None:
    """A side that does not read makes sends wait, in the sender's own memory and no other."""
    count = 64
    buffer = memoryview(bytearray(MIB))
    async with connected(make) as (a, b):
        sent, memory = Sent(), Memory(count * MIB, keep=False)
        tracemalloc.start()
        try:
            for _ in range(count):
                a.send([buffer], sent)
            await turns(100)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent.count < count, "all was taken although the other side does not read"
        assert peak < MIB, f"{peak} bytes were allocated to hold queued sends"
        b.start(memory)
        await memory.full()
        await sent.all_of(count)
        assert sent.errors == []


async def callbacks_may_call_back(make: Make) -> None:
    """``send`` from on_sent a thousand times over, an echo from received, abort from received."""
    rounds = 3000
    async with connected(make) as (a, b):
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = rounds

        def again(error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if left:
                a.send([b"x"], again)
            else:
                done.set_result(None)

        echo = Memory(rounds, then=lambda: b.send([echo.data]))
        back = Memory(rounds, then=a.abort)
        b.start(echo)
        a.start(back)
        a.send([b"x"], again)
        await done
        await back.full()
        assert back.data == b"x" * rounds
        sent = Sent()
        a.send([b"y"], sent)
        await sent.all_of(1)
        assert isinstance(sent.errors[0], DistNetworkError)


async def error_in_the_receiver_ends_the_stream(make: Make) -> None:
    """What ``received`` raises closes the connection and comes back through ``lost``."""
    error = ProtocolError("not a frame")

    def refuse() -> None:
        raise error

    async with connected(make) as (a, b):
        ours, theirs = Sink(), Memory(3, then=refuse)
        a.start(ours)
        b.start(theirs)
        a.send([b"abc"])
        await ours.ended()
        assert theirs.ends == [error]
        sent = Sent()
        b.send([b"x"], sent)
        await sent.all_of(1)
        assert isinstance(sent.errors[0], DistNetworkError)


async def cancelled_close_aborts(make: Make) -> None:
    """``close`` that cannot flush and is cancelled leaves the connection closed, sends failed."""
    buffer = memoryview(bytearray(MIB))
    async with connected(make) as (a, b):
        sent = Sent()
        for _ in range(64):
            a.send([buffer], sent)
        closing = asyncio.create_task(a.close())
        await turns()
        assert not closing.done()
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        await sent.all_of(64)
        assert sent.errors
        await a.close()
        sink = Sink()
        b.start(sink)
        await sink.ended()


async def refused_connect_names_the_address(make: Make) -> None:
    """Connecting without a listener raises DistNetworkError with the address. Others live on."""
    listening, connecting = await make()
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await listening.listen(accepted.put_nowait)
    a = await connecting.connect(listener.address, Deadline(LIMIT_SECONDS))
    b = await accepted.get()
    await listener.close()
    await listener.close()
    try:
        await connecting.connect(listener.address, Deadline(LIMIT_SECONDS))
    except DistNetworkError as error:
        message = str(error)
    else:
        raise AssertionError("connected to a listener that is closed")
    assert listener.address in message
    sink = Sink()
    b.start(sink)
    a.send([b"still here"])
    await sink.holds(10)
    a.abort()
    b.abort()


async def cancelled_connect_leaves_nothing(make: Make) -> None:
    """Cancelled at any turn of the loop, ``connect`` leaves no descriptor open."""
    listening, connecting = await make()
    accepted: list[Connection] = []
    before = _descriptors()
    listener = await listening.listen(accepted.append)
    for wait in range(6):
        task = asyncio.create_task(connecting.connect(listener.address, Deadline(LIMIT_SECONDS)))
        await turns(wait)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result().abort()
    # What is still in the backlog was connected before the cancel; one more is accepted after it.
    (await connecting.connect(listener.address, Deadline(LIMIT_SECONDS))).abort()
    await turns()
    await listener.close()
    for connection in accepted:
        connection.abort()
    await turns()
    left = _descriptors() - before
    assert not left, f"descriptors left open: {left}"


def _descriptors() -> set[str]:
    """Numbers of this process's open sockets; empty where the system does not tell."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return set()
    # The listing's own descriptor, and whatever else comes and goes, is no socket.
    return {fd for fd in os.listdir(folder) if _is_socket(folder / fd)}


def _is_socket(entry: Path) -> bool:
    try:
        return os.readlink(entry).startswith("socket:")
    except FileNotFoundError:
        return False


async def many_connections_at_once(make: Make) -> None:
    """Fifty connections to one listener, each with its own bytes."""
    count = 50
    listening, connecting = await make()
    accepted: list[Connection] = []

    def echo(connection: Connection) -> None:
        accepted.append(connection)
        memory = Memory(1000, then=lambda: connection.send([memory.data]))
        connection.start(memory)

    listener = await listening.listen(echo)

    async def one(number: int) -> None:
        connection = await connecting.connect(listener.address, Deadline(LIMIT_SECONDS))
        memory = Memory(1000)
        connection.start(memory)
        data = pattern(1000 + number)[:1000]
        connection.send([data])
        await memory.full()
        assert memory.data == data
        await connection.close()

    await asyncio.gather(*(one(number) for number in range(count)))
    await listener.close()
    for connection in accepted:
        connection.abort()


TRANSPORT_CHECKS: tuple[Callable[[Make], Awaitable[None]], ...] = (
    bytes_arrive_whole_both_ways,
    memory_of_get_buffer_is_written_in_place,
    memory_may_be_reused_after_on_sent,
    many_small_sends_keep_their_order,
    close_sends_what_is_queued,
    both_sides_may_close_at_once,
    abort_drops_what_is_queued,
    an_abort_behind_the_last_bytes_is_told,
    end_of_the_other_side_fails_queued_sends,
    end_before_start_is_reported_at_start,
    receivers_hand_over_in_mid_stream,
    slow_reader_makes_sends_wait,
    callbacks_may_call_back,
    error_in_the_receiver_ends_the_stream,
    cancelled_close_aborts,
    refused_connect_names_the_address,
    cancelled_connect_leaves_nothing,
    many_connections_at_once,
)
