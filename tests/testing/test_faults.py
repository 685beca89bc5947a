"""The transport that misbehaves: faithful while it injects nothing, and each fault as promised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

import aiodist as dist
from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.testing import TRANSPORT_CHECKS, Faults, FaultyTransport, run_ranks
from aiodist.testing.check_transport import Make, pattern, turns
from aiodist.testing.sinks import Memory, Sent, Sink
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.inproc import InprocHub
from aiodist.transport.transports import Transports

SCHEMES = ("inproc", "tcp", "unix")


def transport(scheme: str, faults: Faults, hub: InprocHub | None = None) -> FaultyTransport:
    return FaultyTransport(Transports.default("127.0.0.1", hub=hub).get(scheme), faults)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def pair(
    scheme: str, faults: Faults, *, wrap_both: bool = False
) -> AsyncIterator[tuple[Connection, Connection]]:
    """The two ends of a connection; the first is wrapped, and calls itself the dialler."""
    hub = InprocHub()
    plain = Transports.default("127.0.0.1", hub=hub).get(scheme)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listening: Transport = transport(scheme, faults, hub) if wrap_both else plain
    listener = await listening.listen(accepted.put_nowait)
    with faults:
        ours = await transport(scheme, faults, hub).connect(listener.address, Deadline(10))
        theirs = await accepted.get()
        yield ours, theirs
        ours.abort()
        theirs.abort()
    await listener.close()


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
async def test_without_a_fault_it_is_the_transport_it_wraps(
    check: Callable[[Make], Awaitable[None]], scheme: str, scaled: Callable[[float], float]
) -> None:
    async def make() -> tuple[Transport, Transport]:
        hub = InprocHub()
        return transport(scheme, Faults(), hub), transport(scheme, Faults(), hub)

    async with asyncio.timeout(scaled(20)):
        await check(make)


SLOW_CHECKS = [
    check
    for check in TRANSPORT_CHECKS
    # The others count on a send that meets a stream that is free.
    if check.__name__
    in {
        "memory_of_get_buffer_is_written_in_place",
        "memory_may_be_reused_after_on_sent",
        "many_small_sends_keep_their_order",
        "close_sends_what_is_queued",
        "abort_drops_what_is_queued",
        "end_of_the_other_side_fails_queued_sends",
        "end_before_start_is_reported_at_start",
        "receivers_hand_over_in_mid_stream",
        "slow_reader_makes_sends_wait",
        "error_in_the_receiver_ends_the_stream",
        "cancelled_close_aborts",
        "refused_connect_names_the_address",
        "cancelled_connect_leaves_nothing",
        "many_connections_at_once",
    }
]


@pytest.mark.parametrize("check", SLOW_CHECKS, ids=lambda check: check.__name__)
async def test_a_late_and_slow_transport_keeps_the_promises(
    check: Callable[[Make], Awaitable[None]], scheme: str, scaled: Callable[[float], float]
) -> None:
    async def make() -> tuple[Transport, Transport]:
        hub, faults = InprocHub(), Faults(delay=0.001, bytes_per_second=800e6)
        return transport(scheme, faults, hub), transport(scheme, faults, hub)

    async with asyncio.timeout(scaled(20)):
        await check(make)


async def test_a_delay_keeps_the_order_and_comes_late(scheme: str) -> None:
    loop = asyncio.get_running_loop()
    faults = Faults(delay=0.05)
    async with pair(scheme, faults) as (ours, theirs):
        sink, begin = Sink(), loop.time()
        theirs.start(sink)
        ours.send([b"first "])
        faults.delay = 0
        ours.send([b"second"])  # not before what was sent first
        await sink.holds(12)
        assert bytes(sink.data) == b"first second"
        assert loop.time() - begin >= 0.05


async def test_a_slow_line_takes_its_time(scheme: str) -> None:
    loop = asyncio.get_running_loop()
    async with pair(scheme, Faults(bytes_per_second=1e6)) as (ours, theirs):
        data, begin = pattern(50_000), loop.time()
        memory, sent = Memory(len(data)), Sent()
        theirs.start(memory)
        ours.send([memoryview(data)[:20_000], data[20_000:]], sent)
        await memory.full()
        assert loop.time() - begin >= 0.035  # the last piece is on its way when it is handed on
        assert memory.data == data
        await sent.all_of(1)


async def test_a_cut_ends_the_stream_for_both_sides(scheme: str) -> None:
    faults = Faults()
    async with pair(scheme, faults) as (ours, theirs):
        near, far, sent = Sink(), Sink(), Sent()
        ours.start(near)
        theirs.start(far)
        faults.cut()
        await near.ended()
        await far.ended()
        assert "cut by Faults.cut()" in str(near.ends[0])
        ours.send([b"late"], sent)
        await sent.all_of(1)
        assert isinstance(sent.errors[0], DistNetworkError)
        assert faults.connections == ()


async def test_a_cut_before_anybody_reads_is_told_at_the_start(scheme: str) -> None:
    faults = Faults()
    async with pair(scheme, faults) as (ours, _):
        faults.connections[0].cut()
        near = Sink()
        ours.start(near)
        await near.ended()
        assert len(near.ends) == 1


async def test_after_a_cut_connections_are_refused_until_it_is_mended(scheme: str) -> None:
    hub, faults = InprocHub(), Faults()
    wrapped = transport(scheme, faults, hub)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await wrapped.listen(accepted.put_nowait)
    faults.cut()
    with pytest.raises(DistNetworkError, match="refused"):
        await wrapped.connect(listener.address, Deadline(10))
    await turns()
    assert accepted.empty()
    faults.mend()
    ours = await wrapped.connect(listener.address, Deadline(10))
    theirs = await accepted.get()
    ours.abort()
    theirs.abort()
    await listener.close()


async def test_silence_reaches_no_peer_and_ends_with_mend(scheme: str) -> None:
    faults = Faults()
    async with pair(scheme, faults) as (ours, theirs):
        near, far, sent = Sink(), Sink(), Sent()
        ours.start(near)
        theirs.start(far)
        ours.send([b"before"])
        await far.holds(6)
        faults.silence()
        ours.send([b"lost"], sent)
        await sent.all_of(1)  # as a kernel takes it
        theirs.send([b"lost as well"])
        late = Sent()
        for _ in range(3):
            ours.send([bytes(1 << 20)], late)
        await turns(50)
        assert 0 < late.count < 3
        assert (bytes(near.data), bytes(far.data)) == (b"", b"before")
        ours.abort()
        await turns(50)
        assert near.ends == far.ends == []  # not even this
        assert len(late.errors) == 3 - (late.count - len(late.errors))
        faults.mend()
        await far.ended()
        assert near.ends == []


async def test_connecting_into_silence_runs_into_the_deadline() -> None:
    faults = Faults()
    wrapped = transport("tcp", faults)
    accepted: list[Connection] = []
    listener = await wrapped.listen(accepted.append)
    plain = Transports.default("127.0.0.1").get("tcp")
    with faults:
        faults.silence()
        with pytest.raises(DistNetworkError, match="timed out connecting"):
            await wrapped.connect(listener.address, Deadline(0.02))
        unheard = await plain.connect(listener.address, Deadline(10))  # the kernel says yes
        await turns()
        assert accepted == []
        unheard.abort()
    await listener.close()


async def test_a_connection_that_is_made_as_silence_begins_is_silent(scheme: str) -> None:
    hub, faults = InprocHub(), Faults()
    plain = Transports.default("127.0.0.1", hub=hub).get(scheme)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await plain.listen(accepted.put_nowait)
    wrapped = transport(scheme, faults, hub)
    with faults:
        connecting = asyncio.create_task(wrapped.connect(listener.address, Deadline(0.2)))
        await turns(1)
        faults.silence()
        near = Sink()
        try:
            ours = await connecting  # it was under way
        except DistNetworkError:
            pass  # or it was not yet
        else:
            ours.start(near)
            theirs = await accepted.get()
            theirs.send([b"lost"])
            await turns(50)
            assert bytes(near.data) == b""
            ours.abort()
            theirs.abort()
    await listener.close()


async def test_dropped_sends_are_missing_whole(scheme: str) -> None:
    faults = Faults()
    async with pair(scheme, faults) as (ours, theirs):
        far, sent = Sink(), Sent()
        theirs.start(far)
        faults.drop(2)
        for word in (b"one ", b"two ", b"three"):
            ours.send([word], sent)
        await far.holds(5)
        await sent.all_of(3)
        assert sent.errors == []
        assert bytes(far.data) == b"three"


async def test_one_byte_is_damaged_and_the_memory_of_the_sender_is_not(scheme: str) -> None:
    faults = Faults()
    data = pattern(300_000)
    async with pair(scheme, faults) as (ours, theirs):
        memory = Memory(len(data))
        theirs.start(memory)
        faults.corrupt(250_001, bits=0x80)
        kept = bytearray(data)
        ours.send([memoryview(kept)[:1000], memoryview(kept)[1000:]])
        await memory.full()
        expected = bytearray(data)
        expected[250_001] ^= 0x80
        assert memory.data == expected
        assert kept == data
        assert faults.sent_bytes == len(data)


async def test_an_action_after_so_many_bytes() -> None:
    faults = Faults()
    async with pair("inproc", faults) as (ours, theirs):
        far, seen = Sink(), asyncio.Event()
        theirs.start(far)
        faults.after(10, seen.set)
        ours.send([b"nine byte"])
        await turns()
        assert not seen.is_set()
        ours.send([b"!"])
        await seen.wait()
        assert faults.sent_bytes == 10


async def test_what_is_still_to_be_done_ends_with_mend() -> None:
    faults, seen = Faults(), asyncio.Event()
    async with pair("inproc", faults) as (ours, theirs):
        far = Sink()
        theirs.start(far)
        with faults:
            faults.after(1, seen.set)
            faults.corrupt()
            faults.drop()
        ours.send([b"data"])
        await far.holds(4)
        await turns()
        assert (bytes(far.data), seen.is_set()) == (b"data", False)


async def test_memory_given_back_early_is_copied(scheme: str) -> None:
    async with pair(scheme, Faults(delay=0.01)) as (ours, theirs):
        far, kept = Sink(), bytearray(b"as it was")
        theirs.start(far)
        ours.send([memoryview(kept)])
        ours.release(memoryview(kept))
        kept[:] = b"different"
        await far.holds(9)
        assert bytes(far.data) == b"as it was"


async def test_a_close_waits_for_what_is_late(scheme: str) -> None:
    async with pair(scheme, Faults(delay=0.02), wrap_both=True) as (ours, theirs):
        far = Sink()
        theirs.start(far)
        ours.send([b"late"])
        await ours.close()
        await far.ended()
        assert bytes(far.data) == b"late"
        assert far.ends == [None]


async def test_a_receiver_that_fails_ends_the_stream() -> None:
    def refuse() -> None:
        raise DistNetworkError("refused")

    async with pair("tcp", Faults(), wrap_both=True) as (ours, theirs):
        memory = Memory(3, then=refuse)
        ours.start(memory)
        theirs.send([b"abc"])
        await memory.ended()
        assert "refused" in str(memory.ends[0])


@pytest.mark.parametrize("wrong", [{"delay": -1.0}, {"bytes_per_second": 0.0}])
def test_impossible_faults_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidUsageError):
        Faults(**wrong)


@pytest.mark.parametrize(("offset", "bits"), [(-1, 1), (0, 0), (0, 256)])
def test_impossible_corruptions_are_refused(offset: int, bits: int) -> None:
    with pytest.raises(InvalidUsageError):
        Faults().corrupt(offset, bits)


async def test_ranks_over_it_name_the_one_that_was_cut(scheme: str) -> None:
    """As in the module's docstring."""
    faults = {rank: Faults() for rank in range(3)}

    async def main(rank: int) -> int:
        await dist.barrier()
        if rank == 2:
            faults[2].cut()
        with pytest.raises(dist.PeerLostError) as caught:
            await dist.all_reduce(np.ones(4))
        return caught.value.rank

    lost = await run_ranks(3, main, scheme, wrap=lambda rank, t: FaultyTransport(t, faults[rank]))
    assert lost[:2] == [2, 2]
