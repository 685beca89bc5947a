"""The handle of an operation under way: awaitable on its loop, waitable from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from time import monotonic_ns
from types import TracebackType
from typing import Any, Protocol

from aiodist.completion import Driver, Once, Pending, T
from aiodist.deadline import SIGNAL_SECONDS, Deadline, to_seconds
from aiodist.errors import DistError, InvalidUsageError, PeerLostError
from aiodist.groups.never_awaited import CallSite, UnretrievedError, call_site, warn_never_awaited
from aiodist.groups.shm_communicator import ShmCommunicator
from aiodist.groups.work_future import WorkFuture
from aiodist.observe.recorder import CompletedRecord, Record, name_of_operation, opened
from aiodist.p2p.spin_policy import SHORTEST, SpinPolicy
from aiodist.unpicklable import Unpicklable

# None where no loop runs, and no exception made for it; exported by asyncio.events.
_running_loop = asyncio._get_running_loop


class OperationContext(Protocol):
    """The messages of one operation, as its `Work` sees them."""

    __slots__ = ()

    def describe(self) -> str:
        """Return the operation in words: name, number, group."""

    def waiting_for(self) -> Sequence[int]:
        """Return global ranks whose messages have not come, or have not been taken."""

    @property
    def spin_policy(self) -> SpinPolicy | None:
        """How long to look for what is missing before sleeping; None: do not look."""

    def polls(self) -> Sequence[Callable[[], None]]:
        """Return what to call to look for what is missing."""

    def sleeper(self) -> ShmCommunicator | None:
        """Return what a blocked thread may sleep by until the operation can go on; None: a callback."""
        return None

    def postpones(self, error: BaseException, fail: Callable[[BaseException], None]) -> bool:
        """Return whether the operation, which ended by ``error``, is to end a little later.

        Then ``fail`` will be called with ``error``. Another error that comes before counts in its place.
        """
        return False

    def close(self, error: BaseException | None) -> BaseException | None:
        """Take back what is left of the operation, which ended. Returns the error to report."""

    def hand_back(self) -> Callable[[], None] | None:
        """Return how to give the message of a receive to the next receive; None: it has none to give."""
        return None

    def expired(self, seconds: float, fail: Callable[[BaseException], None]) -> None:
        """Find out which ranks are missing, then ``fail`` with CollectiveTimeoutError: time is up."""


class Work(Unpicklable, Coroutine[Any, Any, T]):
    """An operation that has started. ``await work`` gives what a blocking call would return.

    It is a coroutine to asyncio: ``create_task``, ``gather``, ``wait_for``, ``as_completed`` and
    ``run_coroutine_threadsafe`` take it. ``asyncio.wait`` takes ``asyncio.ensure_future(work)``.
    Unlike a coroutine it runs already, and may be awaited more than once. Dropped without an
    ``await``, a ``wait`` or a question about its end, it warns.

    Cancelling a task that awaits it cancels the operation: a point-to-point message is taken
    back where that is still possible, a collective fails on all ranks. Methods may
    be called in any thread.
    """

    # The engine's methods _start_body, _fail, _expire and _came_from belong to the loop's thread.
    __slots__ = (
        "__weakref__",
        "_asked",
        "_callbacks",
        "_context",
        "_deadline_in",
        "_done",
        "_driver",
        "_error",
        "_loop",
        "_outputs",
        "_record",
        "_retrieved",
        "_site",
        "_source",
        "_traceback",
        "_unheard",
        "_unread",
        "_value",
        "_yields",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: OperationContext | None,
        record: Record | CompletedRecord,
    ) -> None:
        """``record``: what the flight recorder remembers of the operation."""
        self._asked = False  # whether a caller has awaited it, waited for it or asked for its end
        self._site: CallSite | None = None
        self._record = record
        self._outputs: list[Any] | None = None  # for get_future(), where its caller wants them
        self._loop = loop
        self._context = context
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._retrieved = False
        self._unheard: UnretrievedError | None = None
        self._unread: Callable[[], None] | None = None
        """Gives a received message to the next receive; None once a caller has got the result."""
        self._source = -1
        self._yields = False  # its first await yields to the loop, though it has ended
        self._callbacks: list[Callable[[], None]] = []
        self._deadline_in: dict[Work[Any], float] | None = None  # of `OperationDeadlines`
        self._driver: Driver[T] | Once[T] | None = None

    @property
    def _recorded(self) -> Record:
        """What the flight recorder remembers of it."""
        return opened(self._record)

    # -- for the engine

    def _start_body(self, body: Coroutine[Any, Any, T]) -> None:
        """Run ``body`` (it awaits only `Pending`) up to its first wait, now."""
        self._run(Driver(body, self._ended))

    def _follow(self, pending: Pending[Any], finish: Callable[[Any], T]) -> None:
        """End with what ``finish(value of pending)`` returns; now, if ``pending`` is done."""
        self._run(Once(pending, finish, self._ended))

    def _run(self, driver: Driver[T] | Once[T]) -> None:
        self._recorded.started = monotonic_ns()
        self._driver = driver
        driver.start()

    def _called_here(self) -> None:
        """Note the place of the call: the caller gets this handle, and may forget it."""
        if not self._done:
            self._site = call_site(3, self._loop.get_debug())

    def _fail(self, error: BaseException) -> None:
        """Raise ``error`` inside the operation."""
        if self._done:  # `_abandon` leaves the context: it must write nothing any more
            return
        if self._driver is not None:
            self._driver.throw(error)
        else:
            self._ended(None, error)

    def _describe(self) -> str:
        """Return the operation in words: name, number, group."""
        context = self._context
        return "an operation that is ending" if context is None else context.describe()

    def _expire(self, seconds: float) -> None:
        """Fail with the context's timeout error: it has not ended within ``seconds``."""
        if self._context is not None:
            self._context.expired(seconds, self._fail)

    def _ended(self, value: T | None, error: BaseException | None) -> None:
        context = self._context
        if context is None:
            return
        self._driver = None
        if isinstance(error, (DistError, asyncio.CancelledError)):
            # The frames it came through hold the tensors and, in a circle, the error itself.
            # Its message says all; an error of another class keeps them, to be looked into.
            error.__traceback__ = None
        if error is not None and context.postpones(error, self._fail):
            return
        self._context = None
        if self._deadline_in is not None:
            self._deadline_in.pop(self, None)
            self._deadline_in = None
        if isinstance(error, PeerLostError):  # of the peer: all that waits for it fails by it
            error = error.again()
        # No longer known once it is over.
        waiting_for = () if error is None else context.waiting_for()
        try:
            self._error = context.close(error)
        except Exception as failed:  # noqa: BLE001  # the stream that brought us here goes on
            self._error = failed
        if self._error is None:
            self._recorded.end()
            self._unread = context.hand_back()
        else:
            self._recorded.fail(self._error, waiting_for)
            if not self._retrieved:
                self._unheard = UnretrievedError(self._error)
        self._settle(value, self._error)

    def _abandon(self, error: BaseException, *, calls_back: bool) -> None:
        """End it with ``error`` here alone, as its loop does not turn: nothing is taken back.

        ``calls_back``: those that wait for it are told.
        """
        self._asked = True
        if not calls_back:
            self._callbacks.clear()
        if not self._done:
            self._settle(None, error)

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        self._value, self._error = value, error
        # Each call of result() begins with it, and does not show the frames of earlier calls.
        self._traceback = None if error is None else error.__traceback__
        # _done first, then the callbacks: a thread that appends its own looks at _done afterwards and
        # takes it back if it is still there. So it is called once, here or there, without a lock.
        self._done = True
        callbacks = self._callbacks
        while callbacks:
            try:
                callbacks.pop(0)()
            except Exception as raised:  # noqa: BLE001  # not the engine's trouble
                self._loop.call_exception_handler(
                    {"message": "a done callback of an operation raised", "exception": raised}
                )

    def _waiting_for(self) -> Sequence[int]:
        """Return global ranks without which it cannot end; none once it has."""
        context = self._context  # once: it may end meanwhile, in another thread
        return () if context is None else context.waiting_for()

    @property
    def _is_awaited(self) -> bool:
        """Whether a caller waits until it ends. Any thread."""
        return bool(self._callbacks)

    def _spin(self, longest: float = SHORTEST) -> bool:
        """Look for the end before sleeping, for at most ``longest`` seconds in which the loop does
        nothing else; whether it has come. In the loop's thread, or one that drives the loop; not in
        a callback.
        """
        context = self._context
        if (
            context is None
            or (spin_policy := context.spin_policy) is None
            or not spin_policy.may_spin
        ):
            return self._done
        polls = context.polls()
        if polls:
            spin_policy.look(polls, self.is_completed, min(longest, spin_policy.window), longest)
        return self._done

    def _sleeper(self) -> ShmCommunicator | None:
        """Return what a thread that drives the engine may sleep by; None: wait for `_when_done`."""
        context = self._context
        return None if context is None else context.sleeper()

    def _stay_awake(self) -> None:
        """Let the loop look for the end for a while before it sleeps: a caller waits for it."""
        context = self._context
        if context is not None and (spin_policy := context.spin_policy) is not None:
            spin_policy.begin()
            self._when_done(spin_policy.end)

    # -- for users

    def is_completed(self) -> bool:
        """Return whether the operation has ended, well or badly. Any thread."""
        self._asked = True
        return self._done

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error it ended with, or None. Raises InvalidUsageError while it runs."""
        if not self._done:
            raise InvalidUsageError("the operation has not finished: await it, or wait()")
        self._mark_retrieved()
        return self._error

    def result(self) -> T:
        """Return its result or raise its error. Raises InvalidUsageError while it runs."""
        self._asked = True
        if not self._done or self._error is not None:
            error = self.exception()
            if error is not None:  # else it has ended meanwhile, in another thread
                try:
                    raise error.with_traceback(self._traceback)
                finally:
                    del error, self  # else the error's traceback would hold this frame, and that it
        self._unread = None
        return self._value  # type: ignore[return-value]  # done without error: it is set

    def source_rank(self) -> int:
        """Return the global rank a receive got its message from. Raises InvalidUsageError for others."""
        if self._source < 0:
            raise InvalidUsageError("source_rank() is for a receive that has finished")
        return self._source

    def _came_from(self, rank: int) -> int:
        """Note, for the engine, that the receive's message is from global rank ``rank``. Returns that."""
        self._source = rank
        return rank

    def cancel(self) -> bool:
        """Give the operation up; awaiting it raises CancelledError. False if it has ended.

        In another thread than the loop's it asks the loop to do so and returns True at once.
        """
        self._mark_retrieved()  # a caller that gives it up does not ask how else it ended
        if self._done:
            return False
        error = asyncio.CancelledError()
        if _running_loop() is self._loop:
            self._fail(error)
            return True
        try:
            self._loop.call_soon_threadsafe(self._fail, error)
        except RuntimeError:  # the loop was closed meanwhile, and all its operations ended
            return False
        return True

    def done(self) -> bool:
        """Return the same as `is_completed`, under the name that asyncio's futures have for it."""
        return self.is_completed()

    def cancelled(self) -> bool:
        """Return whether it was given up, by `cancel` or by the cancellation of a task that awaited it."""
        return isinstance(self._error, asyncio.CancelledError)

    def add_done_callback(
        self, callback: Callable[[Work[T]], object], *, context: Context | None = None
    ) -> None:
        """Have the loop call ``callback(work)`` soon after the operation has ended, as a future does.

        Args:
            callback: Called with this `Work`.
            context: The ``contextvars.Context`` it runs in; None is a copy of the caller's.
        """
        self._asked = True
        if context is None:
            context = copy_context()
        self._when_done(partial(self._run_callback, callback, context))

    def remove_done_callback(self, callback: Callable[[Work[T]], object]) -> int:
        """Take back what `add_done_callback` was given.

        Args:
            callback: The function.

        Returns:
            How often it was there.
        """
        removed = 0
        for each in [*self._callbacks]:
            if (
                isinstance(each, partial)
                and each.func == self._run_callback
                and each.args[0] == callback
            ):
                with contextlib.suppress(ValueError):  # it has ended meanwhile, in another thread
                    self._callbacks.remove(each)
                    removed += 1
        return removed

    def _run_callback(self, callback: Callable[[Work[T]], object], context: Context) -> None:
        if _running_loop() is self._loop:
            self._loop.call_soon(callback, self, context=context)
            return
        with contextlib.suppress(RuntimeError):  # closed: nothing calls back any more
            self._loop.call_soon_threadsafe(callback, self, context=context)

    def _when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback()``, for the engine, in the very step that ends it; now if it has ended."""
        if not self._done:
            self._callbacks.append(callback)
            if not self._done:
                return
            try:
                self._callbacks.remove(callback)
            except ValueError:
                return  # the loop's thread has it
        callback()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block the calling thread until the operation ends; return True, or raise its error.

        Args:
            timeout: Seconds or a timedelta, after which the operation itself fails with
                CollectiveTimeoutError. None is no limit beside the operation's own.

        Raises:
            asyncio.CancelledError: It was given up, by `cancel` for instance. ``except Exception`` does
                not catch it.
            ValueError: The timeout is invalid. It is raised also when the operation has ended.
            InvalidUsageError: In the loop's own thread while the operation is under way: there,
                ``await`` it. Or the loop has been closed; or ``timeout`` is over, and it does not run.
        """
        seconds = to_seconds(timeout)
        self._asked = True
        if not self._done:
            if _running_loop() is self._loop:
                raise InvalidUsageError(
                    "wait() would block the event loop that has to finish the operation; await it"
                )
            self._block(seconds)
        try:
            self.result()
        finally:
            del self  # as in result()
        return True

    def synchronize(self) -> None:
        """Do as `wait`, under torch's name for it. The data is there then, on a GPU too."""
        self.wait()

    def _block(self, seconds: float | None) -> None:
        # A bare lock is a third of the price of threading.Event.
        gate = threading.Lock()
        gate.acquire()
        self._when_done(gate.release)
        limit = math.inf if seconds is None else seconds
        deadline, is_over = Deadline(limit), False
        while not gate.acquire(timeout=min(deadline.remaining(), SIGNAL_SECONDS)):
            if self._loop.is_closed() and not self._done:
                raise InvalidUsageError(
                    "the operation cannot end, because its event loop has ended; await it before that"
                )
            if is_over and not self._loop.is_running():
                raise InvalidUsageError(
                    f"the operation did not end within {limit:g} s, because its event loop does "
                    f"not run; run the loop, and await the operation there"
                )
            if deadline.expired():
                deadline, is_over = Deadline.never(), True
                with contextlib.suppress(RuntimeError):  # closed meanwhile
                    self._loop.call_soon_threadsafe(self._expire, limit)

    def get_future(self) -> WorkFuture[Any]:
        """Return a future of the same outcome, for code that composes futures. Any thread.

        Its value is what ``await`` gives; in the blocking API, as torch has it, the list of
        the tensors that a collective writes. It has torch's ``wait``, ``value`` and ``then``, and
        ``asyncio.wrap_future`` makes it awaitable on another loop. It cannot be cancelled.
        """
        self._asked = True
        future: WorkFuture[Any] = WorkFuture(self._loop)
        future.set_running_or_notify_cancel()

        def resolve() -> None:
            self._mark_retrieved()
            if self._error is not None:
                future.set_exception(self._error)
            else:
                self._unread = None
                future.set_result(self._value if self._outputs is None else self._outputs)

        self._when_done(resolve)
        return future

    def __await__(self) -> Generator[Any, None, T]:
        self._asked = True
        if not self._done:
            self._look_for_end()
        if not self._done:
            waiter = self._wait_in_loop()
            try:
                yield from waiter
            except asyncio.CancelledError:
                self._give_up()
                raise
        elif self._yields:
            self._yields = False
            try:
                yield
            except asyncio.CancelledError:
                self._give_up()
                raise
        try:
            return self.result()
        finally:
            del self  # as in result()

    # -- as a coroutine, for tasks: each step looks anew for the end, so any number of them may run it

    def send(self, value: Any) -> Any:
        """Take a step: what the task has to wait for. Raises StopIteration with the result."""
        self._asked = True
        if not self._done:
            self._look_for_end()
        if not self._done:
            waiter = self._wait_in_loop()
            waiter._asyncio_future_blocking = True  # what a future's own `__await__` tells the task
            return waiter
        if self._yields:
            self._yields = False
            return None
        try:
            result = self.result()
        finally:
            del self  # as in result()
        raise StopIteration(result)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        """Raise an error where the task waits; CancelledError cancels the operation."""
        self._asked = True
        val = val or (typ() if isinstance(typ, type) else typ)
        if isinstance(val, asyncio.CancelledError):
            self._give_up()
        raise val.with_traceback(tb)

    def close(self) -> None:
        """Give the operation up, as `cancel`: the task will not run it."""
        self._give_up()

    def _give_up(self) -> None:
        """Cancel the operation, because the task that awaits it is cancelled.

        A task may be cancelled after the end of a receive and before its own next step. Then no caller
        gets the result, so the message goes to the next receive.
        """
        hand_back, self._unread = self._unread, None
        if not self.cancel() and hand_back is not None:
            self._error = asyncio.CancelledError()
            hand_back()

    @property
    def __name__(self) -> str:  # for the `repr` of a task
        return name_of_operation(self._recorded)

    def _look_for_end(self) -> None:
        """Look for the end before the task sleeps. Raises InvalidUsageError in another loop."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidUsageError(
                "this operation belongs to another event loop; there, use "
                "asyncio.wrap_future(work.get_future())"
            )
        context = self._context
        spin_policy = None if context is None else context.spin_policy
        self._yields = (
            self._spin() and spin_policy is not None and spin_policy.turn_is_due(monotonic_ns())
        )

    def _wait_in_loop(self) -> asyncio.Future[None]:
        """Return a future that is done when the operation has ended."""
        self._stay_awake()
        waiter: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._callbacks.append(wake)
        return waiter

    def __repr__(self) -> str:
        if not self._done:
            return f"<Work {self._describe()}: running>"
        return f"<Work: {'done' if self._error is None else repr(self._error)}>"

    # A default: the end of the interpreter may have taken this module's names.
    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._asked and not _is_finalizing():
            # What has ended at once keeps no call site: it is mostly dropped where it was called.
            warn_never_awaited(self._recorded, self._site or call_site(0, self._loop.get_debug()))

    def _mark_retrieved(self) -> None:
        self._asked = self._retrieved = True
        if self._unheard is not None:
            self._unheard.error = None
