"""The event loop of the blocking API: its thread, and how other threads call into it."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from multiprocessing import util
from typing import Any, Protocol, TypeVar

from aiodist.api.collectives import Timeout
from aiodist.deadline import SIGNAL_SECONDS, acquire, to_seconds
from aiodist.errors import DistError, InvalidUsageError, NotInitializedError, remedy_for
from aiodist.groups.collective_backend import Start
from aiodist.groups.deferred import DeferredWork, start_anywhere
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Operation
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.links.forks import close_in_children
from aiodist.p2p.spin_policy import DRIVE_SECONDS
from aiodist.sync.blocked_caller import BlockedCaller
from aiodist.sync.coalescing import coalescing, overlapped
from aiodist.sync.cross_thread_call import CoroutineCall, CrossThreadCall
from aiodist.sync.loop_handoff import LONGEST_LINGER, HandoffLoop, LoopHandoff
from aiodist.sync.portal_thread import JOIN_SECONDS, close_inherited, live
from aiodist.tensors.cuda_streams import on_callers_stream

T = TypeVar("T")

_running_loop = asyncio._get_running_loop
_set_running_loop = asyncio._set_running_loop


class LoopUser(Protocol):
    """An object that uses the portal's loop and keeps it running: a world, a store."""

    @property
    def longest_pause(self) -> float:
        """How many seconds the loop's streams may stay unread, 0 if none. Any thread may ask."""

    async def leave(self) -> None:
        """Close at the end of the process, within few seconds, and tell the other side."""

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child, and send nothing to the other side."""


class Portal:
    """A daemon thread that runs an event loop as long as a `LoopUser` uses it.

    A blocking call drives the loop itself while it is lent, and runs it while it has to sleep
    (`LoopHandoff`). Otherwise the loop's thread starts the operation and runs it from its callbacks. Its
    end releases a lock that the calling thread waits for. The call makes no task, future or coroutine
    of asyncio.

    The loop sees the context variables of the calling thread, so also its world.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may call leave() at any point
        self._loop: HandoffLoop | None = None
        self._thread: threading.Thread | None = None
        self._users = 0
        self._loop_users: list[LoopUser] = []
        self._posted: deque[Callable[[], None]] = deque()  # for the present loop
        self.handoff = LoopHandoff(self._longest_pause)
        """By which a thread uses the loop while that sleeps."""
        self._inherited: list[object] = []
        self._finalizer: Any = None
        close_in_children(self)

    # -- calls

    def call(self, function: Callable[..., Any], blocks: bool, /, *args: Any, **kwargs: Any) -> Any:
        """Start ``function(*args, **kwargs)`` in the loop's thread.

        ``blocks``: it returns a Work; wait for it and return its result. Else return what it
        returns. Interrupted by Ctrl-C, the operation is cancelled.
        """
        if _running_loop() is not None:
            its_loop = current_world().its_loop if blocks else None
            with blocking_in_cell(getattr(function, "__name__", "this"), its_loop):
                return self.call(function, blocks, *args, **kwargs)
        loop, handoff = self._loop, self.handoff
        work: Any = None
        if loop is None:
            if blocks:
                current_world().check_loop_runs()
            return _beside_async(function(*args, **kwargs), blocks)
        call = partial(function, *args, **kwargs)
        # First: an interrupt of a thread that drives the loop would leave the loop lock held for ever.
        held = handoff.interrupts.hold()
        try:
            try:
                drives = handoff.acquire()
                if drives:
                    if self._posted:
                        _as_running(loop, partial(_run_all, self._posted))
                    work = _as_running(loop, call)
                    if blocks:
                        ended = self._drive(loop, work, held)
                    elif isinstance(work, Work) and work._done and not loop.has_callbacks():
                        handoff.give_back()  # the loop has nothing to do for it
                    else:
                        handoff.resume()
                if held and not (drives and blocks):
                    handoff.interrupts.release()
            except BaseException:
                try:
                    handoff.abandon(held)
                finally:  # once more: a signal's handler may raise as it begins
                    handoff.abandon(held)
                raise
            if drives and blocks:
                return self._wait(work, ended, held)
        except BaseException:
            if held:
                handoff.interrupts.release()
            if blocks and isinstance(work, Work):
                work.cancel()
            raise
        finally:
            if work is not None and handoff.sleeper is work:
                handoff.sleeper = None
        return work if drives else self._call(loop, call, blocks)

    def start(
        self,
        async_op: bool,
        group: GroupEngine,
        operation: Operation[Any],
        timeout: Timeout,
        begin: Start | None = None,
    ) -> Any:
        """Start ``operation`` of ``group``. Return its `Work`, or its result unless ``async_op``.

        ``begin``: as of `GroupEngine.start`.
        """
        seconds = None if timeout is None else to_seconds(timeout)
        if _running_loop() is not None:
            name = getattr(operation, "name", operation.kind)  # of `Agree`: its function's
            with blocking_in_cell(name, None if async_op else group.world.its_loop):
                return self.start(async_op, group, operation, seconds, begin)
        loop, handoff, waits = self._loop, self.handoff, False
        work: Any = None
        is_elsewhere = loop is None or loop is not group.world.its_loop
        if async_op or (coalescing() is not None and not operation.has_value):
            start = (
                partial(_start_beside_async, group, operation, seconds, False)
                if is_elsewhere
                else partial(self.call, group.start, False, operation, seconds, begin)
            )
            return overlapped(start, operation.written, async_op)
        if loop is None or is_elsewhere:
            return _start_beside_async(group, operation, seconds, True)
        held = handoff.interrupts.hold()  # first, as in `call`
        try:
            try:
                drives = handoff.acquire()
                if drives:
                    if self._posted:
                        _as_running(loop, partial(_run_all, self._posted))
                    work = (begin or group.backend.start)(operation, seconds)
                    waits = not isinstance(work, tuple)  # which is an operation that has completed
                    if waits:
                        ended = self._drive(loop, work, held)
                    else:
                        handoff.give_back()
                if held and not waits:
                    handoff.interrupts.release()
            except BaseException:
                try:
                    handoff.abandon(held)
                finally:  # once more, as in `call`
                    handoff.abandon(held)
                raise
            if waits:
                return self._wait(work, ended, held)
        except BaseException:
            if held:
                handoff.interrupts.release()
            if isinstance(work, Work):
                work.cancel()
            raise
        finally:
            if waits and handoff.sleeper is work:
                handoff.sleeper = None
        if drives:
            return None
        return self._call(loop, partial(group.start, operation, seconds, begin), True)

    def _wait(self, work: Any, ended: threading.Lock | BlockedCaller | None, held: bool) -> Any:
        """Return the result of ``work``, once ``ended`` can be acquired if it is given.

        ``held``: interrupts are held back. One that came meanwhile strikes here.
        """
        if held:
            self.handoff.interrupts.release()
        if isinstance(ended, BlockedCaller):
            ended.acquire()
        elif ended is not None:
            acquire(ended)
        try:
            return work.result()
        finally:
            # The traceback of an error holds this frame: what leads back to the error must go.
            del work

    def _drive(
        self, loop: HandoffLoop, work: Any, held: bool
    ) -> threading.Lock | BlockedCaller | None:
        """Drive ``loop`` for ``work``, and give the loop back.

        Returns None if ``work`` has ended, else what can be acquired when it has. ``held``: interrupts are
        held back, but not in a sleep here.
        """
        handoff = self.handoff
        if work.is_completed() or _as_running(loop, partial(work._spin, DRIVE_SECONDS)):
            handoff.give_back()
            return None
        caller = _as_running(loop, partial(BlockedCaller.of, work, loop, handoff))
        if caller is not None:
            handoff.give_back()
            return caller  # type: ignore[no-any-return]
        ended = threading.Lock()
        ended.acquire()
        work._stay_awake()
        work._when_done(partial(handoff.end, loop, ended))
        if handoff.run_until(loop, ended, held):
            handoff.hand_on(loop)
            return None
        handoff.resume()
        return ended

    def _call(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any], blocks: bool
    ) -> Any:
        """Call ``function`` in the loop's thread, and wait for it here."""
        self.handoff.check_may_wait()
        call = CrossThreadCall(on_callers_stream(function), blocks)
        try:
            _hand_over(loop, call.start)
            _wait_for(call.ended, loop)
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed: all operations have ended
                loop.call_soon_threadsafe(call.cancel)
            raise
        error, call.error = call.error, None
        try:
            if error is not None:
                raise error
            return call.returned.result() if blocks else call.returned
        finally:
            del call, error, function  # as in `_wait`

    def post(self, function: Callable[[], None]) -> None:
        """Call ``function()`` with the loop, after all calls posted before, without waiting.

        Invariant: it runs before whatever this thread starts next, as all ranks start operations in the
        order of their calls. The loop's thread may wake up later than this thread drives the loop; so a
        thread that drives runs first what was posted. ``function`` must not raise. Raises
        NotInitializedError where no user uses the loop.
        """
        loop, posted = self._loop, self._posted
        if loop is None:
            raise NotInitializedError(_CLOSED)
        posted.append(partial(copy_context().run, function))
        _hand_over(loop, partial(_run_all, posted))

    def run(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        on_result: Callable[[T], None] | None = None,
        **kwargs: Any,
    ) -> T:
        """Await ``function(*args, **kwargs)`` in the loop's thread; return its result. Not the hot path.

        ``on_result``: called there with the result at once. Interrupted by Ctrl-C, the coroutine is
        cancelled; the interrupt is raised when it has ended.
        """
        if _running_loop() is not None:
            with blocking_in_cell(getattr(function, "__name__", "this")):
                return self.run(function, *args, on_result=on_result, **kwargs)
        self.handoff.check_may_wait()
        interrupts = self.handoff.interrupts
        held = interrupts.hold()  # until there is something to cancel
        try:
            loop = self.enter()
            try:
                call = CoroutineCall(function(*args, **kwargs), on_result)
                try:
                    _hand_over(loop, call.start)
                    if held:
                        interrupts.release()
                    _wait_for(call.ended, loop)
                except BaseException:
                    with suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                        loop.call_soon_threadsafe(call.cancel)
                        # What follows finds the coroutine's work done, or undone. This thread may have
                        # acquired the lock already.
                        if not call.has_ended:
                            acquire(call.ended, JOIN_SECONDS)
                    raise
                error, call.error = call.error, None
                try:
                    if error is not None:
                        raise error  # here: its traceback shows no frame of the task's
                    return call.returned  # type: ignore[no-any-return]
                finally:
                    del error  # its traceback holds this frame
            finally:
                self.leave()
        finally:
            if held:  # once more: a signal's handler may raise as it begins
                interrupts.release()

    @contextmanager
    def opening(self, user_of: Callable[[Any], LoopUser]) -> Iterator[Callable[..., Any]]:
        """Give the block a `run` after which ``user_of(result)`` uses the loop.

        A user that has opened although the block was interrupted is closed again.
        """
        opened: list[LoopUser] = []

        def add_user(result: Any) -> None:
            user = user_of(result)
            self.add_user(user)
            opened.append(user)

        try:
            yield partial(self.run, on_result=add_user)
        except BaseException:
            for user in opened:
                try:
                    self.run(user.leave)
                finally:
                    self.remove_user(user)
            raise

    # -- the thread's life

    def enter(self) -> asyncio.AbstractEventLoop:
        """Keep the loop running until `leave`; start it if it does not run. Return the loop."""
        with self._lock:
            if self._loop is None:
                self._start()
            self._users += 1
            assert self._loop is not None
            return self._loop

    def leave(self) -> None:
        """Undo one `enter`. After the last one the thread ends. Any thread may call it."""
        with self._lock:
            self._users -= 1
            loop = self._loop
            if self._users > 0 or loop is None:
                return
            thread = self._stop()
        # Not in a callback or a handler that has interrupted a call: the loop's thread waits for its end.
        if _running_loop() is not loop and not self.handoff.is_interrupted:
            thread.join(JOIN_SECONDS)

    def add_user(self, user: LoopUser) -> None:
        """Let ``user`` use the loop: an `enter` that `remove_user` undoes."""
        self.enter()
        self._loop_users.append(user)

    def remove_user(self, user: LoopUser) -> None:
        """Remove ``user``, which has closed. A second call does nothing."""
        try:
            self._loop_users.remove(user)
        except ValueError:
            return
        self.leave()

    def leave_soon(self, user: LoopUser) -> None:
        """Let ``user`` leave, without waiting: for finalizers, which run in any thread."""
        loop = self._loop
        if loop is not None and user in self._loop_users:
            asyncio.run_coroutine_threadsafe(self._departure(user), loop)

    def _longest_pause(self) -> float:
        return min((each.longest_pause for each in tuple(self._loop_users)), default=LONGEST_LINGER)

    async def _departure(self, user: LoopUser) -> None:
        try:
            await user.leave()
        finally:
            self.remove_user(user)

    def close(self) -> None:
        """Close all users at the end of the process: queued data goes out. Bounded in time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        leaving = asyncio.run_coroutine_threadsafe(_leave(self._loop_users), loop)
        # Cancelled: the last user has left in the loop, which ends.
        with suppress(TimeoutError, CancelledError):
            leaving.result(JOIN_SECONDS)
        self._loop_users.clear()
        with self._lock:
            if self._loop is loop:
                self._users = 0
                self._stop()
        thread.join(1.0)

    def _start(self) -> None:
        try:
            loop = HandoffLoop(self.handoff)
        except OSError as error:
            otherwise = "see what this process may do"
            raise DistError(
                f"aiodist.sync cannot make its event loop: {error.strerror}; "
                + remedy_for(error, otherwise)
            ) from error
        target = partial(live, self.handoff, loop)
        thread = threading.Thread(target=target, name="aiodist", daemon=True)
        # Invariant: a thread that runs a loop is known here. So an interrupt does not strike in between.
        held = self.handoff.interrupts.hold()
        try:
            thread.start()
            self._loop, self._thread, self._posted = loop, thread, deque()
            atexit.register(self.close)
            # Children of multiprocessing end without atexit, but run its own finalizers.
            self._finalizer = util.Finalize(None, self.close, exitpriority=1)
        except RuntimeError as error:  # of the thread
            loop.close()
            raise DistError(
                f"the event loop of aiodist.sync has no thread to run in: {error}; raise the limit on "
                "processes and threads: ulimit -u"
            ) from error
        finally:
            if held:
                self.handoff.interrupts.release()

    def _stop(self) -> threading.Thread:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        self._loop = self._thread = None
        atexit.unregister(self.close)
        self._finalizer.cancel()
        loop.call_soon_threadsafe(loop.stop)
        self.handoff.interrupts.restore()
        return thread

    def close_in_child(self) -> None:
        """Be without a loop in a forked child, and close the descriptors of the parent's."""
        # The thread is the parent's. The child must not touch its loop: they share the epoll
        # instance. The child keeps the objects, so that the garbage collector does not close them.
        loop, users = self._loop, self._loop_users
        self.handoff.interrupts.restore()
        self.handoff = LoopHandoff(self._longest_pause)
        self._inherited += [loop, self._thread, users]
        self._lock = threading.RLock()  # a finalizer may call leave() at any point
        self._loop = self._thread = None
        self._posted = deque()
        self._users = 0
        self._loop_users = []
        if loop is not None:
            atexit.unregister(self.close)
            for user in users:
                user.close_in_child()
            close_inherited(loop)


