"""The thread in which a rank's circle lives, and the way between it and the rank's own loop.

The rank's loop may be busy for minutes, or stand still; this thread needs the interpreter for a
moment several times a timeout, and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from aiodist.errors import DistError
from aiodist.mesh.liveness.circle import Circle
from aiodist.mesh.liveness.notice import Notice
from aiodist.mesh.peer import Card
from aiodist.transport.base import Transport

DEFAULT_TIMEOUT = 10.0
"""Seconds of silence after which a rank counts as lost, where nothing else is said."""

SHORTEST = 0.2
"""Seconds; below that a busy machine alone makes a rank silent for so long."""

_JOIN_SECONDS = 2.0
_ORPHANED = "its event loop has ended without destroy_process_group()"


class Heart:
    """A daemon thread with an event loop of its own. ``open``, ``meet``, in the end ``close``."""

    def __init__(
        self, rank: int, size: int, transports: Sequence[Transport], timeout: float
    ) -> None:
        """``timeout``: seconds, see `DEFAULT_TIMEOUT`."""
        self._rank = rank
        self._size = size
        self._transports = transports
        self._timeout = timeout
        self._owner = asyncio.get_running_loop()
        self._met = False
        self._vitals: Callable[[], str] = str
        self._report: Callable[[Notice], None] = _ignore
        self._circle: Circle | None = None
        self._loop: asyncio.SelectorEventLoop | None = None
        self._end: asyncio.Future[str] | None = None
        self._thread = threading.Thread(target=self._live, name="aiodist-heart", daemon=True)
        self._opened: asyncio.Future[tuple[str, ...]] = self._owner.create_future()
        self._ended: asyncio.Future[None] = self._owner.create_future()

    async def open(
        self, vitals: Callable[[], str], report: Callable[[Notice], None]
    ) -> tuple[str, ...]:
        """Start; the addresses are for the other ranks. Raises DistNetworkError.

        ``vitals()`` is called in the thread; ``report(notice)`` in this loop, for each lost rank.
        """
        self._vitals, self._report = vitals, report
        self._thread.start()
        try:
            return await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._opened.cancel()
            self.stop()
            raise

    def meet(self, cards: Sequence[Card], key: bytes) -> None:
        """Begin to beat and to watch. Ranks of one process live and die together, and need none."""
        if len({(card.host_id, card.pid) for card in cards}) == 1:
            self._request_end("")
            return
        self._met = True
        self._ask(Circle.meet, cards, key)

    def renew(self, card: Card) -> None:
        """Another process has taken the place of a rank."""
        if self._met:
            self._ask(Circle.renew, card)

    def dismiss(self, rank: int) -> None:
        """``rank`` was lost before this one came."""
        if self._met:
            self._ask(Circle.dismiss, rank)

    def _ask(self, function: Callable[..., None], *args: object) -> None:
        loop, circle = self._loop, self._circle
        assert loop is not None  # `open` has returned
        assert circle is not None
        try:
            loop.call_soon_threadsafe(function, circle, *args)
        except RuntimeError:  # it has ended
            pass

    def heard_of(self, rank: int) -> str:
        """What ``rank`` last said that it does; empty for one that is no neighbour."""
        return "" if self._circle is None else self._circle.heard_of.get(rank, "")

    async def close(self) -> None:
        """Say goodbye and end the thread; a second or two at most. Idempotent."""
        if self._thread.ident is None:
            return
        if self._request_end(""):
            await asyncio.wait([self._ended], timeout=_JOIN_SECONDS)
        self._thread.join(_JOIN_SECONDS)  # nothing is left for it to do

    def stop(self) -> None:
        """End the thread without the owner's loop, which has ended: to the others, this rank died."""
        if self._thread.ident is not None:
            self._request_end(_ORPHANED)
            self._thread.join(_JOIN_SECONDS)

    def close_in_child(self) -> None:
        """In a forked child, which has no such thread: give back its sockets."""
        loop, self._loop = self._loop, None
        if self._circle is not None:
            self._circle.close_in_child()
        if loop is not None:
            for name in ("_ssock", "_csock", "_selector"):
                inherited = getattr(loop, name, None)
                if inherited is not None:
                    inherited.close()

    # -- the thread

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._main())
        finally:
            self._tell(_resolve, self._ended, None)

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, asyncio.SelectorEventLoop)
        self._end = loop.create_future()
        self._loop = loop
        self._circle = circle = Circle(
            self._rank, self._size, self._transports, self._timeout, self._pulse, self._pass_on
        )
        try:
            try:
                addresses = await circle.open()
            except DistError as error:
                self._tell(_fail, self._opened, error)
                return
            self._tell(_resolve, self._opened, addresses)
            await self._end
        finally:
            await circle.leave(self._end.result() if self._end.done() else "")

    def _pulse(self) -> str:
        if self._owner.is_closed():
            self._finish(_ORPHANED)
        return self._vitals()

    def _pass_on(self, notice: Notice) -> None:
        self._tell(self._report, notice)

    def _tell(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._owner.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the owner's loop has ended: nobody is left to be told
            pass

    def _request_end(self, last_words: str) -> bool:
        """Have the thread end; False if it has."""
        while self._loop is None and self._thread.is_alive():
            self._thread.join(0.001)  # it has just been started
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(self._finish, last_words)
        except RuntimeError:
            return False
        return True

    def _finish(self, last_words: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(last_words)


def _ignore(notice: Notice) -> None:
    """Before `open`."""


def _resolve(future: asyncio.Future[object], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
