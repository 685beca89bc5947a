"""A debugger on one rank, for which the other ranks wait."""

from __future__ import annotations

import bdb
import math
import os
import stat
import sys
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TextIO

from aiodist.api.collectives import barrier
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int
from aiodist.groups.handle import Group
from aiodist.groups.world import current_world


def breakpoint(rank: int = 0, *, group: Group | None = None) -> Coroutine[Any, Any, None]:
    """Open pdb on one rank at the caller's line; the other ranks of the group wait for its end.

    All ranks of the group call it. They wait without a limit, whatever the timeout of the group.
    Operations that are under way keep their timeouts: await them before. While pdb reads a
    command, the event loop of that rank stands still, and its heartbeats go on.

    ``continue`` releases all ranks; so do ``next`` and ``step``. ``quit`` releases them, too. pdb
    reads from stdin. Where stdin is the null device, as it is on most ranks of a launcher, pdb
    reads from the terminal of the process, or of the process that started it.

    Args:
        rank: The global rank that opens pdb.
        group: The process group; None is the default group.

    Raises:
        bdb.BdbQuit: On that rank, after ``quit``.
        InvalidUsageError: The rank is not in the group; or, on that rank, there is neither stdin
            nor terminal. The others are released then.
    """
    return _wait_or_debug(rank, group, sys._getframe(1))


async def _wait_or_debug(rank: int, group: Group | None, frame: FrameType) -> None:
    try:
        debug_on(rank, group, frame)
    finally:
        await barrier(group, timeout=math.inf)


def debug_on(rank: int, group: Group | None, frame: FrameType) -> None:
    """Open pdb at ``frame`` if this rank is ``rank`` of ``group``; return when it has been left.

    Raises bdb.BdbQuit after ``quit``.
    """
    check_int(rank, "rank")
    engine = current_world().group(group)
    if rank not in engine.ranks:
        raise InvalidUsageError(f"rank {rank} is not in the group of ranks {list(engine.ranks)}")
    if rank != current_world().rank:
        return
    source = _commands()
    import pdb  # which brings twenty modules

    debugger = pdb.Pdb(stdin=source, nosigint=True)
    if source is not sys.stdin:
        debugger.use_rawinput = False
    debugger.reset()
    debugger.prompt = f"(rank {rank} Pdb) "
    try:
        debugger.interaction(frame, None)
    finally:
        # ``next`` and ``step`` do not trace: the other ranks would wait meanwhile.
        sys.settrace(None)
        if source is not sys.stdin:
            source.close()
    if debugger.quitting:
        raise bdb.BdbQuit


def _commands() -> TextIO:
    """Return the stream that pdb reads: stdin, or a terminal where stdin is the null device."""
    try:
        mode = os.fstat(sys.stdin.fileno())
        null = os.stat(os.devnull)
    except (AttributeError, OSError, ValueError):  # no stdin, or one without a descriptor
        if sys.stdin is not None and not sys.stdin.closed:
            return sys.stdin
    else:
        if not stat.S_ISCHR(mode.st_mode) or mode.st_rdev != null.st_rdev:
            return sys.stdin
    # `aiodist run` starts each rank in a session of its own, without a terminal; it has one itself.
    for path in ("/dev/tty", f"/proc/{os.getppid()}/fd/0"):
        with suppress(OSError):
            found = os.open(path, os.O_RDONLY | os.O_NOCTTY)
            if os.isatty(found):
                encoding = "utf-8" if sys.flags.utf8_mode else "locale"  # as that of stdin
                return open(found, encoding=encoding)
            os.close(found)
    raise InvalidUsageError(
        "breakpoint() found no commands to read: stdin is the null device, and there is no "
        "terminal; start this rank from a terminal"
    )
