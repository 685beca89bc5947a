"""A rank that does not answer at once is no lost rank: it computes, or one of the two lacks something."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import ssl
import time
from collections.abc import Callable

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistError, DistNetworkError, HandshakeError
from aiodist.links import dialing
from aiodist.links.dialing import (
    CONNECT_SECONDS,
    SILENT_HOST_SECONDS,
    CutOffError,
    needs_a_person,
    retry_seconds_after,
)
from aiodist.links.losses import peer_lost
from aiodist.links.rank_info import RankInfo
from aiodist.p2p import connector
from aiodist.p2p.endpoint import Endpoint
from aiodist.p2p.link import Link
from aiodist.transport.base_transport import Connection
from aiodist.transport.connecting import UnansweredError
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.wire.handshake import Handshake
from tests.limits import scaled, until
from tests.p2p.test_departure import KEY, EndpointEvents, Far


class Meeting:
    """Rank 0's endpoint, and a listener in the place of rank 1 that answers to some connections."""

    def __init__(self, transport: InprocTransport | TcpTransport) -> None:
        self.transport = transport
        self.ways: list[InprocTransport] = []
        """Rank 0's other transports, by which it tries to connect first."""
        self.events = EndpointEvents()
        self.arrived: list[Connection] = []
        self.answers: Callable[[int], bool] = lambda number: True
        """Whether the listener answers to its connection of this number, from 0 on."""

    async def open(self) -> Endpoint:
        listener = await self.transport.listen(self._accept)
        ways = [*self.ways, self.transport]
        self.endpoint = Endpoint(0, 2, ways, self.events)  # type: ignore[arg-type]
        rank_info = await self.endpoint.open()
        addresses = *(f"{way.scheme}:1" for way in self.ways), listener.address
        other = RankInfo(1, "host", "id", 1, addresses)
        self.endpoint.meet([rank_info, other], KEY)
        self._listener = listener
        return self.endpoint

    def _accept(self, connection: Connection) -> None:
        self.arrived.append(connection)
        if self.answers(len(self.arrived) - 1):
            proven = asyncio.get_running_loop().create_future()
            handshake = Handshake(KEY, 1, 2, 1 << 20)
            Link(Far(proven), connection, handshake).start()  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.endpoint.close(0)
        await self._listener.close()
        for connection in self.arrived:
            connection.abort()


async def test_a_process_that_takes_connections_and_answers_late_is_no_lost_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector, "HANDSHAKE_SECONDS", 0.05)
    monkeypatch.setattr(connector, "_LONGEST_HANDSHAKE", 0.15)
    authenticate, limits = connector.authenticate, []

    async def noted(link: Link, rank: int, seconds: float) -> None:
        limits.append(seconds)
        await authenticate(link, rank, seconds)

    monkeypatch.setattr(connector, "authenticate", noted)
    meeting = Meeting(InprocTransport(InprocHub()))
    meeting.answers = lambda number: number >= 3
    endpoint = await meeting.open()
    endpoint.reach(1)
    await until(lambda: endpoint.connected(1))
    assert len(meeting.arrived) == 4
    assert limits == [0.05, 0.1, 0.15, 0.15]
    assert meeting.events.lost == []
    await meeting.close()


async def test_a_connection_that_is_cut_off_before_the_proof_is_made_anew() -> None:
    meeting = Meeting(TcpTransport("127.0.0.1"))

    def answers(number: int) -> bool:
        if number == 0:
            meeting.arrived[0].abort()
        return number > 0

    meeting.answers = answers
    endpoint = await meeting.open()
    endpoint.reach(1)
    await until(lambda: endpoint.connected(1))
    assert meeting.events.lost == []
    await meeting.close()


async def test_a_rank_that_computed_meanwhile_dials_again_after_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "CONNECT_SECONDS", 0.5)
    meeting = Meeting(TcpTransport("127.0.0.1"))

    def answers(number: int) -> bool:
        if number == 0:
            meeting.arrived[0].abort()
            time.sleep(0.6)  # rank 0 computes for longer than it would dial again
        return number > 0

    meeting.answers = answers
    endpoint = await meeting.open()
    endpoint.reach(1)
    await until(lambda: endpoint.connected(1) or meeting.events.lost)
    assert meeting.events.lost == []
    await meeting.close()


class Poor(InprocTransport):
    """Has no descriptor for its first two connections."""

    lacks = 2

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        if self.lacks:
            self.lacks -= 1
            lacking = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise DistNetworkError(f"cannot connect to {address}: no descriptor") from lacking
        return await super().connect(address, deadline)


async def test_a_rank_without_descriptors_blames_no_other_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meeting = Meeting(Poor(InprocHub()))
    endpoint = await meeting.open()
    with caplog.at_level(logging.WARNING, "aiodist"):
        endpoint.reach(1)
        await until(lambda: endpoint.connected(1))
    assert meeting.events.lost == []
    (said,) = caplog.messages
    assert said.startswith("rank 0 cannot connect to rank 1, and tries again: cannot connect to")
    assert "no descriptor" in said
    await meeting.close()


