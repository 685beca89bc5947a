"""The rendezvous: open the store, join this initialisation's part of it, wait for all ranks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from aiodist.credentials import job_secret
from aiodist.deadline import Deadline
from aiodist.errors import DistError, DistStoreError, InvalidUsageError, StoreTimeoutError
from aiodist.links.interfaces import choose_hosts, default_address
from aiodist.procfs import boot_and_namespace
from aiodist.rendezvous.agent import torchs_store
from aiodist.rendezvous.environments import RUN_VARIABLE, read_environment
from aiodist.rendezvous.loss_watch import LossWatch, check_alone, loss_of_server, will_of
from aiodist.rendezvous.meeting_plan import MeetingPlan, plan, plan_with_store
from aiodist.rendezvous.meeting_stores import MeetingStore, open_place, wrap_store
from aiodist.store import Store, exchange, leave
from aiodist.store.waiting import pauses

log = logging.getLogger("aiodist")

_FAREWELL_SECONDS = 5.0
_FAREWELL = "rendezvous"
_LOOPBACK = "127.0.0.1"
_LONG_WAIT_SECONDS = 15.0


@dataclass
class Rendezvous:
    """This rank's identity, and the store that all ranks of this initialisation share.

    ``host``: this rank's own address, by which the others reach it; listeners bind to it.
    ``hosts``: all own addresses that streams are dealt to, ``host`` first. ``local_rank``: its
    number on this host, None if unknown. ``source``: where rank and size come from, for messages.
    ``secret``: the job's, empty if it has none.
    """

    rank: int
    size: int
    store: Store
    host: str
    hosts: tuple[str, ...]
    local_rank: int | None
    source: str
    secret: bytes = field(repr=False)
    _place: MeetingStore = field(repr=False)
    _loss_watch: LossWatch = field(repr=False)
    _left: bool = field(default=False, init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)

    @property
    def is_private(self) -> bool:
        """Whether strangers cannot read what is in the store, its secret included."""
        return self._place.private

    def failing_on_loss(self) -> AbstractAsyncContextManager[None]:
        """Interrupt the enclosed awaits when a rank is lost, until the ranks are `done`.

        All ranks raise the same error, see `LossWatch.failing_on_loss`. If the block fails here, it fails
        on the others as well.
        """
        return self._loss_watch.failing_on_loss()

    async def done(self, deadline: Deadline | None = None) -> None:
        """Record that this rank needs nothing more from the store. Idempotent; `close` does it as well.

        If every rank does so early, rank 0 can close without waiting. Never raises a DistError: a
        store that is gone needs no goodbye. ``deadline``: for the store's answer; None is 5 seconds.
        """
        if not self._place.serves:
            await self._leave(_farewell() if deadline is None else deadline)

    async def settle(self, deadline: Deadline) -> None:
        """Return when no rank needs the store any more, or at the deadline. All ranks must call it.

        From then on the rank that serves the store may block its loop.
        """
        if self._place.serves:
            await self._leave(deadline)
        else:
            # Where rank 0 serves no store, it waits for the others no longer than a goodbye takes.
            await self.done(None if self.rank == 0 else deadline)

    async def close(self) -> None:
        """Close the store and, on the rank that serves it, the server. Idempotent.

        That rank first waits until all others are `done`, for at most 5 seconds: one of them may
        have died. If the meeting has failed, or the wait is cancelled, it closes at once.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._loss_watch.is_broken:
                await self._leave(_farewell())
        finally:
            await _end(self._loss_watch, self._place)

    async def _leave(self, deadline: Deadline) -> None:
        """End this rank's part, once; rank 0 then waits for the others until ``deadline``."""
        if self._left:
            return
        self._left = True
        self._loss_watch.complete()
        try:
            with suppress(DistError):  # a store that is gone needs no goodbye
                await leave(self.store, self.rank, self.size, deadline, name=_FAREWELL)
        finally:
            await self._loss_watch.end()

    def close_in_child(self) -> None:
        """Release inherited sockets in a forked child; the parent keeps its own."""
        self._closed = True
        self._place.close_in_child()


def _farewell() -> Deadline:
    return Deadline(_FAREWELL_SECONDS)


