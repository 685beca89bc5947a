"""The rank process: `main` executes the calls that come on a socket, one by one.

The main thread executes them, so that Ctrl-C reaches them. A second thread reads the socket, and ends
the process when the program at the other end is gone, whatever the main thread does.
"""

from __future__ import annotations

import inspect
import os
import queue
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, main_thread
from types import FrameType, TracebackType
from typing import Any

import aiodist.sync as dist
from aiodist.rank_processes.control import (
    END_MARK,
    HEAD_BYTES,
    FrameKind,
    decode_head,
    encode,
    pickler,
)
from aiodist.sync.portal import portal

_OWN_PACKAGES = (
    "aiodist.rank_processes",
    "aiodist.notebook",
    "aiodist.pytest_plugin",
    "aiodist.sync",
    "asyncio",
    "concurrent.futures",
)
"""Their frames stand between a call and the user's function, and say nothing about it."""

ORPHANED = 1
"""The exit code of a rank whose program has ended without closing it, if nothing else can be killed."""


def main(descriptor: int) -> None:
    """Execute the calls that come on the socket ``descriptor`` until it is closed."""
    os.set_inheritable(descriptor, False)
    worker = Worker(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGINT, worker.interrupt)
    worker.serve()


def open_group(backend: str | None, timeout: float | None) -> None:
    """Meet the other ranks; the first call that each rank gets."""
    dist.init_process_group(backend, timeout=timeout)


def renew_group() -> None:
    """Make the default group anew: after a failed call its ranks may be at different operations.

    Without effect on a rank whose function has destroyed the group.
    """
    if dist.is_initialized():
        dist.shrink()


def close_group() -> None:
    """Leave in good order; the last call that each rank gets."""
    if dist.is_initialized():
        dist.destroy_process_group()


class Worker:
    """Executes calls in the main thread."""

    def __init__(self, control: socket.socket) -> None:
        """``control``: the socket to the program that started this process."""
        self._control = control
        self._incoming = control.makefile("rb")
        self._marked = [os.dup(descriptor) for descriptor in (1, 2)]
        """Where the end of a call's output is marked, whatever the call does with descriptors 1 and 2."""
        self._dumps, self._loads = pickler()
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._executing = False
        self._received = self._begun = self._interrupted = 0  # numbers of calls

    def serve(self) -> None:
        """Execute each call that comes. Never returns: `_read` ends the process."""
        Thread(target=self._read, name="aiodist-calls", daemon=True).start()
        while True:
            answer = self._execute(self._calls.get())
            for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
                # A call may replace or close it.
                with suppress(AttributeError, OSError, ValueError):
                    stream.flush()  # type: ignore[union-attr]
            for descriptor in self._marked:
                os.write(descriptor, END_MARK)
            self._control.sendall(answer)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: end the call in progress; between calls, and before it begins, do nothing."""
        if self._executing:
            raise KeyboardInterrupt

    def _execute(self, call: bytes) -> bytes:
        """Return the frame that answers ``call``."""
        self._begun += 1
        try:
            fn, args, kwargs = self._loads(call)
            self._executing = True
            try:
                if self._interrupted == self._begun:
                    raise KeyboardInterrupt
                result = _call(fn, args, kwargs)
            finally:
                self._executing = False
            return encode(FrameKind.RESULT, self._pickled(result))
        except BaseException as error:  # noqa: BLE001  # also SystemExit and KeyboardInterrupt: they end the call, not the rank
            return encode(FrameKind.ERROR, self._portable(error))

    def _pickled(self, result: Any) -> bytes:
        try:
            return self._dumps(result)
        except Exception as error:
            error.add_note(
                f"the function returned a {type(result).__name__}, which cannot be pickled"
            )
            raise

    def _portable(self, error: BaseException) -> bytes:
        """Return the pickle of three values: the pickle of ``error``, its last lines, its traceback.

        An error that cannot be pickled is b"". Where the other end cannot unpickle the error, it
        shows the last lines: the class, the message and the notes.
        """
        summary = "".join(traceback.format_exception_only(error)).rstrip()
        text = "".join(
            traceback.format_exception(error.with_traceback(_of_user(error.__traceback__)))
        )
        error.__traceback__ = error.__cause__ = error.__context__ = None
        try:
            packed = self._dumps(error)
        except Exception:  # noqa: BLE001  # whatever a class of the user's raises when it is pickled
            packed = b""
        return self._dumps((packed, summary, text))

    def _read(self) -> None:
        while head := self._receive(HEAD_BYTES):
            kind, length = decode_head(head)
            if kind is FrameKind.INTERRUPT:
                self._interrupted = self._received
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
                continue
            self._received += 1
            self._calls.put(self._receive(length))
        with suppress(ProcessLookupError):  # it leads no group where `RankProcess` did not start it
            os.killpg(os.getpid(), signal.SIGKILL)  # with the processes that it has started
        os._exit(ORPHANED)  # the main thread may be anywhere

    def _receive(self, count: int) -> bytes:
        """Return ``count`` bytes; none at the end of the stream."""
        try:
            data = self._incoming.read(count)
        except ConnectionResetError:  # the other end closed with an answer unread
            return b""
        return data if len(data) == count else b""


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Return what of ``trace`` is behind this package's own frames; all of it where nothing is."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__package__") in _OWN_PACKAGES:
        inner = inner.tb_next
    return inner or trace


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of ``fn``. An awaitable is awaited on the loop on which the rank's world lives."""
    result = fn(*args, **kwargs)

    async def awaited() -> Any:
        return await result

    return portal().run(awaited) if inspect.isawaitable(result) else result
