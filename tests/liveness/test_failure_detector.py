"""Many ranks' circles in one loop: death, silence, farewell, and how the news gets round."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Any

import pytest

from aiodist.errors import DistNetworkError, ProtocolError
from aiodist.links.rank_info import RankInfo
from aiodist.liveness import failure_detector
from aiodist.liveness.failure_detector import FailureDetector
from aiodist.liveness.heartbeat_connection import HeartbeatConnection
from aiodist.liveness.loss_notice import MAX_TEXT, LossNotice
from aiodist.liveness.watch_ring import neighbours, ring_order
from aiodist.testing.faults import Faults, FaultyTransport
from aiodist.testing.sinks import Memory
from aiodist.transport.base_transport import Connection, Listener, OnAccept, Transport
from aiodist.transport.tcp import TcpTransport
from aiodist.wire.frames import FrameType, decode, encode
from tests.limits import scaled, until

KEY = b"k" * 32
PATIENT = 600.0
"""A timeout that no test waits for."""


class Detector(FailureDetector):
    """A failure detector that keeps the heartbeat connections it has made."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heartbeat_connections: dict[int, HeartbeatConnection] = {}

    def proven(self, line: HeartbeatConnection) -> None:
        super().proven(line)
        self.heartbeat_connections[line.rank] = line


class AcceptingTransport(FaultyTransport):
    """Call ``accepted()`` when a connection has been accepted."""

    def __init__(self, inner: Transport, faults: Faults) -> None:
        super().__init__(inner, faults)
        self.accepted: Callable[[], None] = lambda: None

    async def listen(self, on_accept: OnAccept) -> Listener:
        def accept(connection: Connection) -> None:
            on_accept(connection)
            self.accepted()

        return await super().listen(accept)


class Rank:
    """A failure detector, and what it has reported."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.reports: list[LossNotice] = []
        self.activity = f"works at {rank}"
        self.address: tuple[str, ...] = ()
        self.rank_infos: list[RankInfo] = []
        self._faults = Faults()
        self.transport = AcceptingTransport(TcpTransport("127.0.0.1"), self._faults)
        self.departures: list[tuple[int, bytes]] = []
        self.detector = Detector(
            rank,
            size,
            [self.transport],
            timeout,
            lambda: self.activity,
            self.reports.append,
            lambda *departed: self.departures.append(departed),
        )
        self.die = self._faults.cut
        """End as when the kernel kills a process: every socket closes without a message."""
        self.fall_silent = self._faults.silence
        """As a stopped process: its sockets stay, and nothing moves any more."""

    async def open(self) -> tuple[str, ...]:
        self.address = await self.detector.open()
        return self.address

    def meet(self, rank_infos: list[RankInfo]) -> None:
        self.rank_infos = rank_infos
        self.detector.meet(rank_infos, KEY)

    def lost(self) -> dict[int, LossNotice]:
        return {notice.rank: notice for notice in self.reports}

    def mark(self, rank: int) -> bytes:
        return self.rank_infos[rank].mark

    def neighbours(self, gone: Collection[int] = ()) -> list[int]:
        ring = ring_order([rank_info.host_id for rank_info in self.rank_infos])
        return neighbours(ring, self.detector.rank, gone)

    def hear(self, notice: LossNotice, source: int) -> None:
        """Receive ``notice`` from rank ``source``."""
        frame, _ = decode(memoryview(encode(FrameType.LOST, meta=notice.encode())))
        self.detector.said(self.detector.heartbeat_connections[source], frame)


Make = Callable[..., Awaitable[list[Rank]]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """``make(size, timeout)``: so many circles that have met and know all their neighbours."""
    ranks: list[Rank] = []

    async def start(size: int, timeout: float = PATIENT) -> list[Rank]:
        ranks.extend(Rank(rank, size, timeout) for rank in range(size))
        addresses = [await rank.open() for rank in ranks]
        rank_infos = [RankInfo(n, "host", "id", 1, (), where) for n, where in enumerate(addresses)]
        for rank in ranks:
            rank.meet(rank_infos)
        await until(lambda: all(complete(rank, []) for rank in ranks))
        return ranks

    yield start
    await asyncio.gather(*(rank.detector.leave() for rank in ranks))


def complete(rank: Rank, gone: list[int]) -> bool:
    """Whether it has heard of each of its neighbours."""
    known = {other for other in range(rank.detector.size) if rank.detector.last_heartbeat_of(other)}
    return known >= set(rank.neighbours(gone)) and not known & set(gone)


def has_heard(rank: Rank, other: Rank) -> bool:
    return rank.detector.last_heartbeat_of(other.rank).endswith(
        f" s before the loss it {other.activity}"
    )


@pytest.mark.parametrize("size", [2, 3, 8])
async def test_a_death_is_known_to_all_at_once_and_the_ring_closes(make: Make, size: int) -> None:
    ranks = await make(size)
    ranks[1].die()
    rest = [rank for rank in ranks if rank is not ranks[1]]
    await until(lambda: all(rank.reports for rank in rest))
    for rank in rest:
        (notice,) = rank.reports
        assert notice.rank == 1
        assert notice.noticed_by in ranks[1].neighbours()
        assert "it died" in notice.reason
        assert re.fullmatch(r"\d+\.\d s before the loss it works at 1", notice.last)
    await until(lambda: all(complete(rank, [1]) for rank in rest))
    assert all(len(rank.reports) == 1 for rank in rest)


async def test_neighbours_that_die_together_are_all_found(make: Make) -> None:
    ranks = await make(8)
    for number in (2, 3, 4):
        ranks[number].die()
    rest = [rank for n, rank in enumerate(ranks) if n not in (2, 3, 4)]
    await until(lambda: all(rank.lost().keys() == {2, 3, 4} for rank in rest))
    await until(lambda: all(complete(rank, [2, 3, 4]) for rank in rest))


async def test_a_watcher_that_dies_is_replaced_and_its_charge_is_still_watched(make: Make) -> None:
    """1's neighbours go one after the other; its own death is seen by those who took over."""
    ranks = await make(8)
    gone: list[int] = []
    for number in (0, 2, 3, 7):
        ranks[number].die()
        gone.append(number)
        rest = [rank for n, rank in enumerate(ranks) if n not in gone]
        await until(lambda rest=rest: all(complete(rank, gone) for rank in rest))
    ranks[1].die()
    rest = [ranks[n] for n in (4, 5, 6)]
    await until(lambda: all(1 in rank.lost() for rank in rest))
    assert {rank.lost()[1].noticed_by for rank in rest} <= {4, 5, 6}


