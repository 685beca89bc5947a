"""Detect a rank that falls silent while ranks meet: each rank beats in a store and reads other beats.

Before ranks know each other's addresses they have no heartbeat connections (`liveness`), only a
store. Each rank therefore runs a thread with its own handle on a store, in which it counts up a
key. If rank 0 serves the store, its thread serves another one for the beats, which needs no rank's
main loop. Rank 0 then checks every rank, and every rank checks rank 0. In a file each rank checks
the next ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

import msgpack

from aiodist.credentials import Certificates
from aiodist.deadline import Deadline
from aiodist.errors import DistError, PeerLostError, StoreTimeoutError, name_of
from aiodist.links.loop_thread import LoopThread
from aiodist.liveness.heartbeat_deadlines import HeartbeatDeadlines
from aiodist.procfs import host_name
from aiodist.store import FileStore, PrefixStore, Store, TcpStore, TcpStoreServer
from aiodist.store.participants import Participant
from aiodist.wire.failures import decode_error, encode_error

BEATS = 10
"""Heartbeats within the timeout."""

LAST = "entered init_process_group"
"""The only known last activity of a rank that has not yet met the others."""

_REACH = 16
"""How many ranks each rank checks in a file: the next ones, in a ring."""
_SERVE_SECONDS = 5.0
"""Seconds after which rank 0 gives up serving the beats, and there is no watch."""
_LEAVE_SECONDS = 0.2
_CHECK_SECONDS = 1e-3
"""Seconds per rank between two checks by rank 0 of the arrivals: about the cost of one check."""
_LOSS_REPORT = "loss-report"
_ABSENT = "absent"


class HeartbeatStore(NamedTuple):
    """The store of the beats."""

    store: Store
    told: str
    """The text for the other ranks."""
    lock_holders: Callable[[], Sequence[Participant]] = tuple
    """Returns the ranks of this host that keep others from reading the store. Raises DistStoreError."""


Opening = Callable[[str, float], AbstractAsyncContextManager[HeartbeatStore]]
"""(text from rank 0, seconds) -> context manager that opens the store in the current loop."""


class SilenceWatch:
    """One rank's part of the watch, and its thread. Call ``begin``, and in the end ``end``."""

    def __init__(
        self,
        opening: Opening,
        rank: int,
        size: int,
        silence_limit: float,
        report: Callable[[PeerLostError], None],
        *,
        star: bool,
    ) -> None:
        """Prepare the watch.

        ``silence_limit``: seconds of silence after which a rank counts as lost. ``star``: rank 0 serves
        the store. ``report(error)`` is called once in the owner's loop, when a rank is lost.
        """
        self.absent: list[int] | None = None
        """Ranks that had not arrived at the last check; None before the first."""
        self._opening = opening
        self._rank = rank
        self._size = size
        self._silence_limit = silence_limit
        self._interval = silence_limit / BEATS
        self._report = report
        self._hub = star and rank == 0
        self._spoke = star and rank != 0
        if self._spoke:
            self._watched_ranks: Sequence[int] = (0,)
        else:
            reach = size - 1 if star else min(_REACH, size - 1)
            self._watched_ranks = [(rank + step) % size for step in range(1, reach + 1)]
        self._told = ""
        self._store: HeartbeatStore | None = None
        self._looked = time.monotonic()  # when the beats of all watched ranks were last read
        self._holding: dict[int, int] = {}  # at how many checks in a row a rank has held the lock
        self._over = False
        self._loop_thread = LoopThread("aiodist-watch", self._main)
        self._begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._deadlines = HeartbeatDeadlines(silence_limit, self._interval, time.monotonic())
        self._seen: dict[int, bytes] = {}
        self._known: dict[int, list[object]] = {}

    async def begin(self, told: str, deadline: Deadline) -> str:
        """Start to beat. Returns the text for the other ranks, or "" if the watch cannot begin yet."""
        self._told = told
        self._loop_thread.start()
        within = min(_SERVE_SECONDS if self._hub else self._silence_limit, deadline.remaining())
        await self._loop_thread.wait_for(self._begun, within)
        return self._begun.result() if self._begun.done() else ""

    async def end(self) -> None:
        """Stop the beats without being reported as lost."""
        self._begun.cancel()
        await self._loop_thread.close()

    def loss_of(self, rank: int, *, holds_lock: bool = False) -> PeerLostError:
        """Return the error for a silent ``rank``, with what is known about the arrival of others.

        ``holds_lock``: it has the lock of the store's file.
        """
        host, pid = (*self._known.get(rank, ()), "", 0)[:2]
        who = name_of(rank, host, pid)
        keeper = ", where it serves the store" if self._spoke else ""
        if holds_lock:
            keeper = ", where it holds the lock of the store's file"
        absent = [other for other in self.absent or () if other != rank]
        if self.absent is None:
            arrivals = "who else had arrived is not known"
        else:
            when = "when it was last heard" if self._spoke else "when that was last looked for"
            arrivals = f"{describe_absent(absent, self._size)} {when}"
        return PeerLostError(
            f"{who} fell silent inside init_process_group{keeper}: nothing was heard of it for "
            f"{self._silence_limit:g} s: it was stopped, or its host or the network between is gone; "
            f"{arrivals}; rank {self._rank} noticed",
            rank=rank,
            host=host,
            pid=pid,
            last=LAST,
            noticed_by=self._rank,
            not_arrived=absent,
        )

    # -- the thread

    async def _main(self) -> None:
        if self._spoke:
            # Watch before the first answer: the kernel of a stopped rank 0 still accepts.
            self._deadlines.watch(0, time.monotonic())
        beating = asyncio.ensure_future(self._send_heartbeats())
        try:
            error: PeerLostError | None = None
            while error is None and not self._loop_thread.is_orphaned:
                # Wait and check in separate tasks: an answer of rank 0 may never come.
                done, _ = await asyncio.wait([beating], timeout=self._interval)
                error = beating.result() if done else await self._find_silent_rank()
            if error is not None:
                self._over = True
                self._loop_thread.tell(self._report, error)
                self._loop_thread.tell(_resolve, self._begun, "")
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _send_heartbeats(self) -> PeerLostError:
        """Beat until another rank has found a rank lost, and return that error."""
        while True:
            try:
                async with self._opening(self._told, self._silence_limit) as opened:
                    return await self._beat(opened)
            except (DistError, OSError) as error:
                # A refused or cut connection does not tell whether rank 0 has ended. A missing
                # answer counts as silence.
                if not isinstance(error, StoreTimeoutError) or error.__cause__ is not None:
                    for rank in self._watched_ranks:
                        self._forget(rank)
                    self._loop_thread.tell(_resolve, self._begun, "")
            await asyncio.sleep(self._interval)

    async def _beat(self, opened: HeartbeatStore) -> PeerLostError:
        store = opened.store
        calling = asyncio.ensure_future(self._check_arrivals(store))
        self._store = opened
        try:
            me = msgpack.packb([host_name(), os.getpid()])
            await store.set(_participant_key(self._rank), me)
            while True:
                await store.add(_beat(self._rank), 1)
                for rank in self._watched_ranks:
                    await self._look(store, rank)
                self._looked, self._holding = time.monotonic(), {}
                report = await _peek(store, _LOSS_REPORT)
                if report is not None:
                    error = decode_error(report, -1)
                    if isinstance(error, PeerLostError):
                        return error
                self._loop_thread.tell(_resolve, self._begun, opened.told)
                await asyncio.sleep(self._interval)
        except asyncio.CancelledError:
            if not self._over:
                with contextlib.suppress(DistError, TimeoutError):
                    async with asyncio.timeout(_LEAVE_SECONDS):
                        await store.delete_key(_beat(self._rank))
            raise
        finally:
            self._store = None
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)

    async def _check_arrivals(self, store: Store) -> None:
        """Look up the absent ranks in advance: when the list is needed, the store may be out of reach.

        If rank 0 serves the store, it tells the others; in a file each rank looks for itself.
        """
        edition, pause = 0, _CHECK_SECONDS * self._size
        if not self._hub:
            pause = max(self._interval, 10 * pause)  # a file is locked for each look
        while self._spoke:
            edition, absent = msgpack.unpackb(await store.get(_ABSENT, Deadline.never()))
            self.absent = [rank for rank in absent if rank != self._rank]
            await store.get(_outdated(edition), Deadline.never())
        while self.absent != []:
            absent = await self._not_there(store)
            if absent != self.absent:
                self.absent, edition = absent, edition + 1
                if self._hub:
                    await store.set(_ABSENT, msgpack.packb([edition, absent]))
                    await store.set(_outdated(edition - 1), b"")
            await asyncio.sleep(pause)

    async def _look(self, store: Store, rank: int) -> None:
        value = await _peek(store, _beat(rank))
        if value is None:
            self._forget(rank)  # the rank has not arrived yet, or has left
        elif value != self._seen.get(rank):
            if rank not in self._known:
                self._known[rank] = msgpack.unpackb(
                    await _peek(store, _participant_key(rank)) or b"\x90"
                )
            self._seen[rank] = value
            self._deadlines.watch(rank, time.monotonic())
            self._deadlines.heard(rank, time.monotonic())

    def _forget(self, rank: int) -> None:
        self._deadlines.release(rank)
        self._seen.pop(rank, None)

    async def _find_silent_rank(self) -> PeerLostError | None:
        opened = None if self._spoke else self._store
        now = time.monotonic()
        if opened is not None and now - self._looked > self._silence_limit / 2:
            with contextlib.suppress(DistError, OSError):
                return self._find_silent_holder(opened)
            return None
        silent = self._deadlines.silent(now)
        if not silent:
            return None
        if opened is not None:
            store = opened.store
            # The store may be out of reach for the same reason: a stopped process can hold the
            # lock of a file.
            with contextlib.suppress(DistError, OSError, TimeoutError):
                async with asyncio.timeout(self._silence_limit / 2):
                    self.absent = await self._not_there(store)
                    await store.compare_set(
                        _LOSS_REPORT, b"", encode_error(self.loss_of(silent[0]))
                    )
        return self.loss_of(silent[0])

    def _find_silent_holder(self, opened: HeartbeatStore) -> PeerLostError | None:
        """Return the loss of the rank that keeps this one from reading any beats.

        Invariant: a rank counts as silent only if its beats could be read. A process that is stopped
        while it holds a file's lock keeps all others from beating, too. A rank that is at work holds
        the lock for a moment, so it must hold it at several checks. Checks are counted, not seconds:
        this process may have been stopped itself.
        """
        held, self._holding = self._holding, {}
        for holder in opened.lock_holders():
            if holder.rank is not None and holder.rank != self._rank:
                self._holding[holder.rank] = held.get(holder.rank, 0) + 1
                self._known[holder.rank] = [host_name(), holder.pid]
        for rank, checks in self._holding.items():
            if checks >= BEATS // 2:
                return self.loss_of(rank, holds_lock=True)
        return None

    async def _not_there(self, store: Store) -> list[int]:
        return [
            rank for rank in range(self._size) if not await store.check([_participant_key(rank)])
        ]


