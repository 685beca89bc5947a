"""One rank's failure detector: its heartbeat connections, its deadlines, and the news that it passes on.

The detector lives in an event loop of its own (`heartbeat_thread`), and knows nothing of groups or
messages. News of a lost rank floods the network of detectors: each rank tells its neighbours once.
It arrives everywhere, whatever the ranks' programs do, at the cost of four small frames a rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from aiodist.deadline import Deadline
from aiodist.errors import DistError
from aiodist.links.closing_streams import ClosingStreams
from aiodist.links.dialing import authenticate
from aiodist.links.losses import ENDED
from aiodist.links.rank_info import RankInfo, reachable_at
from aiodist.liveness.heartbeat_connection import HeartbeatConnection
from aiodist.liveness.heartbeat_deadlines import HeartbeatDeadlines
from aiodist.liveness.loss_notice import LossNotice, shorten
from aiodist.liveness.watch_ring import neighbours, ring_order
from aiodist.transport.base_transport import Connection, Listener, Transport
from aiodist.transport.pending_handshakes import PendingHandshakes
from aiodist.wire.frames import Frame, FrameType, encode
from aiodist.wire.handshake import Handshake

BEATS = 8
"""Heartbeats within the timeout."""

GRACE_SECONDS = 0.25
"""Seconds that a rank has to come back after its heartbeat connection ended: the connection may
have been cut while the rank lives."""

_REDIAL_SECONDS = 0.1
_FAREWELL_SECONDS = 1.0


class FailureDetector:
    """Watch the neighbours on the ring and spread news of lost ranks. Belongs to the loop that creates it.

    Call ``open`` first, then ``meet``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        transports: Sequence[Transport],
        timeout: float,
        vitals: Callable[[], str],
        report: Callable[[LossNotice], None],
        report_departure: Callable[[int, bytes], None],
    ) -> None:
        """Create a detector without connections.

        ``timeout``: seconds of silence after which a rank counts as lost. ``vitals()``: returns
        what this rank does. ``report(notice)``: called once for each lost rank, also if the others
        declared this one lost. ``report_departure(rank, mark)``: once for each rank that has said
        goodbye; ``mark``: of its process.
        """
        self.rank = rank
        self.size = size
        self._transports = {transport.scheme: transport for transport in transports}
        self._timeout = timeout
        self._interval = timeout / BEATS
        self._vitals = vitals
        self._report = report
        self._report_departure = report_departure
        self._loop = asyncio.get_running_loop()
        self._deadlines = HeartbeatDeadlines(timeout, self._interval, time.monotonic())
        self._pending: PendingHandshakes[HeartbeatConnection] = PendingHandshakes(
            f"rank {rank}'s heartbeat connection", size
        )
        self._early: list[Connection] = []
        self._listeners: list[Listener] = []
        self._lines: dict[int, HeartbeatConnection] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._dialled: set[HeartbeatConnection] = set()  # whose handshakes are under way
        self._closing_streams = ClosingStreams(_FAREWELL_SECONDS)
        self._heartbeats: dict[int, tuple[float, str]] = {}  # the last one of each neighbour
        self._endings: dict[int, str] = {}  # why the connection of a rank ended, by rank
        self._gone: set[int] = set()
        self._rank_infos: list[RankInfo] = []
        self._ring: Sequence[int] = ()
        self._returned: dict[int, HeartbeatConnection] = {}  # from ranks that count as gone here
        self._key = b""
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._departure = asyncio.Event()
        self._awaited: set[int] = set()  # the first neighbours that have yet to dial this rank
        self._all_came = asyncio.Event()  # since it began to leave
        self._last_words = ""

    async def open(self) -> tuple[str, ...]:
        """Listen and return the addresses for the other ranks. Raises DistNetworkError."""
        for transport in self._transports.values():
            self._listeners.append(await transport.listen(self._accept))
        return tuple(listener.address for listener in self._listeners)

    def set_timeout(self, timeout: float) -> None:
        """Take another ``timeout`` than that of the constructor, before ``meet``."""
        self._timeout, self._interval = timeout, timeout / BEATS
        self._deadlines = HeartbeatDeadlines(timeout, self._interval, time.monotonic())

    def meet(self, rank_infos: Sequence[RankInfo], key: bytes) -> None:
        """Set the rank infos of all ranks, and a secret of the job for heartbeat connections."""
        self._rank_infos, self._key = list(rank_infos), key
        self.size = len(rank_infos)
        self._pending.expect(self.size)
        self._ring = ring_order([rank_info.host_id for rank_info in rank_infos])
        self._gone.update(rank_info.rank for rank_info in rank_infos if rank_info.is_absent)
        expected = neighbours(self._ring, self.rank, self._gone)
        self._awaited = {rank for rank in expected if rank < self.rank}
        early, self._early = self._early, []
        for connection in early:
            self._accept(connection)
        self._arrange()
        self._beat()

    def renew(self, rank_info: RankInfo) -> None:
        """Accept another process in the place of a rank."""
        if self._over:
            return
        self._remove(rank_info.rank)
        self._rank_infos[rank_info.rank] = rank_info
        self._ring = ring_order([rank_info.host_id for rank_info in self._rank_infos])
        self._gone.discard(rank_info.rank)
        self._arrange()
        line = self._returned.pop(rank_info.rank, None)
        if line is not None:
            self.proven(line)

    def last_heartbeat_of(self, rank: int) -> str:
        """Return what the last heartbeat of ``rank``, which is lost now, said and how old it is.

        The text is empty for a rank that is no neighbour, or has reported nothing. Any thread.
        """
        at, activity = self._heartbeats.get(rank, (0.0, ""))
        return f"{time.monotonic() - at:.1f} s before the loss it {activity}" if activity else ""

    def stop_watching(self, rank: int) -> None:
        """Stop watching ``rank``, which all ranks know to be gone."""
        if not self._over and rank not in self._gone:
            self._remove(rank)

    async def leave(self, last_activity: str = "") -> None:
        """Say goodbye, or ``last_activity``, why this rank is lost; close everything in bounded time."""
        if self._over and not self._listeners:
            return
        self._over = True
        self._last_words = last_activity
        self._departure.set()
        for line in [*self._lines.values(), *self._returned.values()]:
            self._say_goodbye(line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                # Complete the handshakes under way and say goodbye on them, too: a peer that stays would
                # log a connection that ends in the handshake as a stranger's.
                if self._dialling:
                    await asyncio.wait(self._dialling.values())
                # A neighbour that has yet to dial would be refused, and report this rank as lost.
                if self._awaited:
                    await self._all_came.wait()
        self._stop()
        await self._closing_streams.over()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()

    def _say_goodbye(self, line: HeartbeatConnection) -> None:
        if self._last_words:
            line.tell(FrameType.LOST, self._notice(self.rank, self._last_words).encode())
        elif self._departure.is_set():  # unless the others declared this rank lost
            line.tell(FrameType.GOODBYE)
        self._closing_streams.hang_up(line.connection)

    def close_in_child(self) -> None:
        """Release in a forked child what it inherited; the parent's connections stay open."""
        lines = [*self._lines.values(), *self._returned.values(), *self._pending, *self._dialled]
        for connection in [*self._early, *(line.connection for line in lines)]:
            connection.close_in_child()
        for listener in self._listeners:
            listener.close_in_child()
        for transport in self._transports.values():
            transport.close_in_child()

    # -- liveness.heartbeat_connection.Owner

    def not_met(self, rank: int) -> None:
        self._deadlines.heard(rank, time.monotonic())

    def proven(self, line: HeartbeatConnection) -> None:
        self._pending.proven(line)
        rank = line.rank
        self._awaited.discard(rank)
        if self._over:
            self._say_goodbye(line)
            if not self._awaited:
                self._all_came.set()
            return
        if rank in self._gone:
            # This is a rank that was declared lost and comes back, or the process that replaces
            # it. The latter ignores the notice, whose mark names the former process.
            loss_notice = self._notice(rank, f"rank {self.rank} no longer counts on it")
            line.tell(FrameType.LOST, loss_notice.encode())
            former = self._returned.pop(rank, None)
            self._returned[rank] = line
            if former is not None:
                former.connection.abort()
            return
        former = self._lines.get(rank)
        self._lines[rank] = line
        if former is not None:
            former.connection.abort()
        self._heartbeats[rank] = line.heartbeat
        self._endings.pop(rank, None)
        self._deadlines.release(rank)
        self._deadlines.watch(rank, time.monotonic())
        line.tell(FrameType.BEAT, self._pulse())

    def said(self, line: HeartbeatConnection, frame: Frame) -> None:
        rank = line.rank
        self._deadlines.heard(rank, time.monotonic())
        if frame.type == FrameType.BEAT:
            line.heartbeat = time.monotonic(), frame.meta.decode("utf-8", "replace")
            if self._lines.get(rank) is line:
                self._heartbeats[rank] = line.heartbeat
        elif frame.type == FrameType.LOST:
            self._lost(LossNotice.decode(frame.meta), line)
        elif frame.type == FrameType.LEFT:
            self._left(frame.id, frame.meta, line)
        elif self._lines.get(rank) is line:
            self._left(rank, self._rank_infos[rank].mark, line)

    def ended(self, line: HeartbeatConnection, error: BaseException | None) -> None:
        self._pending.rejected(line, error)
        rank = line.rank
        if self._returned.get(rank) is line:
            del self._returned[rank]
        if rank < 0 or self._lines.get(rank) is not line:
            return
        del self._lines[rank]
        if self._over or rank in self._gone:
            return
        why = "the kernel closed its connection" if error is None else str(error)
        self._ended(rank, f"it {ENDED}: {why}")
        self._dial(rank)

    # -- losses

    def _beat(self) -> None:
        if self._over:
            return
        self._timer = self._loop.call_later(self._until_next_beat(), self._beat)
        self._check_deadlines()
        pulse = self._pulse()
        for line in [*self._lines.values(), *self._returned.values()]:
            line.tell(FrameType.BEAT, pulse)

    def _beat_early(self) -> None:
        """Tell ranks that have met, and watch this one, that it lives and has not met yet.

        Its loop computes, and this one does not know the secret by which to answer their handshakes.
        Without a proof a beat is worth little, but a stranger can only keep a rank from being found
        silent, and that by listening where the rank listened.
        """
        if not self._over and self._early:
            self._loop.call_later(self._interval, self._beat_early)
            for connection in self._early:
                connection.send([encode(FrameType.BEAT)])

    def _until_next_beat(self) -> float:
        """Return the seconds to the next multiple of the interval by the host's clock, at least half of it.

        All ranks of a host therefore beat together. Each wakes once or twice for the heartbeats of
        all its neighbours, instead of once for each.
        """
        seconds = self._interval - time.monotonic() % self._interval
        return seconds if seconds > self._interval / 2 else seconds + self._interval

    def _pulse(self) -> bytes:
        return shorten(self._vitals()).encode()

    def _check_deadlines(self) -> None:
        if self._over:
            return
        for rank in self._deadlines.silent(time.monotonic()):
            why = self._endings.get(rank) or (
                f"nothing was heard of it for {self._timeout:g} s: it was stopped, or its host or "
                "the network between is gone"
            )
            self._lost(self._notice(rank, why), None)

    def _notice(self, rank: int, reason: str) -> LossNotice:
        mark = self._rank_infos[rank].mark
        return LossNotice(rank, mark, self.rank, reason, self.last_heartbeat_of(rank))

    def _is_meant(self, rank: int, mark: bytes) -> bool:
        return 0 <= rank < self.size and self._rank_infos[rank].mark == mark

    def _ended(self, rank: int, why: str) -> None:
        """Handle the end of a connection to ``rank``: the rank may come back within the grace period."""
        self._endings[rank] = why
        self._deadlines.shorten(rank, time.monotonic() + GRACE_SECONDS)
        self._loop.call_later(GRACE_SECONDS, self._check_deadlines)

    def _lost(self, notice: LossNotice, source: HeartbeatConnection | None) -> None:
        rank = notice.rank
        if rank in self._gone or self._over or not self._is_meant(rank, notice.mark):
            return
        if notice.noticed_by in self._gone:  # two ranks accuse each other: the first notice counts
            return
        if rank == self.rank:
            self._over = True
            self._stop()
            lines, self._lines = list(self._lines.values()), {}
            for line in lines:
                self._closing_streams.hang_up(line.connection)
        else:
            self._tell_all(FrameType.LOST, notice.encode(), source)
            self._remove(rank)
        self._report(notice)

    def _left(self, rank: int, mark: bytes, source: HeartbeatConnection) -> None:
        if rank in self._gone or self._over or rank == self.rank or not self._is_meant(rank, mark):
            return
        self._gone.add(rank)
        self._tell_all(FrameType.LEFT, mark, source, rank)
        self._remove(rank)
        self._report_departure(rank, mark)

    def _tell_all(
        self, type: FrameType, meta: bytes, source: HeartbeatConnection | None, rank: int = 0
    ) -> None:
        for line in list(self._lines.values()):
            if line is not source:
                line.tell(type, meta, id=rank)

    def _remove(self, rank: int) -> None:
        self._gone.add(rank)
        self._awaited.discard(rank)
        self._deadlines.release(rank)
        self._endings.pop(rank, None)
        self._heartbeats.pop(rank, None)
        line = self._lines.pop(rank, None)
        if line is not None:
            self._closing_streams.hang_up(line.connection)
        task = self._dialling.pop(rank, None)
        if task is not None:
            task.cancel()
        self._arrange()

    # -- connections

    def _arrange(self) -> None:
        """Connect to all present neighbours; connections that live are kept."""
        for rank in neighbours(self._ring, self.rank, self._gone):
            if rank not in self._deadlines:
                self._deadlines.watch(rank, time.monotonic())
                self._dial(rank)

    def _dial(self, rank: int, *, whoever: bool = False) -> None:
        # The lower of two ranks dials, also to restore a connection that was cut. While ranks join
        # and leave it may not know yet that it should dial; then the other one dials after a while.
        if self.rank > rank and not whoever:
            self._loop.call_later(self._timeout / 2, partial(self._dial, rank, whoever=True))
        elif rank in self._deadlines and rank not in self._dialling and not self._over:
            self._dialling[rank] = self._loop.create_task(self._keep_dialling(rank))

    async def _keep_dialling(self, rank: int) -> None:
        try:
            while rank not in self._lines and rank in self._deadlines and not self._over:
                refusals = await self._try_addresses(rank)
                if refusals:
                    self._ended(rank, f"it {ENDED}: {refusals}")
                if rank not in self._lines:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REDIAL_SECONDS):
                            await self._departure.wait()
        finally:
            if self._dialling.get(rank) is asyncio.current_task():
                del self._dialling[rank]

    async def _try_addresses(self, rank: int) -> str:
        """Connect by the first address that works. Return the errors if all refuse, else an empty text."""
        refusals: list[str] = []
        rank_info, own = self._rank_infos[rank], self._rank_infos[self.rank]
        addresses = [
            a
            for a in rank_info.heartbeat_addresses
            if reachable_at(a, rank_info, own, self._transports)
        ]
        for address in addresses:
            transport = self._transports[address.partition(":")[0]]
            try:
                await self._connect(rank, transport, address)
            except DistError as error:
                if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
                    refusals.append(str(error))
            else:
                return ""
        return "; ".join(refusals) if len(refusals) == len(addresses) else ""

    async def _connect(self, rank: int, transport: Transport, address: str) -> None:
        connection = await transport.connect(address, Deadline(self._timeout))
        line = HeartbeatConnection(self, connection, Handshake(self._key, self.rank, self.size, 0))
        self._dialled.add(line)
        try:
            await authenticate(line, rank, self._timeout)
        finally:
            self._dialled.discard(line)

    def _accept(self, connection: Connection) -> None:
        if self._over and not self._awaited:
            connection.abort()
        elif not self._key:
            if not self._early:
                self._loop.call_soon(self._beat_early)
            self._early.append(connection)
            if len(self._early) > self._pending.limit:
                self._early.pop(0).abort()
        else:
            line = HeartbeatConnection(
                self, connection, Handshake(self._key, self.rank, self.size, 0)
            )
            self._pending.admit(line, connection.peer_name)
            line.start()

    def _stop(self) -> None:
        self._awaited.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._dialling.values()):
            task.cancel()
        self._pending.close(lambda line: line.connection.abort())
        early, self._early = self._early, []
        for connection in early:
            connection.abort()
