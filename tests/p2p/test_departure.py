"""A rank leaves over two streams at once; whichever end is seen first, its last words count."""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, PeerLostError, ProtocolError
from aiodist.links import closing_streams
from aiodist.links.rank_info import RankInfo
from aiodist.p2p import endpoint as endpoint_module
from aiodist.p2p.departure import Departure
from aiodist.p2p.endpoint import Endpoint
from aiodist.p2p.link import Link
from aiodist.p2p.peer import Peer
from aiodist.shm.shared_memory import MIN_BYTES, SharedMemory
from aiodist.testing.check_transport import turns
from aiodist.transport.base_transport import Connection, OnAccept
from aiodist.transport.inproc import InprocHub, InprocListener, InprocTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.wire.frames import FrameType, Key, encode
from aiodist.wire.handshake import Handshake
from tests.limits import until

KEY = bytes(32)


class EndpointEvents:
    """The world as the endpoint sees it."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, bool]] = []

    def activity(self) -> str:
        return ""

    def is_over(self, key: Key) -> bool:
        return False

    def late_message(self, key: Key, src: int, meta: bytes, length: int) -> None:
        raise AssertionError("no message was sent")

    def explained(self, error: PeerLostError, last: object) -> PeerLostError:
        return error

    def peer_lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        self.lost.append((rank, departed))


async def test_a_stream_that_ends_while_another_still_introduces_itself() -> None:
    hub = InprocHub()
    transport = InprocTransport(hub)
    events = EndpointEvents()
    endpoint = Endpoint(0, 2, [transport], events)  # type: ignore[arg-type]  # all that is asked
    rank_info = await endpoint.open()
    endpoint.meet([rank_info, RankInfo(1, "host", "id", 1, ())], KEY)

    stream = await transport.connect(rank_info.addresses[0], Deadline(10))
    proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    far = Link(Far(proven), stream, Handshake(KEY, 1, 2, 1 << 20))  # type: ignore[arg-type]
    far.start(0)
    await proven
    links = endpoint.peer(1).links
    await until(lambda: bool(links))
    # A second stream, on which rank 1 has not said a word yet; then the first one ends.
    second = await transport.connect(rank_info.addresses[0], Deadline(10))
    await until(lambda: bool(endpoint._pending))
    stream.abort()
    await until(lambda: links[0].failed is not None)
    assert events.lost == []
    second.abort()
    await endpoint.close()


class Heartbeat:
    """Heartbeat threads, as the endpoint uses them."""

    async def open(self, vitals: object, report: object, report_departure: Any) -> tuple[str, ...]:
        self.report_departure = report_departure
        return ()

    def meet(self, rank_infos: object, key: bytes) -> None: ...

    def last_heartbeat_of(self, rank: int) -> str:
        return ""

    async def close(self) -> None: ...


async def test_a_goodbye_by_heartbeat_counts_where_no_stream_can_bring_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "_LAST_WORDS_SECONDS", 0.001)
    transport, events, heartbeat = InprocTransport(InprocHub()), EndpointEvents(), Heartbeat()
    make: Any = Endpoint
    endpoint = make(0, 2, [transport], events, heartbeat=heartbeat)
    rank_info = await endpoint.open()
    endpoint.meet([rank_info, RankInfo(1, "host", "id", 1, ())], KEY)
    stranger = await transport.connect(rank_info.addresses[0], Deadline(10))
    await until(lambda: bool(endpoint._pending))
    heartbeat.report_departure(1, b"of an earlier process")
    heartbeat.report_departure(1, endpoint.peer(1).rank_info.mark)
    await asyncio.sleep(0.05)
    assert events.lost == []  # the connection may be rank 1's
    stranger.abort()
    await until(lambda: events.lost == [(1, True)])
    await endpoint.close()


class Far:
    """Rank 1's side, as far as a handshake needs it."""

    def __init__(self, proven: asyncio.Future[None]) -> None:
        self._proven = proven
        self.ended = False

    def greeted(self, link: Link) -> bool:
        return True

    def proven(self, link: Link, rank: int) -> None:
        self._proven.set_result(None)

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        self.ended = True


