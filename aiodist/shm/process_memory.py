"""Read memory of another process of this host: one copy, made by the system (process_vm_readv).

It takes the right to trace that process. Processes of one user have it. Where the Yama security
module asks for more (``kernel.yama.ptrace_scope`` 1), `allow_readers` grants it. If a system grants
it to none, `read` raises PermissionError.
"""

from __future__ import annotations

import ctypes
import errno
import os

_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("begin", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def allow_readers() -> None:
    """Let all processes of this user read the memory of this one, where Yama keeps them from it.

    It stays so for the life of the process. Without Yama it is so already, and this does nothing.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)


class ProcessMemory:
    """The memory of process ``pid``, which may have ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t
        self._call.argtypes = (
            ctypes.c_int,
            *(ctypes.POINTER(_Range), ctypes.c_ulong) * 2,
            ctypes.c_ulong,
        )

    def read(self, there: int, here: int, nbytes: int) -> None:
        """Copy ``nbytes`` from address ``there`` of that process to address ``here`` of this one.

        Other threads run meanwhile. Raises OSError if not all of it can be read: ProcessLookupError
        if the process has ended, PermissionError if this process may not read it.
        """
        to, of = _Range(here, nbytes), _Range(there, nbytes)
        got = self._call(self._pid, ctypes.byref(to), 1, ctypes.byref(of), 1, 0)
        if got != nbytes:
            number = ctypes.get_errno() if got < 0 else errno.EFAULT
            raise OSError(number, f"memory of process {self._pid}: {os.strerror(number)}")