def describe_absent(absent: Sequence[int], size: int) -> str:
    """Return text for the ranks that had not arrived; the caller appends when that was known."""
    if not absent:
        return "all others had arrived"
    names = ", ".join(map(str, absent[:16]))
    if len(absent) > 16:
        names += f" and {len(absent) - 16} more"
    return f"of {size} ranks {names} had not arrived"


@contextlib.asynccontextmanager
async def over_tcp_served(
    host: str, secret: bytes, certificates: Certificates | None, told: str, seconds: float
) -> AsyncIterator[HeartbeatStore]:
    """Serve the beats at a free port of ``host``; the text for the others is the port."""
    async with await TcpStoreServer.start(host, secret=secret, certificates=certificates) as server:
        yield HeartbeatStore(server.store(), str(server.port))


@contextlib.asynccontextmanager
async def over_tcp(
    host: str, secret: bytes, certificates: Certificates | None, told: str, seconds: float
) -> AsyncIterator[HeartbeatStore]:
    """Connect to ``host`` at the port in the text."""
    async with await TcpStore.connect(
        host, int(told), Deadline(seconds), secret=secret, certificates=certificates, once=True
    ) as store:
        yield HeartbeatStore(store, told)


@contextlib.asynccontextmanager
async def in_file(
    path: Path, rank: int, told: str, seconds: float
) -> AsyncIterator[HeartbeatStore]:
    """Open the part of the file that the text names."""
    async with await FileStore.open(path, rank, Deadline(seconds)) as store:
        yield HeartbeatStore(PrefixStore(f"watch/{told}", store), told, store.lock_holders)


def _beat(rank: int) -> str:
    return f"beat/{rank}"


def _outdated(edition: int) -> str:
    return f"{_ABSENT}/{edition}"


def _participant_key(rank: int) -> str:
    return f"who/{rank}"


async def _peek(store: Store, key: str) -> bytes | None:
    """Return the value of ``key``, or None if it has none now."""
    if not await store.check([key]):
        return None
    try:
        return await store.get(key, Deadline(_LEAVE_SECONDS))
    except StoreTimeoutError:
        return None


def _resolve(future: asyncio.Future[str], value: str) -> None:
    if not future.done():
        future.set_result(value)
