"""The loop's thread lends the loop while it sleeps, so that a blocked thread can drive the engine itself.

Otherwise a blocking call is a hop to the loop's thread and one back: two wake-ups, which cost more
than a small message. The loop's thread releases the *loop lock* before it sleeps in its selector,
and acquires it before it runs a callback. A sleeping loop is a set of objects that any one thread
may use. A blocking call acquires the loop lock, starts its operation in the calling thread and polls
for the answer there. No thread wakes up for that.

For five milliseconds after a call, and while no operation is under way, the loop's thread sleeps
beside its selector. A driving thread reads the streams itself, and each message would wake the
loop's thread for nothing. What a call leaves to the loop, a callback or an earlier timer, is done
after that time, too. While calls go on, that time grows to 40 ms: each time the loop's thread wakes
up, it takes Python's interpreter lock from the thread that calls, which sleeps until it is woken.
"""

from __future__ import annotations

# signal.signal converts to enums and back, which takes ten times as long as the call itself.
import _signal  # type: ignore[import-not-found]  # typeshed leaves it out
import asyncio
import math
import os
import select
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from time import monotonic
from traceback import walk_tb
from typing import Any, TypeVarTuple

from aiodist.deadline import SIGNAL_SECONDS
from aiodist.errors import InvalidUsageError

_Ts = TypeVarTuple("_Ts")

_SIGINT = int(_signal.SIGINT)
_getsignal, _signal_to = _signal.getsignal, _signal.signal
_raise_interrupt = _signal.default_int_handler
_get_ident = threading.get_ident

LINGER = 5e-3
"""For so long after a call the loop's thread waits for the next one, and looks at this interval for
what calls have left."""

LONGEST_LINGER = 40e-3
"""The same while calls go on."""

_LONGEST = 60.0
"""The longest sleep in the selector."""

_SHORT = 1e-3
"""How long a call waits for the loop's thread to run what it has woken up for."""

Events = list[tuple[selectors.SelectorKey, int]]