@pytest.mark.parametrize("late", [0, 1])
async def test_a_rank_that_meets_late_lives(late: int, scaled: Callable[[float], float]) -> None:
    """Its loop computes while its heartbeat thread knows neither the other ranks nor the secret."""
    timeout = scaled(0.5)
    ranks = [Rank(rank, 2, timeout) for rank in range(2)]
    addresses = [await rank.open() for rank in ranks]
    rank_infos = [RankInfo(n, "host", "id", 1, (), where) for n, where in enumerate(addresses)]
    ranks[1 - late].meet(rank_infos)
    await asyncio.sleep(4 * timeout)
    assert not ranks[1 - late].reports
    ranks[late].meet(rank_infos)
    await until(lambda: all(complete(rank, []) for rank in ranks))
    ranks[late].fall_silent()
    await until(lambda: set(ranks[1 - late].lost()) == {late})
    await asyncio.gather(*(rank.detector.leave() for rank in ranks))


async def test_a_silent_rank_is_lost_to_all_others(make: Make) -> None:
    ranks = await make(4, 0.5)
    ranks[2].fall_silent()
    rest = [rank for rank in ranks if rank is not ranks[2]]
    await until(lambda: all(rank.reports for rank in rest))
    assert [list(rank.lost()) for rank in rest] == [[2]] * 3
    assert "nothing was heard of it for 0.5 s" in rest[0].reports[0].reason


async def test_a_rank_that_hears_of_its_own_death_reports_it_and_falls_silent(make: Make) -> None:
    ranks = await make(3)
    notice = LossNotice(1, ranks[0].mark(1), 0, "it was slow", "slept")
    ranks[0].hear(notice, 2)
    await until(lambda: all(rank.reports for rank in ranks[:2]))
    assert ranks[1].reports == [notice]
    assert ranks[0].reports == ranks[1].reports
    ranks[1].hear(LossNotice(2, ranks[1].mark(2), 0, "it was slow", "slept"), 0)
    assert len(ranks[1].reports) == 1


