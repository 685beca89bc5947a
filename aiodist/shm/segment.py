"""Anonymous memory that several processes map, which ends with the last of them.

A segment is a memfd, which has no name in any file system. Another process of the same user opens
it through ``/proc/<pid>/fd/<number>``. It compares a nonce at the start of the memory with the one
in the description, so it maps the right segment or fails. However a process ends, nothing has to be
removed.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import secrets
import weakref

NONCE_BYTES = 16
_NAME = "aiodist"  # seen in /proc/<pid>/maps

_TARGET = f"/memfd:{_NAME}"
"""How the link of such a descriptor in /proc begins."""

_ORDERED = frozenset({"x86_64", "AMD64", "i686"})
"""Machines whose stores become visible in program order. Flags beside data need that."""

_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class Segment:
    """Mapped memory; ``view`` is its bytes. ``description`` tells another process how to open it.

    The memory is unmapped when its last view is released.
    """

    def __init__(self, view: memoryview, description: str, fd: int = -1) -> None:
        self.view = view
        self.description = description
        self._fd = fd

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Create a zeroed segment. A page takes memory when it is first touched. Raises OSError."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        if platform.machine() not in _ORDERED:
            raise OSError(f"stores may overtake each other on {platform.machine()}")
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            # If any process could shrink the file, its readers would die of SIGBUS.
            for seal in _SEALS:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, getattr(fcntl, seal))
            view = _map(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        nonce = secrets.token_bytes(NONCE_BYTES)
        view[:NONCE_BYTES] = nonce
        return cls(view, f"{os.getpid()}:{fd}:{nonce.hex()}", fd)

    @classmethod
    def open(cls, description: str) -> Segment:
        """Map another process's segment. Raises OSError if that fails, or if it is another segment."""
        try:
            pid, number, nonce = description.split(":")
            path = _path(pid, number)
        except ValueError:
            raise OSError(f"not a description of a segment: {description!r}") from None
        if not os.readlink(path).startswith(_TARGET):  # do not open other files
            raise OSError(f"{path} is no segment of aiodist's")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            nbytes = os.fstat(fd).st_size
            if nbytes < mmap.PAGESIZE:
                raise OSError(f"{path} is not a segment of memory")
            view = _map(fd, nbytes)
        finally:
            os.close(fd)
        if view[:NONCE_BYTES].hex() != nonce:
            raise OSError(f"{path} is not the segment that the description names")
        return cls(view, description)

    @property
    def pid(self) -> int:
        """Return the process that made the segment."""
        return int(self.description.partition(":")[0])

    @property
    def is_orphan(self) -> bool:
        """Return whether the process that made the segment has ended, or has closed it."""
        pid, number, _ = self.description.split(":")
        try:
            return not os.readlink(_path(pid, number)).startswith(_TARGET)
        except OSError:
            return True

    def close(self) -> None:
        """Release the descriptor and this view. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.view.release()


def _path(pid: str, number: str) -> str:
    return f"/proc/{int(pid)}/fd/{int(number)}"


def _map(fd: int, nbytes: int) -> memoryview:
    """Map the memory behind ``fd``; it is unmapped with its last view.

    Python's own mmap keeps a descriptor for each mapping, and refuses to close while there are
    views.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    # Do not unmap at the end of the process, when threads may still read the memory.
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")