class LoopHandoff:
    """The loop lock: the thread that holds it may use the objects of one loop."""

    def __init__(self, longest_pause: Callable[[], float] = lambda: 0.0) -> None:
        """``longest_pause()``: for how many seconds streams can wait; 0 while an operation is under way."""
        self.interrupts = Interrupts(threading.main_thread().ident)
        self._longest_pause = longest_pause
        # Held by the thread that uses the loop's objects. This lock and the next one know their owner, so
        # that a thread in which a signal's handler has raised can release what it holds, wherever it was
        # struck.
        self.loop_lock = threading.RLock()
        self._iteration = threading.RLock()  # held by the loop's thread unless it sleeps
        self._alarm = threading.Lock()  # released to wake the loop's thread where it lingers
        self._alarm.acquire()
        self._lent = False  # the loop's thread sleeps, or wants the loop lock back
        self._driver = 0  # which thread drives
        self._runner = 0  # which thread is in `run_until`, and runs the loop for its own thread
        # Held by that thread: it may sleep in the selector. It knows its owner, as a signal's handler that
        # interrupts the sleep may end the loop.
        self._running = threading.RLock()
        self._asleep = False  # that thread sleeps in the selector, without the loop lock
        self._lets_interrupts = False  # that thread holds Ctrl-C back, but not while it sleeps
        self._wanted = False
        self._lingers = False
        self._recalled = False  # Another thread has woken the loop.
        self._scheduled = False  # A thread that drove has left the loop something to do.
        self._deep = False  # The loop's thread does not look for that by itself.
        self._until = math.inf  # its sleep ends then, of `monotonic`
        self._used = 0.0
        self._pause = LINGER  # how long it lingers next
        self._wake: Callable[[], None] = _nothing
        self.sleeper: object = None
        """What the one thread waits for that sleeps by itself, in a `BlockedCaller` or in `run_until`.
        None if no thread does. It is set with the loop lock held. No lock: a signal's handler cannot raise
        between the call and a plain assignment."""

    # -- the loop's thread

    def run(self, loop: asyncio.AbstractEventLoop, main: Callable[[], None]) -> None:
        """Call ``main()``, which runs ``loop``, with the loop lock held."""
        self._wake = lambda: _wake(loop)
        with self._iteration, self.loop_lock:
            main()

    def close(self, loop: HandoffLoop) -> None:
        """Close ``loop`` after `run`: once no thread sleeps in its selector."""
        loop.end_pause()
        with self._running:  # a loop that is not lent is not driven
            loop.close()

    def sleep(self, select: Callable[[float | None], Events], timeout: float | None) -> Events:
        """Return what ``select(timeout)`` returns; lend the loop meanwhile."""
        if timeout is not None and timeout <= 0:
            return select(timeout)
        self._until = math.inf if timeout is None else monotonic() + timeout
        if self._driver == _get_ident():
            self._sleep_driving(timeout)
            return select(0) if self._lent else []
        self._scheduled = False
        self._lent = True
        self.loop_lock.release()
        self._iteration.release()
        try:
            self._sleep(select)
        finally:
            self._iteration.acquire()
            self._wanted = True
            self.loop_lock.acquire()
            self._wanted = self._lent = self._deep = self._recalled = False
        # Events that were read without the lock may be those of a reader or writer that a thread which
        # drove has replaced since: asyncio would remove the new one.
        return select(0)

    def _sleep(self, select: Callable[[float | None], Events]) -> None:
        """Sleep without the loop lock until there is something to do."""
        events: Events = []
        while not events and (left := self._until - (now := monotonic())) > 0:
            self._deep = not self._runner and now - self._used > LINGER
            # Invariant: _deep is stored before this looks, and a driving thread has stored
            # _scheduled or _runner before it looks at _deep. So one of the two sees the other's.
            if self._deep and (self._scheduled or self._runner):
                break
            if self._deep:
                self._pause = LINGER
                events = select(min(left, _LONGEST))
            elif longest := LONGEST_LINGER if self._runner else self._longest_pause():
                self._wait_idle(min(left, self._pause, longest))
                self._pause = min(2 * self._pause, LONGEST_LINGER)
                events = select(0)
            else:
                events = select(min(left, LINGER))
            if self._scheduled or self._recalled:
                break
            if events and (self._runner or self._driver):
                # The thread that drives reads the streams itself.
                self._wait_idle(LINGER)
                events = select(0)

    def _wait_idle(self, seconds: float) -> None:
        """Sleep beside the selector: threads that drive read the streams themselves."""
        self._lingers = True
        # Invariant: _lingers is stored before this looks, and `wake_idle` has stored _recalled before.
        if not self._recalled:
            self._alarm.acquire(timeout=seconds)
        self._lingers = False

    def wake_idle(self) -> None:
        """Wake the loop's thread where it lingers: another thread has something for it."""
        self._recalled = True
        if self._lingers:
            with suppress(RuntimeError):  # another thread has done so
                self._alarm.release()

    # -- a thread that drives

    def acquire(self) -> bool:
        """Return whether the calling thread may drive now; it then calls `give_back` or `resume`."""
        me = _get_ident()
        if not self._lent or self._driver == me:  # in a signal's handler
            return False
        if self._wanted:  # it goes first, and is soon done
            if not self._iteration.acquire(timeout=_SHORT):
                return False
            self._iteration.release()
        if not self.loop_lock.acquire(False):
            return False
        if self._lent:
            self._driver = me
            return True
        self.loop_lock.release()
        return False

    def check_may_wait(self) -> None:
        """Raise InvalidUsageError in the thread that drives: it would wait for itself.

        The caller is a signal's handler, which has interrupted a call, or code of an object that a call
        packs or unpacks. Where that call was asleep, the loop's thread runs the loop from now on.
        """
        if self._driver == _get_ident():
            raise InvalidUsageError(
                "called inside another call of aiodist.sync, by a signal's handler, or by an object that "
                "is packed or unpacked: call this after that call has returned"
            )
        if self._runner == _get_ident():
            self._runner = 0

    @property
    def is_interrupted(self) -> bool:
        """Whether the calling thread is in `run_until`, so in a signal's handler: `close` waits for it."""
        return self._running._is_owned()  # type: ignore[attr-defined,no-any-return]

    def take(self) -> bool:
        """Wait until the calling thread may drive. Returns False if the loop has ended."""
        self.loop_lock.acquire()
        if self._lent:
            self._driver = _get_ident()
            return True
        self.loop_lock.release()
        return False

    def run_until(self, loop: HandoffLoop, ended: threading.Lock, held: bool) -> bool:
        """Run ``loop`` in the calling thread, which drives, until ``ended`` is released; whether it was.

        False at once where another thread sleeps by itself, or a task runs in this one (a notebook's cell).
        Also without a descriptor left to sleep over, and once the loop ends. The thread drives before and
        after, but not while it sleeps in the selector; ``held``: it then lets Ctrl-C through, which it
        has held back. Raises what a signal's handler raises there; then it may drive no more, so call
        `abandon`. `end` releases ``ended``.
        """
        if self.sleeper is not None:
            if self._runner == _get_ident():  # a signal's handler has interrupted its sleep
                self._runner = 0
            return False
        self.sleeper = ended
        try:
            asyncio._set_running_loop(loop)
            # From Python 3.14 a thread has one current task, whatever the loop.
            if asyncio.current_task(loop) is None and loop.may_pause():
                self._runner, self._lets_interrupts = _get_ident(), held
                # No `with`: from Python 3.14 on a signal's handler may raise between its lock and its body.
                self._running.acquire()
                while self._lent and ended.locked() and not loop.stops:
                    loop.run_once()
                # Another rank may wait for what the last turn has left to the next one.
                if self._lent and loop.has_callbacks():
                    loop.run_once()
        finally:
            try:
                self._stop_running(ended)
            finally:  # once more: a signal's handler may raise in there
                self._stop_running(ended)
        return not ended.locked()

    def _stop_running(self, ended: threading.Lock) -> None:
        """End `run_until` for ``ended``. Idempotent."""
        if self.is_interrupted:
            self._running.release()
        # Invariant: another thread may be in `run_until` if `sleeper` is not ours: the state is its own.
        if self.sleeper is ended:
            self._runner = 0
            self.sleeper = None
        asyncio._set_running_loop(None)

    def _sleep_driving(self, timeout: float | None) -> None:
        """Sleep in `run_until`, without the loop lock and as a thread that does not drive."""
        loop = asyncio._get_running_loop()
        assert isinstance(loop, HandoffLoop)
        asyncio._set_running_loop(None)  # a signal's handler may call what blocks
        if not self._deep:  # else the loop's thread has to look at its timers once more
            self._scheduled = False
        self._driver = 0
        self._asleep = True
        self.loop_lock.release()
        try:
            if self._lets_interrupts:
                self.interrupts.release()
            loop.pause(SIGNAL_SECONDS if timeout is None else min(timeout, SIGNAL_SECONDS))
        finally:
            # A signal may strike between these. Invariant: a thread that _driver names has the loop lock.
            if self._lets_interrupts:
                self.interrupts.hold()
            self.loop_lock.acquire()
            self._asleep = False
            self._driver = _get_ident()
            asyncio._set_running_loop(loop)

    def end(self, loop: HandoffLoop, ended: threading.Lock) -> None:
        """Release ``ended``, and wake the thread that may sleep in `run_until`. With the loop lock held."""
        ended.release()
        if self._asleep:
            loop.end_pause()

    def give_back(self) -> None:
        """End driving. What is left to the loop it does within some milliseconds."""
        self._used = monotonic()
        wakes = self._scheduled and (self._deep or self._runner)
        self._driver = 0
        self.loop_lock.release()
        if wakes:
            self._wake()

    def hand_on(self, loop: HandoffLoop) -> None:
        """End driving after `run_until`: ``loop``'s thread goes on with what is under way."""
        if loop.has_callbacks() or not self._longest_pause():
            self.resume()
        else:
            self.give_back()

    def resume(self) -> None:
        """End driving and wake the loop, which has something to do."""
        self._used = 0.0
        self._driver = 0
        self.loop_lock.release()
        self._wake()

    def abandon(self, held: bool) -> None:
        """End driving after an error, wherever it came, if this thread drives still; wake the loop.

        ``held``: interrupts are held back; release them. Idempotent: a signal's handler may raise in here,
        too, so call it once more in any case.
        """
        if self._iteration._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            self._iteration.release()  # struck in `acquire`
        if self.loop_lock._is_owned():  # type: ignore[attr-defined]
            self.resume()
        else:
            self._wake()
        if held:
            self.interrupts.release()

    def note_callback(self) -> None:
        """Note that a callback was scheduled, perhaps by a thread that drives."""
        if self._lent:
            self._scheduled = True

    def note_timer(self, when: float) -> None:
        """Note that a timer was scheduled for ``when``, perhaps by a thread that drives."""
        if self._lent and when < self._until:
            self._until = when
            # The sleep that is under way ends before a later timer.
            if when < monotonic() + _LONGEST:
                self._scheduled = True


