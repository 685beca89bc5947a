"""What is said of operations whose outcome no caller has asked for: in the log, and as warnings."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from aiodist.errors import GroupClosedError
from aiodist.observe.recorder import Record, operation

log = logging.getLogger("aiodist")

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class CallSite(NamedTuple):
    """Where an operation was called: enough to find the line later, and no frame that keeps memory."""

    code: CodeType
    instruction: int
    namespace: dict[str, Any]
    """The globals of the calling module."""
    stack: str = ""
    """In asyncio's debug mode, how the program came there."""


def call_site(depth: int, debug: bool) -> CallSite | None:
    """Return the place outside this package that called, at least ``depth`` frames up; None: unknown."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            stack = "".join(traceback.format_stack(frame)) if debug else ""
            return CallSite(code, frame.f_lasti, frame.f_globals, stack)
        frame = frame.f_back
    return None


def warn_never_awaited(record: Record, site: CallSite | None) -> None:
    """Warn that an operation was started and its end ignored, as asyncio does of coroutines.

    Equal operations of one line have one text, so that Python's filter shows it once.
    """
    text = f"{operation(record).call} was never awaited or waited for"
    if site is None:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return
    if site.stack:
        text += f"\nOperation called at (most recent call last):\n{site.stack.rstrip()}"
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        site.code.co_filename,
        _line_of(site),
        site.namespace.get("__name__", "<string>"),  # of None Python would show nothing
        site.namespace.setdefault("__warningregistry__", {}),
    )


def _line_of(site: CallSite) -> int:
    for start, end, line in site.code.co_lines():
        if line is not None and start <= site.instruction < end:
            return line
    return site.code.co_firstlineno


class UnretrievedError:
    """The error of a `Work`: the log gets it when the `Work` is dropped and no caller has asked."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def __del__(self) -> None:
        error = self.error
        # What this rank did itself is no news to it.
        if error is not None and not isinstance(error, (asyncio.CancelledError, GroupClosedError)):
            log.error("an operation failed and was not awaited: %s", error)
