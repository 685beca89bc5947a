"""``serving``: a leader takes requests from many callers, and all ranks carry them out in one order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from numbers import Real
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.api.objects import all_gather_object
from aiodist.api.process_group import ProcessGroup, handle_of
from aiodist.api.recovery import grow, shrink
from aiodist.api.rejoining import meeting_place, waiting_at
from aiodist.deadline import Deadline
from aiodist.errors import (
    CollectiveCancelledError,
    CollectiveTimeoutError,
    GroupEndedError,
    InvalidUsageError,
    ServiceClosedError,
)
from aiodist.groups.argument_checks import check_count, check_ranks, check_tag
from aiodist.groups.world import current_world
from aiodist.rendezvous.meeting_stores import check_store
from aiodist.service.following import follow
from aiodist.service.handlers import Handler, call_async, check_handler, check_outside
from aiodist.service.leading import Leader
from aiodist.service.requests import Admission, Request, RequestQueue
from aiodist.store.waiting import pauses
from aiodist.unpicklable import Unpicklable

Worker = Callable[[], Awaitable[Handler]]

_NO_RANK = -1

_ADMISSION_SECONDS = 5.0
"""How long all ranks wait for newcomers that the leader has already seen at the store."""

_LONGEST_PAUSE = 0.1
"""Seconds between two looks at the store for newcomers."""


class Service(Unpicklable):
    """One rank's part of a service. `serving` makes it."""

    def __init__(self, worker: Worker, batching: tuple[int, float], store: Any, tag: int) -> None:
        """Arguments as for `serving`; ``batching``: ``max_batch`` and ``max_delay``."""
        self._worker = worker
        self._batching = batching
        self._store = store
        self._tag = tag
        self._world = current_world()
        self._group = handle_of(self._world.default_group())
        self._queue = RequestQueue()
        self._closed = ServiceClosedError(
            "the service has ended on this rank: it answers no more requests"
        )
        self._leader = _NO_RANK
        self._handler: Handler
        self._prepared: list[int] = []  # the ranks that the handler was made for
        self._changed = asyncio.Condition()
        self._is_serving = False
        self._is_over = False
        self._running = asyncio.ensure_future(self._run())

    # -- for users

    @property
    def group(self) -> ProcessGroup:
        """The group that serves now. It changes when ranks are lost and when others come."""
        return self._group

    @property
    def leader(self) -> int:
        """The global rank of the leader; -1 before the ranks have agreed on it."""
        return self._leader

    @property
    def is_serving(self) -> bool:
        """Whether the ranks are ready for requests; not while they load, or make a new group."""
        return self._is_serving

    @property
    def waiting(self) -> int:
        """How many requests wait on this rank for their batch."""
        return len(self._queue)

    async def call(self, request: Any) -> Any:
        """Have a request carried out by all ranks; return the leader's result. Only on the leader.

        Any number of tasks may call. Requests that wait while the ranks make a new group are
        carried out by that one.

        Cancelled while it waits, the request is dropped. Cancelled in its batch, the batch is
        carried out to its end on all ranks, and the result is dropped: the order of the
        collectives stays.

        Args:
            request: What `aiodist.send_object` takes.

        Returns:
            What the handler returned for it on the leader.

        Raises:
            Exception: What the handler raised on the leader.
            WorkerError: What the handler raised on a worker, unless it is an error of aiodist,
                which is raised itself.
            PeerLostError: The group ended in the middle of its batch. Whether its effects took
                place is not known then. GroupRevokedError says the same.
            TypeError: The request cannot travel.
            ServiceClosedError: The service has ended. Its ``__cause__`` is the error that has ended it
                on this rank, if one has.
            InvalidUsageError: On another rank, in another event loop, or inside ``worker`` or the
                handler.
        """
        self._world.check_loop()
        check_outside(self)
        return await self._submit(Request(request))

    async def grow(self, ranks: Sequence[int] = (), timeout: Timeout = None) -> ProcessGroup:
        """Take in processes that wait in `aiodist.rejoin`. Only on the leader.

        Requests are carried out until the processes wait at the store. Then all ranks make the
        new group and call ``worker`` again. Cancelled, it may be called again.

        Args:
            ranks: Global ranks to wait for: places of lost ranks, or those that ``capacity``
                keeps. Without one, at least one process for any free place.
            timeout: Seconds or a timedelta; None is the group's timeout.

        Returns:
            The new group.

        Raises:
            CollectiveTimeoutError: They did not come in time.
            InvalidUsageError: There is no store, a rank is out of range, another rank leads, or the
                call is in another event loop, or inside ``worker`` or the handler.
            ServiceClosedError: The service has ended.
        """
        self._world.check_loop()
        check_outside(self)
        self._check_open()  # first: without a world there are no places that ranks could name
        group = self._group
        deadline = Deadline(group.timeout if timeout is None else timeout)
        wanted = check_ranks(ranks, self._world.size, may_be_empty=True)
        async with meeting_place(self._world, self._store, deadline) as place:
            for pause in pauses(_LONGEST_PAUSE):
                self._check_open()
                free = [rank for rank in self._group.lineage if rank not in self._group.ranks]
                there = {newcomer.rank for newcomer in await waiting_at(place, free)}
                missing = self._missing(wanted or free, there)
                if not missing if wanted else there:
                    break
                if deadline.expired():
                    raise CollectiveTimeoutError(
                        f"grow of the service timed out after {deadline.timeout:g} s: no process "
                        f"came for a free place{(missing and f', of {missing}') or ''}",
                        operation="grow",
                        group=group.group_name,
                        rank=group.global_rank,
                        waiting_for=missing,
                    )
                await asyncio.sleep(min(pause, deadline.remaining()))
        if not there:
            return self._group
        grown: ProcessGroup = await self._submit(Admission(sorted(there)))
        return grown

    async def until_leader(self) -> bool:
        """Wait until this rank leads the service and serves; return False when the service has ended.

        The first leader is the group's first rank. When a leader is lost, the first rank of those that
        are left takes its place. Raises what ended the service on this rank.
        """
        self._world.check_loop()
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or self._leads)
        if self._is_over:
            await self.until_closed()
        return not self._is_over

    async def until_closed(self) -> None:
        """Wait for the end of the service. Raises what ended it on this rank.

        That is ServiceClosedError where the block of `serving` was cancelled, or raised.
        """
        self._world.check_loop()
        await asyncio.wait({self._running})
        if self._running.cancelled():  # the task that waits here is not
            raise self._closed.again()
        self._running.result()

    # -- the row of groups

    @property
    def _leads(self) -> bool:
        return self._is_serving and self._leader == self._group.global_rank

    def _missing(self, wanted: Sequence[int], waiting: Collection[int]) -> list[int]:
        """Return those of ``wanted`` that are neither members nor ``waiting`` at the store.

        While the ranks make a new group, `_group` still has the ranks that were lost.
        """
        lost = self._world.endpoint.lost
        members = [rank for rank in self._group.ranks if self._is_serving and not lost(rank)]
        return [rank for rank in wanted if rank not in waiting and rank not in members]

    def _check_open(self) -> None:
        """Raise InvalidUsageError if another rank leads, ServiceClosedError if the service has ended."""
        if self._leader not in (_NO_RANK, self._group.global_rank):
            raise InvalidUsageError(
                f"rank {self._leader} leads the service: call() and grow() are for that rank alone"
            )
        if self._queue.is_closed:
            raise self._closed.again()

    async def _submit(self, request: Request) -> Any:
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_over or self._leader != _NO_RANK)
        self._check_open()
        self._queue.add(request)
        return await request.answer

    async def _run(self) -> None:
        """Serve in one group after the other, until the leader ends the service."""
        try:
            while True:
                try:
                    if await self._serve():
                        return
                    self._group = handle_of(self._world.default_group())
                except (GroupEndedError, CollectiveCancelledError):
                    await self._note(serving=False)
                    self._group = await shrink(self._group)
        except Exception as error:
            self._closed.__cause__ = error
            raise
        finally:
            self._is_over = True
            self._queue.close(self._closed)
            await self._note(serving=False)

    async def _serve(self) -> bool:
        """Serve in the present group. Returns whether the service has ended."""
        group = self._group
        while not await self._agree(group):
            self._handler = await call_async(self, "worker", self._worker)
            check_handler(self._handler)
            self._prepared = list(group.ranks)
        await self._note(serving=True)
        handler = partial(call_async, self, "handler", self._handler)
        try:
            if self._leader != group.global_rank:
                return await follow(group, self._leader, handler, self._tag, self._take_in)
            leader = Leader(group, handler, self._queue, self._batching, self._tag, self._take_in)
            return await leader.run()
        finally:
            await self._note(serving=False)

    async def _agree(self, group: ProcessGroup) -> bool:
        """Agree with the other ranks on the leader; return whether all are prepared for this group.

        A leader stays the leader, also where a newcomer takes the first place in the group. Where one
        rank is not prepared, all call ``worker``, for it may use collectives.
        """
        told: list[Any] = [None] * group.size()
        await all_gather_object(told, [self._leader, self._prepared], group)
        known = [leader for leader, _ in told if leader in group.ranks]
        settled = [rank for rank in group.ranks if rank not in group.newcomers]
        self._leader = min(known, default=(settled or list(group.ranks))[0])
        return all(prepared == list(group.ranks) for _, prepared in told)

    async def _take_in(self, ranks: Sequence[int]) -> ProcessGroup:
        members = current_world().default_group().ranks
        while True:
            try:
                return await grow(self._store, ranks, _ADMISSION_SECONDS)
            except CollectiveTimeoutError as error:
                if error.waiting_for and not set(error.waiting_for).intersection(members):
                    raise  # no process came, which all members know
                # A member that lives is busy, or this rank itself waits for its store. It decides with
                # the others later: each call goes on where the one before was.

    async def _note(self, *, serving: bool) -> None:
        async with self._changed:
            self._is_serving = serving
            self._changed.notify_all()

    # -- the end

    async def _leave(self) -> None:
        """End the service if this rank leads it, now or later; return when it has ended."""
        self._queue.close(self._closed)
        await self.until_closed()

    async def _abandon(self) -> None:
        """Stop at once."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.exception()  # the block's own error is raised


@asynccontextmanager
async def serving(
    worker: Worker,
    *,
    max_batch: int = 1,
    max_delay: float = 0.0,
    store: Any | None = None,
    tag: int = 0,
) -> AsyncIterator[Service]:
    """Serve requests by all ranks of the default group, in one order. All ranks enter it.

    An example, with a model whose layers are split over the ranks::

        async def worker():
            weight = load_shard(dist.get_rank(), dist.get_world_size())

            async def forward(requests):
                sums = [weight @ x for x in requests]
                await asyncio.gather(*map(dist.all_reduce, sums))
                return sums

            return forward

        async with dist.serving(worker, max_batch=8) as service:
            if await service.until_leader():
                await accept_clients(service.call)

    The handler gets the same list of requests on all ranks, and returns one result for each.
    Those of the leader go to the callers; a result that is an exception is raised there. Worker
    and handler use operations of the default group, which is another one after a loss: they must
    not keep ``dist.group.WORLD``. No other code may use collectives of that group meanwhile.

    When a rank is lost, the callers whose batch was being carried out get PeerLostError. The
    ranks that are left make a new group by `aiodist.shrink` and go on. Where an error leaves the
    ranks out of step, they make a new group, too, with the same ranks.

    The service ends on all ranks when the leader leaves the block: the present batch ends, and
    waiting callers get ServiceClosedError. A worker that comes to the end of its block waits for
    the leader's. A block that raises, or is cancelled, stops this rank's part at once: destroy or
    abort the process group then, so that the others go on without this rank. A rank that was
    replaced enters it after `aiodist.rejoin`, with no other collective before.

    Args:
        worker: ``await worker()`` returns the handler. It runs on every rank at the start, and
            again when ranks were lost or have come.
        max_batch: The most requests that the handler gets at once: those that waited while the
            one before was carried out.
        max_delay: The seconds that a request waits for others.
        store: Where newcomers ask, as for `aiodist.grow`.
        tag: Tag of the streams between the leader and its workers.

    Returns:
        A context manager, whose value is the `Service`.

    Raises:
        InvalidUsageError: An argument is impossible.
        TypeError: ``worker`` is no async function, or returned no handler; ``store`` is no store;
            ``max_delay`` is no number.
        NotInitializedError: There is no default group.
        Exception: What ``worker`` raised.
    """
    check_count(max_batch, "max_batch")
    if isinstance(max_delay, bool) or not isinstance(max_delay, Real):
        raise TypeError(f"max_delay must be a number of seconds, not {type(max_delay).__name__}")
    if not max_delay >= 0:
        raise InvalidUsageError(f"max_delay must be 0 or more seconds, not {max_delay!r}")
    if not callable(worker):
        raise TypeError(f"worker must be an async function, not {worker!r}")
    if store is not None:
        check_store(store)
    current_world().group_here(None)
    service = Service(worker, (max_batch, max_delay), store, check_tag(tag))
    try:
        yield service
        await service._leave()
    except BaseException:
        await service._abandon()
        raise