def _as_running(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns where ``loop``, which is lent, counts as running."""
    try:
        _set_running_loop(loop)  # a signal's handler may raise as it returns
        return call()
    finally:
        _set_running_loop(None)


def _start_beside_async(
    group: GroupEngine, operation: Operation[Any], seconds: float | None, blocks: bool
) -> Any:
    """Start ``operation`` of a group whose world lives on a loop of the async API: there."""
    if blocks:
        group.world.check_loop_runs()
    return _beside_async(start_anywhere(group, operation, seconds), blocks)


def _beside_async(started: Any, blocks: bool) -> Any:
    """Return the result of a call on a world of the async API, as no portal's loop runs.

    Without such a world, the call itself has raised.
    """
    for work in started if isinstance(started, list) else [started]:
        if isinstance(work, DeferredWork):
            work._start_soon()
    if not blocks or not isinstance(started, Work):
        return started
    started.wait()
    return started.result()


def _run_all(posted: deque[Callable[[], None]]) -> None:
    """Call all functions that are there, and take them out. With the loop lock held."""
    while posted:
        posted.popleft()()


def _hand_over(loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError:
        raise NotInitializedError(_CLOSED) from None


def _wait_for(ended: threading.Lock, loop: asyncio.AbstractEventLoop) -> None:
    """Acquire ``ended``, which ``loop`` releases. Raises NotInitializedError if the loop ends instead."""
    while not acquire(ended, SIGNAL_SECONDS):
        # A loop that ends at this moment calls nothing any more.
        if loop.is_closed() and not ended.acquire(False):
            raise NotInitializedError(_CLOSED)


@contextmanager
def blocking_in_cell(name: str, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[None]:
    """Let a notebook's cell block in a call of ``name``, although its kernel's loop runs in this thread.

    A cell is expected to block until it is done. In any other running loop a blocking call is a
    mistake that would stop it: raises InvalidUsageError. So is one that waits for ``loop``, that of a
    process group of the async API, if it is the kernel's.
    """
    if not _in_notebook() or _running_loop() is loop:
        raise InvalidUsageError(
            f"{name} of aiodist.sync would block the event loop that runs in this thread; use the "
            f"async API here: import aiodist as dist; await dist.{name}(...)"
        )
    with without_running_loop():
        yield


@contextmanager
def without_running_loop() -> Iterator[None]:
    """Let a call block although an event loop runs in this thread, which stands still meanwhile."""
    loop = _running_loop()
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


async def _leave(users: list[LoopUser]) -> None:
    while users:
        leaving = [user.leave() for user in users]
        users.clear()
        await asyncio.gather(*leaving, return_exceptions=True)


_CLOSED = "Default process group has not been initialized: it has just been destroyed."

# One for the process. As with worlds, a context may have its own.
_current: ContextVar[Portal] = ContextVar("aiodist_portal", default=Portal())  # noqa: B039


portal: Callable[[], Portal] = _current.get
"""The portal of the calling context."""
