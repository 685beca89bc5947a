"""Watch the ranks that have arrived, until all have met.

Each rank leaves a will in the store: a message that the store writes when the rank's connection
ends. In a file store, other ranks of its host write it when they see that the process has ended. A
rank that gives up while it lives writes the message itself.

If rank 0 serves the store, only rank 0 reads these messages. It adds the ranks that have not
arrived and passes the news on before it ends and the store with it. With any other store each rank
reads for itself. A store that vanishes without a goodbye was served by rank 0, so rank 0 has died.
No connection reports a rank that falls silent: that is the task of `silence_watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence

from aiodist.deadline import Deadline
from aiodist.errors import (
    DistError,
    DistStoreError,
    InvalidUsageError,
    PeerLostError,
    StoreTimeoutError,
    name_of,
)
from aiodist.links.losses import own_loss
from aiodist.procfs import host_name
from aiodist.rendezvous.meeting_stores import MeetingStore
from aiodist.rendezvous.silence_watch import LAST, SilenceWatch, describe_absent
from aiodist.store import Store, TcpStore, absent_ranks, first_of, is_waiting
from aiodist.store.waiting import in_time
from aiodist.wire.failures import decode_error, encode_error

_LOST = "lost"
"""The key of the first loss."""
_LOSS_REPORT = "loss-report"
"""The key under which rank 0 repeats the loss with what it knows besides."""

_WATCH = "watch"
"""The key of the text that a rank needs to join the watch; empty if there is no watch."""
_SECONDS = 1.0
"""Seconds to write the message of a rank that gives up, and to recognise a lost connection."""
_END_SECONDS = 1.0
"""Seconds until the end of a process is noticed after its successor has arrived."""
_TELL_SECONDS = 0.1
"""Seconds to report a silent rank, which may be the one that serves the store."""


class LossWatch:
    """One rank's part. Inside ``failing_on_loss`` call ``begin`` and await the others, then ``end``."""

    def __init__(
        self, place: MeetingStore, part: Store, rank: int, size: int, silence_limit: float = 0.0
    ) -> None:
        """Prepare the watch.

        ``part``: the part of the store for this initialisation. ``silence_limit``: seconds of silence
        after which a rank counts as lost; 0 switches the watch off.
        """
        self._place = place
        self._part = part
        self._rank = rank
        self._size = size
        self._silence_limit = silence_limit
        self._loss: DistError | None = None
        self._may_report = True  # whether the others may read what this rank writes
        self._gave_up = False
        self._is_complete = False  # all ranks have met; what is left is to leave the store
        self._interrupt: Callable[[], None] = _nothing
        self._task: asyncio.Task[None] | None = None
        self._watch: SilenceWatch | None = None
        self._reporting: asyncio.Task[None] | None = None

    @property
    def absent(self) -> Sequence[int] | None:
        """Ranks that had not arrived when rank 0 last reported, if it serves the store."""
        return None if self._watch is None else self._watch.absent

    @property
    def is_broken(self) -> bool:
        """Whether this meeting has failed, and the others have been told."""
        return self._loss is not None or self._gave_up

    async def begin(self, deadline: Deadline) -> None:
        """Let the others learn of this rank's end from now on, if the store supports it.

        Call it inside ``failing_on_loss``. Raises StoreTimeoutError and DistStoreError as the store does.
        """
        told = await in_time(self._part.set_will(*will_of(self._rank)), deadline)
        self._may_report = told or self._place.serves
        if self._may_report:
            self._task = asyncio.get_running_loop().create_task(self._wait_for_loss())
        await self._begin_watch(deadline)

    @contextlib.asynccontextmanager
    async def failing_on_loss(self) -> AsyncIterator[None]:
        """Interrupt the enclosed awaits when a rank is lost, with the error that all ranks raise.

        Raises PeerLostError for a rank that died or gave up, and StoreTimeoutError if it gave up
        because others did not arrive. An error or a cancellation inside the block is told to the
        others. A cancellation is raised as it is, also if a rank is lost by then.
        """
        if self._loss is not None:
            raise self._loss
        try:
            async with asyncio.timeout(None) as scope:

                def interrupt() -> None:
                    self._interrupt = _nothing  # a second loss may come while the block cleans up
                    scope.reschedule(0.0)

                self._interrupt = interrupt
                try:
                    yield
                finally:
                    self._interrupt = _nothing
        except BaseException as error:
            await self._wait_for_loss_of_store(error)
            if self._loss is None:
                await self._give_up(error)
            elif isinstance(error, Exception):
                raise self._loss from None
            raise

    def complete(self) -> None:
        """Note that all ranks have met, and this rank only has to leave the store.

        Rank 0 may return from ``init_process_group`` and end while this rank leaves. That is no
        loss inside ``init_process_group``: the first operation that needs rank 0 reports it.
        """
        self._is_complete = True

    async def reported(self) -> None:
        """Return when the others have been told of a silent rank.

        Await it before the store is closed. Otherwise the others would take this rank's leave for
        the first loss.
        """
        if self._reporting is not None:
            await asyncio.wait([self._reporting])

    async def end(self) -> None:
        """End the watch: this rank is not waited for any more. Idempotent; raises no DistError.

        If cancelled, it only does not wait until all has ended.
        """
        watch, self._watch = self._watch, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if watch is not None:
            await watch.end()
        await self.reported()
        if task is None:
            return
        await asyncio.wait([task])
        if not self.is_broken:
            with contextlib.suppress(DistError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await self._part.clear_will(_LOST)

    async def _wait_for_loss_of_store(self, error: BaseException) -> None:
        """Give the task that watches the store a moment to report that the store has gone."""
        failed = isinstance(error, DistStoreError) and not isinstance(error, StoreTimeoutError)
        if failed and self._loss is None and self._task is not None:
            await asyncio.wait([self._task], timeout=_SECONDS)

    async def _begin_watch(self, deadline: Deadline) -> None:
        place, part = self._place, self._part
        if self._size == 1:
            return
        star = place.serves or place.once
        if self._silence_limit and place.watch is not None:
            who = self._rank, self._size, self._silence_limit
            self._watch = SilenceWatch(place.watch, *who, self._report_silent_rank, star=star)
        if place.serves:
            told = "" if self._watch is None else await self._watch.begin("", deadline)
            await part.set(_WATCH, told.encode())
        elif self._watch is not None:
            if star:
                told = (await in_time(part.get(_WATCH, deadline), deadline)).decode()
            else:
                mine = os.urandom(8).hex().encode()
                told = (await in_time(part.compare_set(_WATCH, b"", mine), deadline)).decode()
            if told:
                await self._watch.begin(told, deadline)

    def _report_silent_rank(self, error: PeerLostError) -> None:
        if self.is_broken or self._watch is None:
            return
        self._loss = own_loss(error, self._rank)
        # For the ranks that are not watched, and rank 0 itself in case it continues.
        key = _LOSS_REPORT if self._place.serves else _LOST
        seconds = _TELL_SECONDS if self._place.once else _SECONDS
        self._reporting = asyncio.get_running_loop().create_task(
            self._report_loss(key, error, seconds)
        )
        self._interrupt()

    async def _report_loss(self, key: str, error: DistError, seconds: float) -> None:
        """Write ``error`` for the others, unless a loss is there already or the store does not answer."""
        with contextlib.suppress(DistError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._part.compare_set(key, b"", encode_error(error))

    async def _wait_for_loss(self) -> None:
        try:
            key = _LOSS_REPORT if self._place.once else _LOST
            told = decode_error(await self._part.get(key, Deadline.never()), -1)
            if not self._place.once:
                told = await self._completed(told)
            told = own_loss(told, self._rank)
            if self._place.serves:
                await self._part.set(_LOSS_REPORT, encode_error(told))
        except DistError:
            lost = loss_of_server(self._place, self._rank, self._size, self.absent)
            if lost is None or self._is_complete:
                return  # the next call of the store raises the error
            told = lost
        self._loss = told
        self._interrupt()

    async def _completed(self, error: DistError) -> DistError:
        if not isinstance(error, PeerLostError) or error.noticed_by >= 0:  # already complete
            return error
        absent = await absent_ranks(self._part, self._size)
        others = [rank for rank in absent or () if rank != error.rank]
        if absent is None:
            who = "the store does not say who had arrived"
        else:
            who = f"{describe_absent(others, self._size)} by then"
        fields = error.fields | {"noticed_by": self._rank, "not_arrived": others}
        return PeerLostError(f"{error.message}; {who}; rank {self._rank} noticed", **fields)

    async def _give_up(self, error: BaseException) -> None:
        """Tell the others why this rank does not arrive, as far as that is possible."""
        if not self._may_report or (self._place.serves and isinstance(error, StoreTimeoutError)):
            return  # no rank would read it, or `exchange` has told them itself
        self._gave_up = True
        told: DistError
        if isinstance(error, StoreTimeoutError):
            me = name_of(self._rank, host_name(), os.getpid())
            told = StoreTimeoutError(f"{me} gave up: {error.message}", **error.fields)
        else:
            why = "it was cancelled" if isinstance(error, asyncio.CancelledError) else repr(error)
            told = _lost(self._rank, f"gave up inside init_process_group: {why}")
        if self._place.serves:
            try:
                told = await self._completed(told)
            finally:  # if cancelled again, too: to write into its own memory does not suspend
                await self._report_loss(_LOSS_REPORT, told, _SECONDS)
        else:
            await self._report_loss(_LOST, told, _SECONDS)


def will_of(rank: int) -> tuple[str, bytes]:
    """Return the key and the value of the will that this process leaves as ``rank``."""
    return _LOST, encode_error(_lost(rank, "died or was cut off inside init_process_group"))


def _lost(rank: int, why: str) -> PeerLostError:
    """Return the loss of this process, which is ``rank``."""
    host, pid = host_name(), os.getpid()
    text = f"{name_of(rank, host, pid)} {why}"
    return PeerLostError(text, rank=rank, host=host, pid=pid, last=LAST)


async def check_alone(place: MeetingStore, part: Store, rank: int) -> None:
    """Raise InvalidUsageError if another process waits at ``place`` with the same rank.

    A store that ends with rank 0's process serves one initialisation. A rank that finds its own
    earlier arrival there meets no other rank. If the earlier process has ended or given up, rank 0
    will end as well, and start a new store.
    """
    first = first_of(part) if place.once else None
    if first is None or not await is_waiting(first, rank):
        return
    with contextlib.suppress(StoreTimeoutError):
        await first.get(_LOST, Deadline(_END_SECONDS))
        return
    if await is_waiting(first, rank):
        raise InvalidUsageError(
            f"another process has come to {place.where} as rank {rank}, and waits there: give "
            "each process a rank of its own (RANK, or rank=), and end what runs of an earlier job"
        )


def loss_of_server(
    place: MeetingStore, rank: int, size: int, absent: Sequence[int] | None = None
) -> PeerLostError | None:
    """Return the error, as ``rank`` sees it, if rank 0 served the store and has died; else None.

    ``absent``: the ranks that had not arrived when rank 0 last reported, if it did.
    """
    store = place.store
    server = store.lost_server if place.once and isinstance(store, TcpStore) else None
    if server is None:
        return None
    host, pid = server
    who = name_of(0, host, pid)
    others = "who else had arrived is not known"
    if absent is not None:
        others = f"{describe_absent(absent, size)} when it was last heard"
    return PeerLostError(
        f"{who}, which serves the store at {place.where}, died or was cut off inside "
        f"init_process_group; {others}; rank {rank} noticed",
        rank=0,
        host=host,
        pid=pid,
        last=LAST,
        noticed_by=rank,
        not_arrived=absent or (),
    )


def _nothing() -> None:
    """Do nothing outside `LossWatch.failing_on_loss`."""