async def test_a_child_closes_a_connection_whose_handshake_is_under_way() -> None:
    meeting = Meeting(TcpTransport("127.0.0.1"))
    meeting.answers = lambda number: False
    endpoint = await meeting.open()
    endpoint.reach(1)
    await until(lambda: bool(meeting.arrived and endpoint._connector._links))
    (link,) = endpoint._connector._links
    ended = asyncio.get_running_loop().create_future()

    class Reader:
        def get_buffer(self) -> memoryview:
            return memoryview(bytearray(4096))

        def received(self, count: int) -> None:
            pass

        def lost(self, error: BaseException | None) -> None:
            ended.set_result(error)

    meeting.arrived[0].start(Reader())
    endpoint.close_in_child()  # as the fork's child calls it, where it is the only end left
    async with asyncio.timeout(10):
        await ended
    link.connection.abort()
    connecting = endpoint.peer(1).connecting
    assert connecting is not None
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await meeting._listener.close()


class SlowTransport(InprocTransport):
    """Answers at no address, until the deadline has passed."""

    scheme = "slow"

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        await asyncio.sleep(deadline.remaining())
        raise UnansweredError(f"timed out connecting to {address}")


class HastyTransport(InprocTransport):
    """Needs time to connect, as every transport does."""

    async def connect(self, address: str, deadline: Deadline) -> Connection:
        if deadline.expired():
            raise UnansweredError(f"timed out connecting to {address}")
        return await super().connect(address, deadline)


async def test_an_address_that_does_not_answer_leaves_the_next_one_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector, "CONNECT_SECONDS", 0.05)
    hub = InprocHub()
    meeting = Meeting(HastyTransport(hub))
    meeting.ways = [SlowTransport(hub)]
    endpoint = await meeting.open()
    endpoint.reach(1)
    async with asyncio.timeout(scaled(5)):
        await until(lambda: endpoint.connected(1))
    await meeting.close()


def failed(cause: BaseException | None, error: type[DistError] = DistNetworkError) -> DistError:
    found = error("cannot connect")
    found.__cause__ = cause
    return found


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (failed(ConnectionRefusedError(errno.ECONNREFUSED, "refused")), 0.0),
        (failed(TimeoutError()), 0.0),
        (failed(OSError(errno.EHOSTUNREACH, "no route")), 0.0),
        (failed(None, HandshakeError), 0.0),
        (failed(ssl.SSLError(1, "alert certificate required"), CutOffError), 0.0),
        (failed(failed(None), CutOffError), CONNECT_SECONDS),
        (failed(failed(ConnectionResetError()), CutOffError), CONNECT_SECONDS),
        (failed(ssl.SSLEOFError(8, "EOF")), CONNECT_SECONDS),
        (failed(OSError(errno.EADDRNOTAVAIL, "no port")), CONNECT_SECONDS),
        (failed(TimeoutError(), UnansweredError), math.inf),
        (failed(failed(TimeoutError(), UnansweredError)), math.inf),
        (failed(OSError(errno.EMFILE, "too many files")), math.inf),
        (failed(failed(OSError(errno.ENFILE, "too many files"))), math.inf),
    ],
)
def test_how_long_an_address_is_dialled_again(error: DistError, seconds: float) -> None:
    assert retry_seconds_after(error, watched=False) == seconds


def test_a_silent_host_whose_rank_is_watched_is_dialled_again() -> None:
    silent = failed(TimeoutError())
    assert retry_seconds_after(silent, watched=True) == SILENT_HOST_SECONDS
    assert needs_a_person(silent)
    assert not needs_a_person(failed(TimeoutError(), UnansweredError))


async def test_a_newcomer_in_the_place_of_a_lost_rank_is_answered_once_it_is_taken_in() -> None:
    meeting = Meeting(InprocTransport(InprocHub()))
    endpoint = await meeting.open()
    old = endpoint.rank_infos()[1]
    endpoint.give_up(1, peer_lost(old, "was lost", departure="died"))

    async def dial() -> tuple[Far, Link, asyncio.Future[None]]:
        stream = await meeting.transport.connect(endpoint.rank_info.addresses[0], Deadline(10))
        proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        far = Far(proven)
        link = Link(far, stream, Handshake(KEY, 1, 2, 1 << 20))  # type: ignore[arg-type]
        link.start(0)
        return far, link, proven

    far, first, unanswered = await dial()
    await until(lambda: bool(endpoint._pending))
    await asyncio.sleep(0.05)
    assert not unanswered.done()
    endpoint.renew(RankInfo(1, "host", "id", 2, old.addresses))
    await until(lambda: far.ended)
    _, second, proven = await dial()
    await proven
    await until(lambda: endpoint.connected(1))
    assert [lost for lost, _ in meeting.events.lost] == [1]
    for link in (first, second):
        link.connection.abort()
    await meeting.close()