class Met:
    """Rank 0's endpoint, to which rank 1 has made some streams and said nothing on any."""

    async def open(self, count: int = 2, **more: Any) -> None:
        """``more``: for the endpoint."""
        hub = InprocHub()
        self._transport = InprocTransport(hub)
        self.events = EndpointEvents()
        make: Any = Endpoint
        self.endpoint: Endpoint = make(0, 2, [self._transport], self.events, **more)
        self._rank_info = await self.endpoint.open()
        self.endpoint.meet([self._rank_info, RankInfo(1, "host", "id", 1, ())], KEY)
        self.streams = [await self._stream() for _ in range(count)]
        await until(lambda: len(self.endpoint.peer(1).links) == count)

    async def _stream(self) -> tuple[Far, Connection]:
        stream = await self._transport.connect(self._rank_info.addresses[0], Deadline(10))
        proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        far = Far(proven)
        link = Link(far, stream, Handshake(KEY, 1, 2, 1 << 20))  # type: ignore[arg-type]
        link.start(0)
        await proven
        return far, stream


def exit_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_child_that_is_forked_while_a_rank_opens_closes_its_listeners() -> None:
    statuses: list[int] = []

    class Forking(InprocTransport):
        """Fork when the first listener of the rank is there."""

        async def listen(self, on_accept: OnAccept) -> InprocListener:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
                child = os.fork()
            if child == 0:
                try:
                    listener: Any = endpoint._listeners[0]
                    os._exit(0 if listener._accepting._sock.fileno() < 0 else 1)
                finally:
                    os._exit(2)
            statuses.append(exit_status(child))
            return await super().listen(on_accept)

    ways = [TcpTransport("127.0.0.1"), Forking(InprocHub())]
    endpoint = Endpoint(0, 2, ways, EndpointEvents())  # type: ignore[arg-type]
    await endpoint.open()
    assert statuses == [0]
    await endpoint.close()


async def test_a_stream_that_is_proven_after_its_rank_was_lost_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = Met()
    greeted = Endpoint.greeted

    def greeted_and_lost(endpoint: Endpoint, link: Link) -> bool:
        answers = greeted(endpoint, link)
        endpoint.give_up(1, PeerLostError("rank 1 is lost", rank=1))
        return answers

    monkeypatch.setattr(Endpoint, "greeted", greeted_and_lost)
    await met.open(1)
    ((far, _),) = met.streams
    await until(lambda: far.ended)  # so it learns that it counts as lost
    await met.endpoint.close()


async def test_a_thread_that_drives_the_loop_may_find_that_a_peer_breaks_the_protocol() -> None:
    """As in a blocking receive, which looks into a message ring where no loop runs."""
    met = Met()
    await met.open(1)
    ((far, _),) = met.streams
    peer, loop = met.endpoint.peer(1), asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        peer.shm_receiver.broken(ProtocolError("malformed data in its ring"))
    finally:
        asyncio._set_running_loop(loop)
    assert met.events.lost == [(1, False)]
    await until(lambda: far.ended)
    await met.endpoint.close()


async def test_a_leaving_rank_makes_no_connection_behind_its_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, arrived = InprocTransport(InprocHub()), list[Connection]()
    silent = await transport.listen(arrived.append)
    endpoint = Endpoint(0, 2, [transport], EndpointEvents())  # type: ignore[arg-type]
    rank_info = await endpoint.open()
    endpoint.meet([rank_info, RankInfo(1, "host", "id", 1, (silent.address,))], KEY)

    async def finish(departure: Departure, tasks: list[asyncio.Task[Any]]) -> None:
        endpoint.wake(1, 0)  # as the news of a failed operation would be sent, which comes just now
        await until(lambda: bool(arrived))

    monkeypatch.setattr(Departure, "finish", finish)
    await endpoint.close()
    await turns(5)
    assert endpoint.peer(1).connecting is None
    await silent.close()


async def test_an_abandoned_endpoint_abandons_each_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, told = InprocTransport(InprocHub()), list[int]()
    endpoint = Endpoint(0, 2, [transport], EndpointEvents())  # type: ignore[arg-type]
    endpoint.meet([await endpoint.open(), RankInfo(1, "host", "id", 1, ())], KEY)
    monkeypatch.setattr(Peer, "abandon", lambda peer: told.append(peer.rank))
    endpoint.abandon()
    assert told == [1]