async def rendezvous(
    init_method: str | None,
    *,
    rank: int,
    size: int,
    store: Any | None,
    deadline: Deadline,
    environ: Mapping[str, str],
    silence_limit: float = 0.0,
) -> Rendezvous:
    """Find rank, size, store and own address, and wait until all ranks have arrived.

    ``init_method``: ``env://`` (the default for None), ``tcp://host:port`` or ``file:///path``.
    ``rank``, ``size``: -1 if the caller left them out. ``store``: an aiodist or torch store instead
    of an init_method; the caller closes it. ``silence_limit``: seconds of silence after which a rank
    that has arrived counts as lost; 0 switches the watch off.

    Raises at once TypeError and InvalidUsageError for invalid arguments, and DistStoreError and
    DistNetworkError for a port in use, a name that does not resolve, or a host without a route.
    Raises StoreTimeoutError at the deadline, with the ranks that did not arrive as its ``ranks``.
    Raises PeerLostError as soon as a rank that had arrived is gone (see `LossWatch`) or has been
    silent for ``silence_limit``; its ``not_arrived`` lists the missing ranks. Raises InvalidUsageError,
    after a second, if another process waits with this rank at rank 0's store. If cancelled or
    failed, it leaves nothing open, and tells the ranks that wait.
    """
    if store is not None:
        if init_method is not None:
            raise InvalidUsageError(
                "init_method and store were both given: each says where ranks meet, leave one out"
            )
        own = plan_with_store(rank=rank, size=size, environ=environ)
        with _log_long_wait(own, "the store given"):
            return await _meet(own, wrap_store(store), environ, deadline, silence_limit)
    own = _beside_torch(plan(init_method, rank=rank, size=size, environ=environ))
    with _log_long_wait(own, f"the file {own.file}" if own.master is None else str(own.master)):
        return await _find(own, environ, deadline, silence_limit)


def _beside_torch(own: MeetingPlan) -> MeetingPlan:
    """Return ``own``, with torch's store as its place if torch's ranks have met at the same port.

    torch's rank 0 listens there in that case, so aiodist's rank 0 cannot.
    """
    torchs = torchs_store()
    if own.master is None or own.master.server or torchs is None:
        return own
    master, rank, size = torchs
    same = (own.master.port, own.rank, own.size) == (master.port, rank, size)
    return replace(own, master=replace(own.master, server=master.server)) if same else own


@contextmanager
def _log_long_wait(own: MeetingPlan, where: str) -> Iterator[None]:
    """Log once that the others take long: a wrong address is no error until the deadline."""
    note = asyncio.get_running_loop().call_later(
        _LONG_WAIT_SECONDS,
        log.warning,
        "rank %d of %d, told by %s, has waited %g s at %s for all ranks to meet, and still waits. See "
        "whether all were started, and told this place and this size.",
        own.rank,
        own.size,
        own.source,
        _LONG_WAIT_SECONDS,
        where,
    )
    try:
        yield
    finally:
        note.cancel()


async def _find(
    own: MeetingPlan, environ: Mapping[str, str], deadline: Deadline, silence_limit: float
) -> Rendezvous:
    lost: DistStoreError | None = None
    for pause in pauses(longest=0.5, first=0.01):
        try:
            place = await open_place(own, environ, deadline)
        except StoreTimeoutError as error:
            if lost is None:
                raise
            raise StoreTimeoutError(f"{error.message}; earlier, {lost}", **error.fields) from None
        try:
            return await _meet(own, place, environ, deadline, silence_limit)
        except DistStoreError as error:
            # This may have been rank 0's server of an earlier initialisation, which is gone now;
            # or rank 0 was restarted.
            if isinstance(error, StoreTimeoutError) or not place.once:
                raise
            if deadline.remaining() <= pause:
                raise
            lost = error
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: pauses never end")


async def meet_at(
    place: MeetingStore,
    *,
    rank: int,
    size: int,
    source: str,
    deadline: Deadline,
    environ: Mapping[str, str],
    silence_limit: float = 0.0,
) -> Rendezvous:
    """Wait until all ranks are at ``place``, if rank and size are known by other means.

    ``source``: where they come from, for messages. Errors as of `rendezvous`; then the place is
    closed.
    """
    own = MeetingPlan(rank, size, local_rank=read_environment(environ).local_rank(), source=source)
    return await _meet(own, place, environ, deadline, silence_limit)


