"""The thread in which a rank's failure detector lives, and its connection to the rank's own loop.

The rank's loop may be busy for minutes, or stand still. This thread only needs the interpreter for
a moment several times a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from aiodist.errors import DistError, DistNetworkError, remedy_for
from aiodist.links.loop_thread import LoopThread
from aiodist.links.rank_info import RankInfo
from aiodist.liveness.failure_detector import FailureDetector
from aiodist.liveness.loss_notice import LossNotice
from aiodist.transport.base_transport import Transport

DEFAULT_TIMEOUT = 10.0
"""Seconds of silence after which a rank counts as lost, by default."""

SHORTEST = 0.2
"""The shortest timeout in seconds. On a busy machine a healthy rank can be silent for longer."""

_ORPHANED = "its event loop has ended without destroy_process_group()"


class HeartbeatThread:
    """Run a failure detector in its own thread. Call ``open``, ``meet``, and in the end ``close``."""

    def __init__(
        self, rank: int, size: int, transports: Sequence[Transport], timeout: float
    ) -> None:
        """Create the thread without starting it. ``timeout``: seconds, see `DEFAULT_TIMEOUT`."""
        self._rank = rank
        self._size = size
        self._transports = transports
        self.timeout = timeout
        """Seconds of silence; 0 after `set_timeout` where no rank watches another."""
        self._met = False
        self._vitals: Callable[[], str] = str
        self._report: Callable[[LossNotice], None] = _ignore
        self._report_departure: Callable[[int, bytes], None] = _ignore
        self._detector: FailureDetector | None = None
        self._last_words = ""
        self._loop_thread = LoopThread("aiodist-heart", self._main)
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[tuple[str, ...]] = loop.create_future()

    async def open(
        self,
        vitals: Callable[[], str],
        report: Callable[[LossNotice], None],
        report_departure: Callable[[int, bytes], None],
    ) -> tuple[str, ...]:
        """Start the thread and return the addresses for the other ranks. Raises DistNetworkError.

        ``vitals()`` is called in the thread; ``report(notice)`` in this loop, for each lost rank, and
        ``report_departure(rank, mark)`` for each that has said goodbye.
        """
        self._vitals, self._report, self._report_departure = vitals, report, report_departure
        self._loop_thread.start()
        try:
            await self._loop_thread.wait_for(self._opened)
        except asyncio.CancelledError:
            self._opened.cancel()  # an error of the thread is not asked for; `close` ends it
            raise
        if not self._opened.done():
            failure = self._loop_thread.failure
            raise DistNetworkError(
                f"rank {self._rank} cannot send heartbeats, because their thread has ended: "
                f"{failure}; " + remedy_for(failure, "liveness_timeout=0 turns heartbeats off")
            ) from failure
        return self._opened.result()

    def set_timeout(self, timeout: float) -> None:
        """Take the ``timeout`` of the other ranks, which may be 0, before ``meet``."""
        self.timeout = timeout
        if timeout:
            self._ask(FailureDetector.set_timeout, timeout)

    def meet(self, rank_infos: Sequence[RankInfo], key: bytes) -> None:
        """Begin to send heartbeats and to watch. Ranks of one process share its fate and need none."""
        if (
            not self.timeout
            or len({(rank_info.host_id, rank_info.pid) for rank_info in rank_infos}) == 1
        ):
            self._loop_thread.cancel()
            return
        self._met = True
        self._ask(FailureDetector.meet, rank_infos, key)

    def renew(self, rank_info: RankInfo) -> None:
        """Accept another process in the place of a rank."""
        if self._met:
            self._ask(FailureDetector.renew, rank_info)

    def stop_watching(self, rank: int) -> None:
        """Stop watching ``rank``, which was lost before this rank joined."""
        if self._met:
            self._ask(FailureDetector.stop_watching, rank)

    def _ask(self, function: Callable[..., None], *args: object) -> None:
        assert self._detector is not None  # `open` has returned
        self._loop_thread.ask(function, self._detector, *args)

    def last_heartbeat_of(self, rank: int) -> str:
        """Return what `FailureDetector.last_heartbeat_of` says of ``rank``."""
        return "" if self._detector is None else self._detector.last_heartbeat_of(rank)

    async def close(self) -> None:
        """Say goodbye and end the thread, within 4 s. Idempotent."""
        await self._loop_thread.close()

    def stop(self) -> None:
        """End the thread without the owner's loop, which has ended. To the others, this rank died."""
        self._last_words = _ORPHANED
        self._loop_thread.stop()

    def close_in_child(self) -> None:
        """Release the sockets in a forked child, which has no such thread."""
        if self._detector is not None:
            self._detector.close_in_child()
        self._loop_thread.close_in_child()

    # -- the thread

    async def _main(self) -> None:
        self._detector = detector = FailureDetector(
            self._rank,
            self._size,
            self._transports,
            self.timeout,
            self._pulse,
            partial(self._loop_thread.tell, self._report),
            partial(self._loop_thread.tell, self._report_departure),
        )
        try:
            try:
                addresses = await detector.open()
            except DistError as error:
                self._loop_thread.tell(_fail, self._opened, error)
                return
            self._loop_thread.tell(_resolve, self._opened, addresses)
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        finally:
            await detector.leave(_ORPHANED if self._loop_thread.is_orphaned else self._last_words)

    def _pulse(self) -> str:
        if self._loop_thread.is_orphaned:
            self._loop_thread.cancel()
        return self._vitals()


def _ignore(*_: object) -> None:
    """Ignore a notice that comes before `open`."""


def _resolve(future: asyncio.Future[object], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
