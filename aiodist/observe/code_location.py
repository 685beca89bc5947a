"""The line of the program that the main thread of a process executes now."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_TORCH = os.sep + os.path.join("site-packages", "torch") + os.sep
_PACKAGES = ("site-packages" + os.sep, "dist-packages" + os.sep)


@dataclass(frozen=True)
class CodeLocation:
    """``place``: file, line and function; "" if no frame of the program is on the stack.

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


def place() -> str:
    """Return the innermost line of the program in this process's main thread. Any thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _describe(frame)


def _describe(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_library(name: str) -> bool:
    """Return whether a module is Python's own, aiodist's or torch's; other packages are the
    program's choice.
    """
    if name.startswith((_OURS, "<frozen")) or _TORCH in name:
        return True
    return name.startswith(_LIBRARY) and not any(part in name for part in _PACKAGES)