async def test_a_leaving_rank_is_not_reported_lost(make: Make) -> None:
    ranks = await make(6)
    for number in (1, 2, 5):
        await ranks[number].detector.leave()
    rest = [ranks[n] for n in (0, 3, 4)]
    await until(lambda: all(complete(rank, [1, 2, 5]) for rank in rest))
    assert all(rank.reports == [] for rank in ranks)
    departures = [(number, ranks[0].mark(number)) for number in (1, 2, 5)]
    assert all(sorted(rank.departures) == departures for rank in rest)


async def test_a_rank_that_leaves_before_its_neighbours_have_dialled_is_not_reported_lost() -> None:
    ranks = [Rank(rank, 3, PATIENT) for rank in range(3)]
    addresses = [await rank.open() for rank in ranks]
    rank_infos = [RankInfo(n, "host", "id", 1, (), where) for n, where in enumerate(addresses)]
    ranks[2].meet(rank_infos)
    leaving = asyncio.create_task(ranks[2].detector.leave())
    await asyncio.sleep(0)
    for rank in ranks[:2]:
        rank.meet(rank_infos)
    await leaving
    await until(lambda: all(rank.departures for rank in ranks[:2]))
    assert [rank.departures for rank in ranks[:2]] == [[(2, ranks[0].mark(2))]] * 2
    assert not any(rank.reports for rank in ranks)
    await asyncio.gather(*(rank.detector.leave() for rank in ranks))


