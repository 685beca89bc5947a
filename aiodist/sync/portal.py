"""The event loop of the blocking API: a thread of its own, and the way in for all others."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from multiprocessing import util
from typing import Any, Protocol, TypeVar

from aiodist.api.cached_calls import CachedCall, Done
from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.groups.deferred import DeferredWork
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.sync.cross_thread_call import CrossThreadCall, gate_of
from aiodist.sync.loop_handoff import LoopHandoff
from aiodist.tensors.streams import on_callers_stream

T = TypeVar("T")

_JOIN_SECONDS = 5.0
"""How long the end of the process waits for the loop's thread."""

_DRIVE_SECONDS = 5e-3
"""How long a blocked thread may drive the loop before the loop's own thread goes on."""

_running_loop = asyncio._get_running_loop
_set_running_loop = asyncio._set_running_loop


class Resident(Protocol):
    """Something that lives on the portal's loop and keeps it running: a world, a store."""

    async def leave(self) -> None:
        """The process ends: say goodbye and close, within few seconds."""
        ...

    def close_in_child(self) -> None:
        """In a forked child: give back descriptors without a word to the other side."""
        ...


class Portal:
    """A daemon thread that runs an event loop as long as anything lives there.

    A blocking call is one hop there and back: the loop's thread starts the operation and runs
    it from its callbacks, and its end releases a lock that the calling thread waits for. No
    task, no future, no coroutine of asyncio is made for it.

    The loop sees the context variables of the calling thread, so also its world.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may call leave() at any point
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._users = 0
        self._residents: list[Resident] = []
        self._handoff = LoopHandoff()
        self._inherited: list[object] = []
        self._finalizer: Any = None
        os.register_at_fork(after_in_child=self._after_fork)

    # -- the way in

    def call(self, function: Callable[..., Any], blocks: bool, *args: Any, **kwargs: Any) -> Any:
        """Start ``function(*args, **kwargs)`` in the loop's thread.

        ``blocks``: it returns a Work; wait for it and return its result. Else return what it
        returns. Interrupted by Ctrl-C, the operation is cancelled.
        """
        return self.apply(function, blocks, args, kwargs)

    def apply(
        self,
        function: Callable[..., Any],
        blocks: bool,
        args: Any,
        kwargs: dict[str, Any],
        run_cached: CachedCall | None = None,
    ) -> Any:
        """`call`, for whoever has the arguments together already.

        ``run_cached``: what may carry the operation out at once, so that ``function`` is not called;
        for such as say nothing by their result; it is None then.
        """
        if _running_loop() is not None:
            with blocking_in_cell(function):
                return self.apply(function, blocks, args, kwargs, run_cached)
        loop, handoff = self._loop, self._handoff
        if loop is None:
            return _beside_async(function(*args, **kwargs), blocks)
        interrupts = handoff.interrupts
        # First: struck with the loop in its hands, nobody would get it back.
        held = interrupts.hold()
        if not handoff.acquire():
            if held:
                interrupts.let()
            return self._call(loop, function, blocks, args, kwargs)
        work: Any = None
        gate = None
        try:
            try:
                if run_cached is not None:
                    done = self._again(loop, run_cached, args, kwargs)
                    if isinstance(done, tuple):
                        handoff.give_back()
                        return None
                    work = done
                _set_running_loop(loop)
                try:
                    if work is None:
                        work = function(*args, **kwargs)
                    is_over = blocks and (work.is_completed() or work._spin(_DRIVE_SECONDS))
                except BaseException:
                    handoff.resume()
                    raise
                finally:
                    _set_running_loop(None)
                if not blocks:
                    handoff.resume()
                elif is_over:
                    handoff.give_back()
                else:
                    gate = gate_of(work, handoff)
            finally:
                if held:
                    interrupts.let()
            if gate is not None:
                gate.acquire()
        except BaseException:
            if gate is not None:
                loop.call_soon_threadsafe(work.cancel)
            raise
        if not blocks:
            return work
        try:
            return work.result()
        finally:
            # The traceback of an error holds this frame: what leads back to the error must go.
            del work, args, kwargs

    def _again(
        self,
        loop: asyncio.AbstractEventLoop,
        run_cached: CachedCall,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Done | None:
        """What ``run_cached`` has carried out, or begun. In a thread that drives the loop."""
        group = current_world().default_on(loop)
        try:
            return None if group is None else run_cached(group, args, kwargs)
        except BaseException:
            self._handoff.resume()
            raise

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[..., Any],
        blocks: bool,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """`call` by way of the loop's thread."""
        call = CrossThreadCall(on_callers_stream(function), blocks, args, kwargs, self._handoff)
        _hand_over(loop, call.start, self._handoff)
        try:
            call.gate.acquire()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)
            raise
        error, call.error = call.error, None
        try:
            if error is not None:
                raise error
            return call.returned.result() if blocks else call.returned
        finally:
            del call, error, args, kwargs  # as in `call`

    def post(self, function: Callable[[], None]) -> None:
        """Have ``function()`` called in the loop's thread, after all that was asked for before.

        It raises nothing. Raises NotInitializedError where nothing lives on the loop.
        """
        loop, handoff = self._loop, self._handoff
        if loop is None:
            raise NotInitializedError(_CLOSED)

        def arrive() -> None:
            handoff.arrived()
            function()

        _hand_over(loop, arrive, handoff)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """Await ``function(*args, **kwargs)`` in the loop's thread; its result. Not the hot path.

        Interrupted by Ctrl-C, the coroutine is cancelled.
        """
        if _running_loop() is not None:
            with blocking_in_cell(function):
                return self.run(function, *args, **kwargs)
        loop = self.enter()
        try:
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop)
            try:
                error = future.exception()
            except BaseException:
                future.cancel()
                raise
            try:
                if error is not None:  # raised here: its traceback shows no frame of the future's
                    raise error
                return future.result()
            finally:
                del error  # its traceback holds this frame
        finally:
            self.leave()

    # -- the thread's life

    def enter(self) -> asyncio.AbstractEventLoop:
        """Keep the loop running until `leave`; starts it if need be."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def leave(self) -> None:
        """The counterpart of `enter`. After the last one the thread ends. Any thread."""
        with self._lock:
            self._users -= 1
            if self._users > 0 or self._loop is None:
                return
            thread = self._stop()
        if thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def settle(self, resident: Resident) -> None:
        """Let ``resident`` live on the loop: an `enter` that is undone by `unsettle`."""
        self.enter()
        self._residents.append(resident)

    def unsettle(self, resident: Resident) -> None:
        """``resident`` has closed. Once only; a second call does nothing."""
        try:
            self._residents.remove(resident)
        except ValueError:
            return
        self.leave()

    def depart(self, resident: Resident) -> None:
        """Let ``resident`` leave, without waiting: for finalizers, which run in any thread."""
        loop = self._loop
        if loop is not None and resident in self._residents:
            asyncio.run_coroutine_threadsafe(self._departure(resident), loop)

    async def _departure(self, resident: Resident) -> None:
        try:
            await resident.leave()
        finally:
            self.unsettle(resident)

    def close(self) -> None:
        """The process ends: what is queued goes out, everybody says goodbye. Bounded in time."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        leaving = asyncio.run_coroutine_threadsafe(_leave(self._residents), loop)
        try:
            leaving.result(_JOIN_SECONDS)
        except TimeoutError:
            pass
        self._residents.clear()
        with self._lock:
            if self._loop is loop:
                self._users = 0
                self._stop()
        thread.join(1.0)

    def _start(self) -> None:
        loop = _new_loop()
        thread = threading.Thread(target=_live, args=(loop,), name="aiodist", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        atexit.register(self.close)
        # Children of multiprocessing end without atexit, but run its own finalizers.
        self._finalizer = util.Finalize(None, self.close, exitpriority=1)

    def _stop(self) -> threading.Thread:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        self._loop = self._thread = None
        atexit.unregister(self.close)
        self._finalizer.cancel()
        loop.call_soon_threadsafe(loop.stop)
        self._handoff.recall()
        self._handoff.interrupts.retire()
        return thread

    def _after_fork(self) -> None:
        # The thread is the parent's. Nothing may touch its loop here: the epoll instance behind
        # it is shared. The objects stay, lest they be torn down as if they were ours.
        loop, residents = self._loop, self._residents
        self._handoff.interrupts.retire()
        self._handoff = LoopHandoff()
        self._inherited += [loop, self._thread, residents]
        self._lock = threading.RLock()  # a finalizer may call leave() at any point
        self._loop = self._thread = None
        self._users = 0
        self._residents = []
        if loop is not None:
            atexit.unregister(self.close)
            for resident in residents:
                resident.close_in_child()
            for name in ("_ssock", "_csock"):  # how others wake asyncio's own loop
                sock = getattr(loop, name, None)
                if sock is not None:
                    sock.close()


def _beside_async(started: Any, blocks: bool) -> Any:
    """What was called with no portal's loop: on a world that lives on an async program's loop.

    Where there is no such world either, the call has said so.
    """
    if isinstance(started, DeferredWork):
        started._start_soon()
    if not blocks or not isinstance(started, Work):
        return started
    started.wait()
    return started.result()


def _hand_over(
    loop: asyncio.AbstractEventLoop, start: Callable[[], None], handoff: LoopHandoff
) -> None:
    handoff.expect()
    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError:
        handoff.arrived()
        raise NotInitializedError(_CLOSED) from None


@contextmanager
def blocking_in_cell(function: Callable[..., Any]) -> Iterator[None]:
    """Let a notebook's cell block, although the loop of its kernel runs in this thread.

    A cell is expected to block until it is done. In any other running loop a blocking call is a
    mistake that would stop it: raises InvalidUsageError.
    """
    loop = _running_loop()
    if not _in_notebook():
        name = getattr(function, "__name__", "this")
        raise InvalidUsageError(
            f"{name} of aiodist.sync would block the event loop that runs in this thread; use the "
            f"async API here: import aiodist as dist; await dist.{name}(...)"
        )
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


async def _leave(residents: list[Resident]) -> None:
    while residents:
        leaving = [resident.leave() for resident in residents]
        residents.clear()
        await asyncio.gather(*leaving, return_exceptions=True)


def _live(loop: asyncio.AbstractEventLoop) -> None:
    """The thread: run until stopped, then end what is still there."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_JOIN_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()

    class Loop(uvloop.Loop):
        async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
            # uvloop's own starts the threads of libuv, and a forked child crashes when it ends:
            # libuv then joins those threads, which the child never had.
            return await self.run_in_executor(None, partial(socket.getaddrinfo, *args, **kwargs))

    return Loop()


_CLOSED = "Default process group has not been initialized: another thread has just destroyed it."

# One for the process; a context may have one of its own, as it may have a world of its own.
_current: ContextVar[Portal] = ContextVar("aiodist_portal", default=Portal())  # noqa: B039


portal: Callable[[], Portal] = _current.get
"""The portal of the calling context."""
