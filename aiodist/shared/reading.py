"""Copies straight out of the memory of another process: ``process_vm_readv``.

The system allows it between processes that may trace each other: of one user, and where no policy
(Yama's ptrace_scope, seccomp, a container's) forbids it. So it is tried before it is counted on. The
memory that is read need not be a segment: it may be any tensor's.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

import numpy as np

_CALL = "process_vm_readv"

NOTHING = 1
"""Stands for the address of no bytes at all."""


class Reader:
    """Of one thread at a time."""

    def __init__(self) -> None:
        """Raises OSError where this system has no such call."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, _CALL):
            raise OSError(errno.ENOSYS, f"this system has no {_CALL}")
        self._call = getattr(libc, _CALL)
        self._call.restype = ctypes.c_ssize_t
        count = ctypes.c_ulong
        self._call.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, count, ctypes.c_void_p),
            *(count, count),
        )
        # Two of the system's iovec: address and length, here and there.
        self._ends = (ctypes.c_size_t * 4)()
        self._here = ctypes.addressof(self._ends)
        self._there = self._here + ctypes.sizeof(self._ends) // 2

    def read(self, pid: int, start: int, into: memoryview) -> None:
        """Fill ``into`` with what process ``pid`` has at the address ``start``.

        Other threads of this process run meanwhile. Raises OSError: ProcessLookupError where the
        process has ended, PermissionError where it may not be read, one with EFAULT where not all of
        that is memory which can be read; ``into`` may then be written in part.
        """
        ends, nbytes = self._ends, len(into)
        ends[0] = address_of(into)
        ends[2] = start
        ends[1] = ends[3] = nbytes
        came = self._call(pid, self._here, 1, self._there, 1, 0)
        if came != nbytes:
            number = ctypes.get_errno() if came < 0 else errno.EFAULT
            raise OSError(number, f"{_CALL}: {os.strerror(number)}")

    def can_be_read(self, data: memoryview) -> bool:
        """Whether others could read ``data`` of this process: not so, say, what a device maps."""
        one = memoryview(bytearray(1))
        try:
            for start in (0, len(data) - 1):
                self.read(os.getpid(), address_of(data) + start, one)
        except OSError:
            return False
        return True


class Window:
    """Onto the memory of some processes that are known to let it be read, by their number here."""

    def __init__(self, reader: Reader, pids: Sequence[int]) -> None:
        self._reader = reader
        self._pids = pids

    def address(self, data: memoryview) -> int:
        """Where others find ``data`` of this process, 0 where they could not read it."""
        if not len(data):
            return NOTHING
        return address_of(data) if self._reader.can_be_read(data) else 0

    def read(self, number: int, start: int, into: memoryview) -> None:
        """As `Reader.read`, from the ``number``-th process."""
        self._reader.read(self._pids[number], start, into)


def address_of(data: memoryview) -> int:
    """Where the bytes of ``data``, of which there is at least one, are in this process's memory."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