async def test_a_rank_that_leaves_does_not_wait_for_a_neighbour_of_later(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may be leaving, too, and never dial."""
    ranks = await make(8)
    monkeypatch.setattr(failure_detector, "_FAREWELL_SECONDS", PATIENT)
    last = ranks[7]
    first = set(last.neighbours())
    gone, later = next((n, new) for n in first if (new := set(last.neighbours([n])) - first))
    for rank in later:
        ranks[rank].fall_silent()
    await ranks[gone].detector.leave()
    await until(lambda: bool(last.departures))
    async with asyncio.timeout(scaled(30)):
        await last.detector.leave()


async def test_a_rank_that_leaves_does_not_wait_for_a_neighbour_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure_detector, "_FAREWELL_SECONDS", PATIENT)
    rank = Rank(1, 2, PATIENT)
    where = await rank.open()
    rank.meet([RankInfo(n, "host", "id", 1, (), where) for n in range(2)])
    rank.detector.stop_watching(0)
    async with asyncio.timeout(scaled(30)):
        await rank.detector.leave()


async def test_a_rank_that_leaves_without_having_met_the_others_closes_its_listeners() -> None:
    rank = Rank(1, 2, PATIENT)
    await rank.open()
    await rank.detector.leave()
    assert not rank.detector._listeners


async def test_the_last_activity_is_passed_on(make: Make) -> None:
    ranks = await make(5)
    words = LossNotice(3, ranks[0].mark(3), 3, "its event loop has ended")
    await ranks[3].detector.leave(words.reason)
    rest = [rank for rank in ranks if rank is not ranks[3]]
    await until(lambda: all(rank.reports == [words] for rank in rest))


async def test_a_lifeline_that_was_cut_is_mended(make: Make) -> None:
    ranks = await make(4)
    for number, other in ((0, 1), (3, 2)):
        ends = ranks[number], ranks[other]
        for rank in ends:
            rank.activity = f"works after the cut of {number}"
        cut = ends[0].detector.heartbeat_connections[other]
        cut.abort(ConnectionResetError("cut by the test"))
        # The next regular heartbeat is far away: only a new connection tells the new activity.
        await until(partial(has_heard, *ends))
        await until(partial(has_heard, *ends[::-1]))
    assert all(rank.reports == [] for rank in ranks)


async def test_the_first_notice_counts_when_two_ranks_give_each_other_up(make: Make) -> None:
    ranks = await make(4)
    ranks[2].hear(LossNotice(0, ranks[2].mark(0), 1, "a", ""), 1)
    ranks[2].hear(LossNotice(1, ranks[2].mark(1), 0, "b", ""), 3)
    assert list(ranks[2].lost()) == [0]


async def test_another_process_may_take_a_lost_ranks_place(make: Make) -> None:
    """It calls before all have heard of it, and old news of the dead one does it no harm."""
    ranks = await make(6)
    dead = ranks[4]
    rank_infos = list(dead.rank_infos)
    dead.die()
    rest = [rank for rank in ranks if rank is not dead]
    await until(lambda: all(rank.reports for rank in rest))
    obituary = rest[0].reports[0]
    newcomer = Rank(4, -1, PATIENT)
    rank_infos[4] = RankInfo(4, "host", "id", 2, (), await newcomer.open())
    former = ranks[5].detector.heartbeat_connections[4]
    try:
        newcomer.meet(rank_infos)
        await until(lambda: ranks[5].detector.heartbeat_connections[4] is not former)
        for rank in rest:
            rank.detector.renew(rank_infos[4])
        await until(lambda: all(complete(rank, []) for rank in (*rest, newcomer)))
        for rank in (rest[0], newcomer):
            rank.hear(obituary, 5)
        assert [len(rank.reports) for rank in (*rest, newcomer)] == [1, 1, 1, 1, 1, 0]
        newcomer.die()
        await until(lambda: all(len(rank.reports) == 2 for rank in rest))
    finally:
        await newcomer.detector.leave()


async def test_a_newcomer_is_told_which_ranks_are_gone(make: Make) -> None:
    ranks = await make(5)
    ranks[1].die()
    ranks[4].detector.stop_watching(1)
    rest = [ranks[n] for n in (0, 2, 3)]
    await until(lambda: all(rank.reports for rank in rest))
    await until(lambda: all(complete(ranks[n], [1]) for n in (0, 2, 3, 4)))
    assert ranks[4].reports == []


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nAccept: everything\r\nHost: example.invalid\r\n\r\n",
        encode(FrameType.REJECT, meta=b"no\nrank 1 is fine\x1b[2J"),
    ],
    ids=["http", "refusal"],
)
async def test_strangers_on_the_listener_are_turned_away(
    make: Make, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    ranks = await make(2)
    (address,) = ranks[0].address
    with caplog.at_level(logging.WARNING, "aiodist"):
        host, port = address.removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stranger = "tcp://{}:{}".format(*writer.get_extra_info("sockname"))
        writer.write(said)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    (line,) = caplog.messages
    assert f"rank 0's heartbeat connection turned a stranger away: {stranger}" in line
    assert line.isprintable()
    assert complete(ranks[0], [])


async def test_a_rank_that_leaves_while_it_dials_is_no_stranger(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A neighbour leaves, so it dials the next; then it leaves, in the middle of the handshake."""
    ranks = await make(6)
    first = 0
    second = ranks[first].neighbours()[0]
    (third,) = set(ranks[first].neighbours([second])) - set(ranks[first].neighbours())
    leaving: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

    def leave_now() -> None:
        if not leaving.done():
            leaving.set_result(asyncio.ensure_future(ranks[first].detector.leave()))

    ranks[third].transport.accepted = leave_now
    with caplog.at_level(logging.WARNING, "aiodist"):
        await ranks[second].detector.leave()
        await (await leaving)
        gone = [first, second]
        rest = [rank for rank in ranks if rank.detector.rank not in gone]
        await until(lambda: all(complete(rank, gone) for rank in rest))
    assert caplog.text == ""
    assert all(rank.reports == [] for rank in ranks)


async def test_a_child_closes_a_connection_whose_handshake_is_under_way() -> None:
    arrived: asyncio.Queue[Connection] = asyncio.Queue()
    far = await TcpTransport("127.0.0.1").listen(arrived.put_nowait)  # has not met, and is silent
    rank = Rank(0, 2, PATIENT)
    addresses = [await rank.open(), (far.address,)]
    rank.meet([RankInfo(n, "host", "id", 1, (), where) for n, where in enumerate(addresses)])
    connection, memory = await arrived.get(), Memory(1 << 20)
    connection.start(memory)
    await until(lambda: memory.data)  # the first words of the handshake
    rank.detector.close_in_child()  # as the fork's child calls it, where it is the only end left
    async with asyncio.timeout(scaled(10)):
        await memory.ended()
    await far.close()
    for task in rank.detector._dialling.values():
        task.cancel()


def test_a_notice_travels_whole_and_bounded() -> None:
    notice = LossNotice(3, b"m", 4, "why", "last")
    assert LossNotice.decode(notice.encode()) == notice
    long = LossNotice(3, b"m", 4, "ä" * 5000, "y" * 5000)
    arrived = LossNotice.decode(long.encode())
    assert arrived.reason == "ä" * (MAX_TEXT // 2)
    assert arrived.last == "y" * MAX_TEXT
    for data in (b"", b"\xc1", b"\x91\x01", b"\x95\xa1a\x01\x01\x01\x01"):
        with pytest.raises(ProtocolError):
            LossNotice.decode(data)
    assert issubclass(ProtocolError, DistNetworkError)
