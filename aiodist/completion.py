"""The smallest thing a coroutine can wait for, and the driver that runs coroutines which wait for it.

asyncio's futures call back through the loop, one turn later. A collective is a chain of waits,
and one loop turn a link is most of its time. A `Pending` calls back at once instead, so the
coroutine of a collective runs on from inside the socket's read callback. Nothing here knows
asyncio: the same coroutines run over sockets, queues or a simulated clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """A value that is not there yet. One waiter; completed once; later completions are ignored."""

    __slots__ = ("callback", "done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.value: T | None = None
        self.callback: Callable[[], None] | None = None

    def complete(self, value: T) -> None:
        if not self.done:
            self.value = value
            self.done = True
            callback, self.callback = self.callback, None
            if callback is not None:
                callback()

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self.error = error
            self.complete(None)  # type: ignore[arg-type]  # beside an error there is no value

    def __await__(self) -> Generator[Pending[T], None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T admits None, and done means it is set


class Driver(Generic[T]):
    """Runs one coroutine that awaits only `Pending` objects. Starts it inside ``start``, at once.

    ``on_done(value, error)`` is called exactly once, from whichever step ends the coroutine.
    """

    __slots__ = ("_coroutine", "_error", "_on_done", "_stepping", "_waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        on_done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._on_done = on_done
        self._waiting: Pending[Any] | None = None
        self._stepping = False
        self._error: BaseException | None = None

    def start(self) -> None:
        self._step()

    def throw(self, error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits. Ignored once it has ended."""
        if self._coroutine is None:
            return
        self._error = error
        if not self._stepping:
            if self._waiting is not None:
                self._waiting.callback = None
                self._waiting = None
            self._step()

    def _step(self) -> None:
        # A throw() that arrives while the coroutine is running (it aborted itself by what it
        # called) is delivered at its next wait: the loop below looks at _error before waiting.
        self._stepping = True
        self._waiting = None
        try:
            while (coroutine := self._coroutine) is not None:
                error, self._error = self._error, None
                try:
                    waiting = coroutine.send(None) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    self._end(stop.value, None)
                except BaseException as raised:  # noqa: BLE001  # handed to on_done, whatever it is
                    self._end(None, raised)
                else:
                    if self._error is None and not waiting.done:
                        waiting.callback = self._step
                        self._waiting = waiting
                        break
        finally:  # an error such as RecursionError may strike between the lines
            self._stepping = False

    def _end(self, value: T | None, error: BaseException | None) -> None:
        self._coroutine = None
        self._error = None
        self._on_done(value, error)


class Unfinished(Exception):
    """Raised by the last step of a `Once` that finds it is not the last: ``rest()`` goes on."""

    def __init__(self, rest: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        """``rest``: returns a coroutine that awaits only `Pending`, with the operation's result."""
        super().__init__()
        self.rest = rest


class Once(Generic[T]):
    """A `Driver` for what mostly waits for one `Pending` and has a last step.

    A coroutine is made only if that step raises `Unfinished`. ``on_done(value, error)`` is called
    exactly once: with what ``finish(value of pending)``, or the rest of it, returns or raises, or
    with the error of ``pending`` or of `throw`.
    """

    __slots__ = ("_driver", "_error", "_finish", "_on_done", "_pending")

    def __init__(
        self,
        pending: Pending[Any],
        finish: Callable[[Any], T],
        on_done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._pending: Pending[Any] | None = pending
        self._finish = finish
        self._on_done = on_done
        self._driver: Driver[T] | None = None
        self._error: BaseException | None = None  # thrown while `finish` runs

    def start(self) -> None:
        pending = self._pending
        assert pending is not None
        if pending.done:
            self._step()
        else:
            pending.callback = self._step

    def throw(self, error: BaseException) -> None:
        """End by ``error`` instead, or raise it where the rest waits. Ignored once it has ended."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.callback = None
            self._on_done(None, error)
        elif self._driver is not None:
            self._driver.throw(error)
        else:
            self._error = error

    def _step(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        value, error = None, pending.error
        if error is None:
            try:
                value = self._finish(pending.value)
            except Unfinished as unfinished:
                self._driver = Driver(unfinished.rest(), self._on_done)
            except BaseException as raised:  # noqa: BLE001  # handed to on_done, whatever it is
                error = raised
        if self._driver is None:
            self._on_done(value, error)
        else:
            self._driver.start()
            if self._error is not None:
                self._driver.throw(self._error)


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines that await only `Pending` side by side, until all have ended.

    The first error is thrown into the others, as GeneratorExit, and raised when they have ended too;
    so is one that is thrown in here.
    """
    end: Pending[None] = Pending()
    quiet: Pending[None] = Pending()
    left = len(coroutines)

    def ended(_: None, error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            end.fail(error)
        if not left:
            end.complete(None)
            quiet.complete(None)

    drivers = [Driver(coroutine, ended) for coroutine in coroutines]
    try:
        for driver in drivers:
            driver.start()
        await end
    except BaseException:
        for driver in drivers:
            driver.throw(GeneratorExit())
        # One of them may be what brought us here, and runs on to its next wait: nothing that it does
        # there may be left behind when this has ended.
        while left:
            with suppress(BaseException):
                await quiet
        raise


def completed(value: T) -> Pending[T]:
    """A `Pending` that is already done."""
    pending: Pending[T] = Pending()
    pending.complete(value)
    return pending