async def test_lost_processes_are_other_processes_of_this_host() -> None:
    hub, events = InprocHub(), EndpointEvents()
    endpoint = Endpoint(0, 6, [InprocTransport(hub)], events, host="id")  # type: ignore[arg-type]
    own = await endpoint.open()
    others = [
        RankInfo(1, "host", "id", 11, ()),
        RankInfo(2, "host", "id", 12, ()),  # which is there
        RankInfo(3, "other", "other id", 13, ()),
        RankInfo(4, "host", "id", own.pid, ()),  # a rank of this process
        RankInfo(5, "host", "id", 15, ()),
    ]
    endpoint.meet([own, *others], KEY)
    for rank in (1, 3, 4, 5):
        endpoint.give_up(rank, PeerLostError("lost", rank=rank))
    assert endpoint.lost_processes() == [11, 15]
    await endpoint.close()


async def test_a_close_that_is_cancelled_twice_releases_the_shared_memory() -> None:
    heartbeat, memory = Heartbeat(), SharedMemory.create(0, MIN_BYTES)
    waits = asyncio.Event()

    async def never() -> None:
        waits.set()
        await asyncio.Event().wait()

    heartbeat.close = never  # type: ignore[method-assign]
    make: Any = Endpoint
    endpoint = make(
        0, 2, [InprocTransport(InprocHub())], EndpointEvents(), heartbeat=heartbeat, memory=memory
    )
    rank_info = await endpoint.open()
    endpoint.meet([rank_info, RankInfo(1, "host", "id", 1, ())], KEY)
    closing = asyncio.create_task(endpoint.close())
    for _ in range(2):
        await waits.wait()
        waits.clear()
        closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert memory.doorbell.fd < 0


async def test_one_of_two_streams_is_cut_and_the_other_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 is given up, and learns it from the end of the stream that was not cut."""
    monkeypatch.setattr(closing_streams, "QUIET_SECONDS", 0.01)
    met = Met()
    await met.open()
    (_, cut), (far, _) = met.streams
    cut.abort()
    await until(lambda: met.events.lost == [(1, False)])
    await until(lambda: far.ended)
    await met.endpoint.close()


@pytest.mark.parametrize("breaks", [False, True])
async def test_the_stream_that_ends_first_says_why(
    monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """Rank 1 ends its second stream because this rank has lost the first, or breaks the protocol there."""
    monkeypatch.setattr(closing_streams, "QUIET_SECONDS", 1e6)
    met = Met()
    await met.open()
    first, second = met.endpoint.peer(1).links
    first.lost(DistNetworkError("the system refuses to send"))  # type: ignore[attr-defined]
    assert met.events.lost == []
    _, stream = met.streams[1]
    stream.send([encode(FrameType.WANT, (1, 99, 0), id=1)])
    await until(lambda: second.carries)  # type: ignore[attr-defined]
    if breaks:
        stream.send([bytes([255]) * 64])
    else:
        stream.abort()
    await until(lambda: met.events.lost == [(1, False)])
    said = str(met.endpoint.peer(1).error)
    assert ("refuses to send" in said) is not breaks
    await met.endpoint.close()


async def test_the_only_stream_ends_before_the_goodbye_comes_by_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 leaves as this rank's connection to it comes up, on which it has said nothing."""
    monkeypatch.setattr(closing_streams, "QUIET_SECONDS", 1e6)
    met, heartbeat = Met(), Heartbeat()
    await met.open(1, heartbeat=heartbeat)
    ((_, stream),) = met.streams
    stream.abort()
    peer = met.endpoint.peer(1)
    await until(lambda: bool(peer.suspicion or met.events.lost))
    heartbeat.report_departure(1, peer.rank_info.mark)
    assert met.events.lost == []
    assert peer.suspicion is not None
    peer.suspicion._look()  # its time is up
    assert met.events.lost == [(1, True)]
    await met.endpoint.close()


async def test_a_stream_broken_by_invalid_bytes_is_not_a_departure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing_streams, "QUIET_SECONDS", 1e6)
    met = Met()
    await met.open()
    (_, broken), (far, _) = met.streams
    broken.send([bytes([255]) * 64])
    await until(lambda: met.events.lost == [(1, False)])
    await until(lambda: far.ended)
    await met.endpoint.close()


async def test_no_peer_is_given_up_as_long_as_it_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing_streams, "QUIET_SECONDS", 0)
    heard = iter([1, 2, 2, 3, 3, 3])  # at the beginning and the end of each wait

    given_up = asyncio.Event()
    closing_streams.LossSuspicion(lambda: next(heard), given_up.set)
    await given_up.wait()
    assert list(heard) == []