class HandoffLoop(asyncio.SelectorEventLoop):
    """The event loop of the blocking API. It lends itself by ``handoff`` while it sleeps.

    asyncio's own loop, since its selector can be replaced; uvloop's sleep cannot be.
    """

    def __init__(self, handoff: LoopHandoff) -> None:
        super().__init__(_HandoffSelector(handoff))
        self._handoff = handoff
        self._wake_pipe = _WakePipe()
        self._raised: BaseException | None = None
        """By a signal's handler in a callback, in `run_once`."""
        self.stops = False
        """Its own thread ends it: turns in other threads would not sleep, and keep that thread from it."""
        self.set_debug(False)  # several threads use it, one at a time, which the debug mode refuses

    def stop(self) -> None:
        self.stops = True
        super().stop()

    def run_once(self) -> None:
        """Wait for events once, and call what is due: one turn of the loop, in the calling thread.

        It may `pause`, so `may_pause` comes first. Raises what a signal's handler has raised in a callback.
        """
        self._run_once()  # type: ignore[attr-defined]  # asyncio has no public name for it
        error, self._raised = self._raised, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell an error of a callback, or keep it for `run_once` if a signal's handler raised it."""
        error = context.get("exception")
        if error is not None and self._handoff.is_interrupted and _is_of_a_handler(error):
            self._raised = error
        else:
            super().call_exception_handler(context)

    def has_callbacks(self) -> bool:
        """Return whether the next turn calls something without waiting for an event."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def may_pause(self) -> bool:
        """Prepare `pause`. Return False if this process has no descriptors for that.

        Its selector has none if the system refuses epoll.
        """
        fd = getattr(self._selector, "fileno", None)  # type: ignore[attr-defined]  # not in typeshed
        return fd is not None and self._wake_pipe.open(fd())

    def pause(self, seconds: float) -> None:
        """Sleep until there are events or `end_pause` is called, for at most ``seconds``."""
        self._wake_pipe.wait(seconds)

    def end_pause(self) -> None:
        """Wake the thread in `pause`. Any thread."""
        self._wake_pipe.wake()

    def close(self) -> None:
        super().close()
        self._wake_pipe.close()

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._handoff.note_callback()
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._handoff.wake_idle()
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._handoff.note_timer(when)
        return super().call_at(when, callback, *args, context=context)


class _HandoffSelector(selectors.DefaultSelector):
    def __init__(self, handoff: LoopHandoff) -> None:
        super().__init__()
        self._handoff = handoff

    def select(self, timeout: float | None = None) -> Events:
        return self._handoff.sleep(super().select, timeout)


class _WakePipe:
    """Wakes the one thread that sleeps in `wait`.

    asyncio's own pipe is not enough for that: the loop's thread, which reads it too, may be first.
    """

    def __init__(self) -> None:
        self._ends: tuple[int, ...] = ()  # of a pipe
        self._poll = select.poll()

    def open(self, fd: int) -> bool:
        """Prepare `wait` for ``fd``, once. Return False if the system refuses the descriptors of a pipe."""
        if not self._ends:
            try:
                self._ends = os.pipe()
            except OSError:
                return False
            for end in self._ends:
                os.set_blocking(end, False)
            self._poll.register(self._ends[0], select.POLLIN)
            self._poll.register(fd, select.POLLIN)
        return True

    def wait(self, seconds: float) -> None:
        """Sleep until the file of `open` is readable, or `wake` is called, for at most ``seconds``."""
        for ready, _ in self._poll.poll(math.ceil(seconds * 1e3)):
            if ready == self._ends[0]:
                os.read(ready, 64)

    def wake(self) -> None:
        """End `wait`, or its next call if none is under way. Any thread. Before `open` it does nothing."""
        if self._ends:
            with suppress(BlockingIOError):  # full, so that `wait` ends anyway
                os.write(self._ends[1], b"!")

    def close(self) -> None:
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)


def _is_of_a_handler(error: BaseException) -> bool:
    """Return whether the handler of a signal was under way where ``error`` was raised."""
    handlers = filter(callable, map(_getsignal, range(1, _signal.NSIG)))
    codes = {_code_of(getattr(handler, "func", handler)) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(function: Any) -> object:
    """Return what Python runs where ``function`` is called, or None if that is not written in Python."""
    call = function if hasattr(function, "__code__") else type(function).__call__
    return getattr(call, "__code__", None)


def _wake(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(_nothing)


def _nothing() -> None:
    pass


class Interrupts:
    """Ctrl-C waits while a thread drives the engine: it must not strike in the middle of it.

    Where it would raise KeyboardInterrupt, as Python has it, a handler of ours does that, from the first
    `hold` until `restore`: two system calls for each blocking call were a tenth of the time of a small one.
    A handler of the program's own is put aside for each call, and back.
    """

    __slots__ = ("_came", "_held", "_main_thread", "_note", "_ours", "_previous")

    def __init__(self, main_thread: int | None) -> None:
        self._main_thread = main_thread
        self._came: dict[int, Any] = {}
        self._held = False  # by `_ours`
        self._ours = self._on_signal
        self._note = self._came.setdefault  # instead of the program's own; called as it would be
        self._previous: Any = None

    def hold(self) -> bool:
        """Hold Ctrl-C back until `release`.

        False where there is nothing to do: in threads that it never strikes, and where it is held
        already, as in a call that another signal's handler makes.
        """
        if _get_ident() != self._main_thread:
            return False
        handler = _getsignal(_SIGINT)
        if handler is not self._ours:
            # None: of a handler that is not Python's we could not put back what was.
            if handler is None or handler is self._note:
                return False
            if handler is not _raise_interrupt:
                self._previous = handler
                try:
                    _signal_to(_SIGINT, self._note)
                except BaseException:  # of another signal's handler, as the call returns
                    _signal_to(_SIGINT, handler)
                    self._previous = None
                    raise
                return True
            _signal_to(_SIGINT, self._ours)
        if self._held:
            return False
        self._held = True
        return True

    def release(self) -> None:
        """End `hold`, and deliver an interrupt that came meanwhile."""
        if self._previous is None:
            self._held = False
        else:
            _signal_to(_SIGINT, self._previous)
            self._previous = None
        if self._came:
            self._came.clear()
            _signal.raise_signal(_SIGINT)

    def restore(self) -> None:
        """Restore Python's own handler, if this is the main thread: no thread drives any more."""
        if _get_ident() == self._main_thread and _getsignal(_SIGINT) is self._ours:
            _signal_to(_SIGINT, _raise_interrupt)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._held:
            self._came[number] = frame
        else:
            _raise_interrupt(number, frame)
