"""The leader's queue of requests, and of what else happens between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiodist.errors import DistError


class Request:
    """One call of a caller, at the time ``since``. ``answer`` is cancelled where the caller was."""

    __slots__ = ("answer", "since", "value")

    def __init__(self, value: Any) -> None:
        loop = asyncio.get_running_loop()
        self.value = value
        self.since = loop.time()
        self.answer: asyncio.Future[Any] = loop.create_future()

    def succeed(self, result: Any) -> None:
        """Give the caller ``result``, or raise it there if it is an exception."""
        if self.answer.done():
            return
        if isinstance(result, StopIteration):  # neither a future nor a coroutine can raise it
            error = RuntimeError(f"the result of this request is {result!r}")
            error.__cause__ = result
            result = error
        if isinstance(result, Exception):
            self.answer.set_exception(result)
            self.answer.exception()  # a caller that was cancelled at this moment does not ask
        else:
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        """Raise ``error`` at the caller."""
        if isinstance(error, DistError):
            error = error.again().with_traceback(error.__traceback__)  # with the handler's line
        self.succeed(error)


class Admission(Request):
    """A call of `Service.grow`: ``value`` are the ranks that wait to be taken in."""


class RequestQueue:
    """Requests in the order of their calls. It outlives groups: what waits is served by the next one."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False

    def add(self, request: Request) -> None:
        """Queue ``request``; an `Admission` goes before all others."""
        if isinstance(request, Admission):
            self._requests.appendleft(request)
        else:
            self._requests.append(request)
        self._changed.set()

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue again, before all others, what was taken and not begun."""
        self._requests.extendleft(reversed(requests))
        self._changed.set()

    def close(self, error: Exception) -> None:
        """Fail what waits with ``error``; `take` returns nothing from here on. Idempotent."""
        self.is_closed = True
        while self._requests:
            self._requests.popleft().fail(error)
        self._changed.set()

    def __len__(self) -> int:
        return sum(not request.answer.done() for request in self._requests)

    async def take(self, most: int, delay: float) -> Sequence[Request]:
        """Wait for requests and take up to ``most`` of them, or one `Admission` alone.

        The first one waits for others until ``delay`` seconds after its call. Returns nothing where the
        queue is closed. Cancelled, it takes none.
        """
        while True:
            while not self._waiting():
                if self.is_closed:
                    return ()
                await self._next_change()
            if delay > 0:
                await self._delay(most, delay)
            if taken := self._take_now(most):
                return taken
            # All callers were cancelled meanwhile.

    async def _delay(self, most: int, delay: float) -> None:
        """Wait for ``most`` requests, until the first has waited ``delay`` seconds or one is urgent."""
        try:
            async with asyncio.timeout_at(self._requests[0].since + delay):
                while self._waiting() < most and not self._is_urgent():
                    await self._next_change()
        except TimeoutError:
            pass

    def _take_now(self, most: int) -> Sequence[Request]:
        """Take up to ``most`` of the requests that wait, or one `Admission` alone."""
        taken: list[Request] = []
        while self._waiting() and len(taken) < most:
            if isinstance(self._requests[0], Admission):
                return taken or [self._requests.popleft()]
            taken.append(self._requests.popleft())
        return taken

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _is_urgent(self) -> bool:
        requests = self._requests  # none, if all of them were cancelled
        return self.is_closed or bool(requests and isinstance(requests[0], Admission))

    def _waiting(self) -> int:
        """How many wait, without those at the front whose callers were cancelled."""
        while self._requests and self._requests[0].answer.done():
            self._requests.popleft()
        return len(self._requests)
