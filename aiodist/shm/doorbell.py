"""A pipe by which other processes of the same user wake a rank that sleeps over shared memory.

Its writing end is opened as a segment is, through ``/proc/<pid>/fd/<number>``. A byte in a pipe wakes
a sleeper for less than a frame on a stream, or a futex that Python reaches through ctypes; see
docs/experiments/shared-memory.md.
"""

from __future__ import annotations

import math
import os
import select
import stat
import struct
from collections.abc import Set as AbstractSet
from contextlib import suppress

_RING = struct.Struct("Q")
_MOST_BYTES = 4096


class Doorbell:
    """The two ends of one pipe. ``fd`` becomes readable when another rank rings."""

    def __init__(self) -> None:
        self.fd, self.number = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """``number``: the descriptor of the end to write to, for `open_doorbell` elsewhere."""
        self._poll: select.poll | None = None  # made by the first `wait`

    def take(self) -> AbstractSet[int]:
        """Return the groups that other ranks have rung for since the last call."""
        try:
            rung = os.read(self.fd, _MOST_BYTES)
        except BlockingIOError:
            return frozenset()
        # A write of so few bytes is atomic; a rest of another length is not from a rank.
        whole = len(rung) // _RING.size * _RING.size
        return {group for (group,) in _RING.iter_unpack(rung[:whole])}

    def wait(self, seconds: float) -> bool:
        """Block the thread until another rank rings, for at most ``seconds``. Return whether it rang."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.fd, select.POLLIN)
        if not self._poll.poll(math.ceil(seconds * 1e3)):
            return False
        with suppress(OSError):  # it may have been read, or closed, meanwhile
            os.read(self.fd, _MOST_BYTES)
        return True

    def ring(self) -> None:
        """Wake the thread in `wait`. Any thread of this process."""
        if self.number >= 0:
            ring(self.number, 0)

    def close(self) -> None:
        """Close both ends. Idempotent."""
        ends = self.fd, self.number
        self.fd = self.number = -1  # before the numbers may be another file's
        for end in ends:
            if end >= 0:
                os.close(end)


def open_doorbell(pid: int, number: int) -> int:
    """Return a descriptor to `ring` the doorbell of another process. Raises OSError."""
    path = f"/proc/{pid}/fd/{number}"
    if not stat.S_ISFIFO(os.stat(path).st_mode):  # do not open other files
        raise OSError(f"{path} is no pipe")
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def ring(fd: int, group: int) -> None:
    """Wake the rank behind ``fd``, which sleeps over the memory of ``group``.

    Raises OSError if it is gone.
    """
    with suppress(BlockingIOError):  # the pipe is full, so the rank wakes up anyway
        os.write(fd, _RING.pack(group))
