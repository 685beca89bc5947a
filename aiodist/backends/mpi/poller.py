"""Requests of MPI under way: asked again and again whether they have ended, and never waited for.

MPI has nothing that an event loop could sleep on, and it makes progress only while it is called.
So what is under way is asked in every turn of the loop, as long as its end may be near; then at
growing intervals, up to `LONGEST`.
"""

from __future__ import annotations

import ctypes
from asyncio import AbstractEventLoop, Handle
from time import perf_counter

from aiodist.backends.mpi.library import Mpi, translated
from aiodist.completion import Pending
from aiodist.links.host import yield_core
from aiodist.p2p.spin_policy import SpinPolicy

ATTENTIVE = 1e-3
"""Seconds for which every turn of the loop asks, beside the time that the bytes take."""

BYTES_PER_SECOND = 2e8
"""The slowest transfer for which the loop still polls often, about 2 Gbit/s."""

MOST_ATTENTIVE = 1.0
"""The most seconds of frequent polling."""

LONGEST = 2e-3
"""The most seconds between two polls: five hundred polls a second take a thousandth of a core."""

_SHORTEST = 1e-3  # the resolution of the loops' timers

_OF_OBJECT = ctypes.PYFUNCTYPE(None, ctypes.py_object)
_add_reference = _OF_OBJECT(("Py_IncRef", ctypes.pythonapi))
_drop_reference = _OF_OBJECT(("Py_DecRef", ctypes.pythonapi))


class Request(Pending[None]):
    """An MPI request in progress. MPI uses its memory until it is done, even if no task waits any more.

    So the memory lives until then, also after the operation was cancelled and the event loop closed:
    freed memory may get another owner, and MPI would write to that.
    """

    __slots__ = ("has_completed", "memory", "request", "status")

    def __init__(self, request: Mpi, memory: object, status: Mpi = None) -> None:
        """``memory``: all that MPI reads or writes for the request.

        mpi4py's request does not always keep it alive: not in reductions, Iallgatherv and Idup.
        """
        super().__init__()
        self.request = request
        self.memory = memory
        self.status = status
        self.has_completed = False
        # Invariant: until MPI has completed the request, this reference keeps `self` and the memory alive.
        # No container holds it: the interpreter ends, and frees those, before mpi4py finalises MPI.
        _add_reference(self)

    def test(self) -> bool:
        """Return whether MPI has completed the request. Raises what MPI reports.

        After an error its memory is never freed: parts of a collective may still be in progress.
        """
        if not self.has_completed and self.request.Test(self.status):
            self.has_completed = True
            _drop_reference(self)
        return self.has_completed


class Poller:
    """The requests of one communicator. Belongs to the thread of the event loop."""

    def __init__(self, mpi: Mpi, loop: AbstractEventLoop, spin_policy: SpinPolicy) -> None:
        """``spin_policy``: of the rank; it hears of all that has ended."""
        self._mpi = mpi
        self._loop = loop
        self._spin_policy = spin_policy
        self._requests: list[Request] = []
        self._handle: Handle | None = None
        self._sleeping = False
        self._since = 0.0
        self._attentive = 0.0

    def watch(self, request: Mpi, memory: object, nbytes: int = 0, status: Mpi = None) -> Request:
        """Return a `Request` that is done when ``request`` is; its errors are MPI's, as errors of ours.

        ``memory``: all that MPI reads or writes for it. ``nbytes``: about how much it moves.
        ``status``: filled then.
        """
        watched = Request(request, memory, status)
        self._requests.append(watched)
        self._poll_eagerly(nbytes)
        return watched

    def poll(self) -> None:
        """Ask all requests once, and complete those that have ended."""
        ended: list[tuple[Request, Exception | None]] = []
        left: list[Request] = []
        for watched in self._requests:
            try:
                if watched.test():
                    ended.append((watched, None))
                else:
                    left.append(watched)
            except self._mpi.Exception as error:
                ended.append((watched, translated(self._mpi, error)))
        if not ended:
            return
        self._requests = left  # before a callback starts the next one
        self._since = perf_counter()
        self._spin_policy.note_progress()
        for watched, failure in ended:
            if failure is not None:
                watched.fail(failure)
            else:
                watched.complete(None)

    def close(self) -> bool:
        """Ask no more; whether all had ended. What has not keeps its memory until the process ends."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.poll()  # what was cancelled has ended by now
        left, self._requests = self._requests, []
        return not left

    def _poll_eagerly(self, nbytes: int) -> None:
        self._since = perf_counter()
        seconds = min(ATTENTIVE + nbytes / BYTES_PER_SECOND, MOST_ATTENTIVE)
        self._attentive = max(self._attentive, seconds)
        if self._handle is not None:
            if not self._sleeping:
                return
            self._handle.cancel()
        self._sleeping = False
        self._handle = self._loop.call_soon(self._ask)

    def _ask(self) -> None:
        self._handle = None
        self.poll()
        if not self._requests:
            self._attentive = 0.0
            return
        if self._handle is not None:
            return  # what has ended has started something else
        idle = perf_counter() - self._since
        if idle < self._attentive:
            if not self._spin_policy.active:
                yield_core()  # to the ranks that share this one's core
            self._sleeping = False
            self._handle = self._loop.call_soon(self._ask)
        else:
            self._sleeping = True
            pause = min(max(idle / 8, _SHORTEST), LONGEST)
            self._handle = self._loop.call_later(pause, self._ask)
