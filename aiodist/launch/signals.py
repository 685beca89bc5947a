"""Deliver SIGINT, SIGTERM and SIGHUP of the launcher to its loop, and let it wait for its ranks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class SignalInbox:
    """While entered, calls ``on_signal(number)`` at once and makes ``fileno()`` readable.

    The loop's wait goes on after a handler has run (PEP 475), so the handler also writes to
    a pipe that the loop watches. Outside the main thread, where Python allows no handlers, it
    does nothing: the program's own handling stays in force. A SIGHUP that was ignored (nohup)
    stays ignored. An ignored SIGCHLD, which a program may inherit, gets its default meanwhile: the
    system would tell no exit code of a rank.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        self._read = self._write = -1

    def __enter__(self) -> SignalInbox:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._handle)
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None: the handler was not installed by Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def drain(self) -> None:
        """Discard the wake-ups so far."""
        try:
            while os.read(self._read, 512):
                pass
        except BlockingIOError:
            pass

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._on_signal(number)
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # full of wake-ups already