async def _meet(
    own: MeetingPlan,
    place: MeetingStore,
    environ: Mapping[str, str],
    deadline: Deadline,
    silence_limit: float,
) -> Rendezvous:
    loss_watch: LossWatch | None = None
    try:
        will = will_of(own.rank)
        part = await place.join(place.store, own.rank, own.size, deadline, will)
        await check_alone(place, part, own.rank)
        loss_watch = LossWatch(place, part, own.rank, own.size, silence_limit)
        try:
            mine = msgpack.packb((own.size, host_identity(), environ.get(RUN_VARIABLE, "")))
            async with loss_watch.failing_on_loss():
                await loss_watch.begin(deadline)
                hosts = choose_hosts(place.route, environ)  # if it raises, the others hear of it
                values = await exchange(part, own.rank, own.size, mine, deadline, stops=_disagree)
                place.all_met()
            arrived = {rank: msgpack.unpackb(value) for rank, value in enumerate(values) if value}
            if _disagree([*filter(None, values), mine]):
                # All ranks find this in the same values; rank 0 keeps the store until they have.
                with suppress(DistStoreError):  # it does not wait for a slow rank for ever
                    await leave(part, own.rank, len(arrived), _farewell(), name=_FAREWELL)
                raise _disagreement(own, arrived)
            if hosts is None:
                # There is no master to find a route to: loopback serves if all ranks are on this host.
                one_host = len({identity for _, identity, _ in arrived.values()}) == 1
                hosts = (_LOOPBACK if one_host else default_address(),)
        except BaseException:
            await _end(loss_watch, place)
            raise
    except StoreTimeoutError as error:
        await place.close()
        raise StoreTimeoutError(
            f"{error.message} (they meet at {place.where}, told by {own.source})", **error.fields
        ) from None
    except DistStoreError:
        absent = None if loss_watch is None else loss_watch.absent
        lost = loss_of_server(place, own.rank, own.size, absent)
        await place.close()
        if lost is not None:
            raise lost from None
        raise
    except BaseException:
        await place.close()
        raise
    secret = place.secret or job_secret(environ)
    who = own.rank, own.size, part, hosts[0], hosts, own.local_rank, own.source, secret
    return Rendezvous(*who, _place=place, _loss_watch=loss_watch)


async def _end(loss_watch: LossWatch, place: MeetingStore) -> None:
    """End both, concurrently if a lost rank may keep each of them waiting. Both end if cancelled."""
    if not loss_watch.is_broken:
        try:
            await loss_watch.end()
        finally:
            await place.close()
        return
    try:
        await loss_watch.reported()
    finally:
        closing = asyncio.ensure_future(place.close())
        try:
            await loss_watch.end()
        finally:
            await closing


def _disagreement(
    own: MeetingPlan, arrived: Mapping[int, tuple[int, str, str]]
) -> InvalidUsageError:
    """Return the error for what `_disagree` has found. ``arrived``: what each rank published."""
    jobs = {rank: job for rank, (_, _, job) in arrived.items() if job}
    if len(set(jobs.values())) > 1:
        told = ", ".join(f"rank {rank}: {job}" for rank, job in jobs.items())
        return InvalidUsageError(
            f"ranks of different jobs have met ({RUN_VARIABLE} of {told}; this is rank {own.rank}): "
            "give each job a port, file or store of its own, or all ranks of one job the same "
            f"{RUN_VARIABLE}"
        )
    told = ", ".join(f"rank {rank}: {size}" for rank, (size, _, _) in arrived.items())
    return InvalidUsageError(
        f"the ranks were told different world sizes ({told}; this is rank {own.rank}, told "
        f"{own.size} by {own.source}): give every rank the same"
    )


def _disagree(values: Iterable[bytes]) -> bool:
    """Return whether ranks that have arrived are of different jobs, or were told different world sizes."""
    sizes, _, jobs = zip(*map(msgpack.unpackb, values), strict=True)
    return len(set(sizes)) > 1 or len({*jobs} - {""}) > 1


def host_identity() -> str:
    """Return a text that is equal for processes that reach each other by loopback."""
    return boot_and_namespace("net")
