"""The line of the program that the main thread of a process executes, or where its main task waits."""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import CodeType, CoroutineType, FrameType, GeneratorType, MappingProxyType
from typing import Any

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_TORCH = os.sep + os.path.join("site-packages", "torch") + os.sep
_PACKAGES = ("site-packages" + os.sep, "dist-packages" + os.sep)
_WIDEST_SOURCE = 60

TURN_SECONDS = 0.5
"""A loop that has not turned for this many seconds is stuck."""

_LOOP_RUNNERS = MappingProxyType[CodeType, str](
    {
        asyncio.Runner.run.__code__: "task",
        asyncio.BaseEventLoop.run_until_complete.__code__: "future",
        asyncio.BaseEventLoop.run_forever.__code__: "",
    }
)
"""What runs an event loop, and its variable for the main task. uvloop's own methods have no frames."""


@dataclass(frozen=True)
class CodeLocation:
    """``place``: file, line and function, and for a task that waits the line's text; "" if unknown.

    ``stuck``: seconds, at least, for which the event loop has not turned, because a computation
    blocks it; 0.0 if it turns.
    """

    place: str = ""
    stuck: float = 0.0

    def __str__(self) -> str:
        words = [f"at {self.place}"] if self.place else []
        if self.stuck:
            words.append(f"its event loop has not turned for {self.stuck:.1f} s or more")
        return ", ".join(words)


def place(loop: asyncio.AbstractEventLoop) -> str:
    """Return the innermost line of the program in this process's main thread. Any thread may call it.

    If the main thread runs an event loop that executes no line of the program now, return where the
    main task waits. In a loop without a main task, as a notebook's, it is a task in an operation.

    Without the interpreter lock (free-threaded Python), return what ``loop`` sees of its own thread in
    its next turn. The text is empty if that takes `TURN_SECONDS`. ``loop``: of the rank's operations.
    """
    if _has_gil():
        return _place_of(sys._current_frames().get(threading.main_thread().ident or 0), loop)
    # The frames of a thread that runs change and go meanwhile: to read them from here crashes Python.
    if asyncio._get_running_loop() is loop:
        return _place_of(sys._getframe(), loop)
    told: SimpleQueue[str] = SimpleQueue()
    try:
        loop.call_soon_threadsafe(lambda: told.put(_place_of(sys._getframe(), loop)))
        return told.get(timeout=TURN_SECONDS)
    except (RuntimeError, Empty):  # it has ended, or does not turn
        return ""


def _has_gil() -> bool:
    """Return whether one thread at a time executes Python: always before Python 3.13."""
    is_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def _place_of(frame: FrameType | None, loop: asyncio.AbstractEventLoop) -> str:
    """Return the place that `place` describes for a thread whose innermost frame is ``frame``."""
    main: object = None
    runs_loop = False
    while frame is not None and _is_library(frame.f_code.co_filename):
        name = _LOOP_RUNNERS.get(frame.f_code)
        if name is not None:
            runs_loop = True
            main = main or frame.f_locals.get(name)
        frame = frame.f_back
    waits_at = _place_of_tasks(main, loop) if runs_loop else ""
    return waits_at or ("" if frame is None else _describe(frame))


def _place_of_tasks(main: object, loop: asyncio.AbstractEventLoop) -> str:
    """Return where the task ``main`` waits, or else a task of ``loop`` in an operation; "" if none."""
    if isinstance(main, asyncio.Task):
        frame, _ = _innermost(main)
        if frame is not None:
            return _with_source(frame)
    for task in asyncio.all_tasks(loop):
        frame, in_operation = _innermost(task)
        if frame is not None and in_operation:
            return _with_source(frame)
    return ""


def _innermost(task: asyncio.Task[Any]) -> tuple[FrameType | None, bool]:
    """Return the program's innermost frame in which ``task`` waits, and whether it awaits aiodist there.

    The task may run meanwhile, in another thread: a coroutine that runs or has ended awaits nothing.
    """
    found, in_operation = None, False
    awaited: object = task.get_coro()
    while True:
        match awaited:
            case CoroutineType():
                frame, awaited = awaited.cr_frame, awaited.cr_await
            case GeneratorType():
                frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
            case _:
                return found, in_operation
        if frame is None:
            continue
        name = frame.f_code.co_filename
        if not _is_library(name):
            found, in_operation = frame, False
        elif name.startswith(_OURS):
            in_operation = True


def _with_source(frame: FrameType) -> str:
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    shown = textwrap.shorten(source, _WIDEST_SOURCE, placeholder=" ...")
    return f"{_describe(frame)} ({shown})" if shown else _describe(frame)


def _describe(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_library(name: str) -> bool:
    """Return whether a module is Python's, aiodist's or torch's; others are the program's choice."""
    if name.startswith((_OURS, "<frozen")) or _TORCH in name:
        return True
    return name.startswith(_LIBRARY) and not any(part in name for part in _PACKAGES)
