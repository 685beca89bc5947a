"""The file of the file store: records appended under a lock, replayed into a table.

The file begins with the line ``AIODIST-FILESTORE 1`` and 16 random bytes, its epoch. Another epoch
under the same path means that another job started the file afresh. Records follow: four bytes of
length, big-endian, and a msgpack array whose first element is the kind. Nothing here waits: if the
lock is taken, the caller tries again.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack

from aiodist.errors import DistStoreError, remedy_for
from aiodist.store.participants import Participant
from aiodist.store.table import KeyTable

if sys.platform != "win32":
    import fcntl

_MAGIC = b"AIODIST-FILESTORE 1\n"
_HEADER = len(_MAGIC) + 16
_LENGTH = struct.Struct(">I")
MAX_RECORD = 64 * 2**20
"""Bytes of one record, which limits the size of a value."""


class FileLog:
    """One handle on the file: its descriptor, what was read so far, and the resulting table."""

    def __init__(self, path: str) -> None:
        """Create a handle without opening the file.

        ``present``: participants that joined and did not leave, by token. ``wills``: values to
        write when a participant has ended, by token and key.
        """
        self.path = path
        self.table = KeyTable()
        self.present: dict[str, Participant] = {}
        self.wills: dict[str, dict[str, bytes]] = {}
        self._fd = -1
        self._epoch = b""
        self._end = 0

    def open(self) -> None:
        """Open the file, or make it for this user alone. Raises DistStoreError."""
        if sys.platform == "win32":
            raise DistStoreError("file stores need POSIX file locks; use tcp://host:port instead")
        self.close()
        try:
            self.path = str(Path(self.path).absolute())  # the directory may change before `close`
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DistStoreError(
                f"cannot open the store's file {self.path}: {error.strerror}; "
                + remedy_for(error, "its directory must exist and be writable for every rank")
            ) from None

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A descriptor is a number, which nothing closes if the owner of the log is garbage.
        self.close()

    @contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[bool]:
        """Hold the lock if it is free; yields whether it is held."""
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                yield False
                return
            raise DistStoreError(
                f"cannot lock the store's file {self.path}: {error.strerror}; put it on a file "
                "system that has locks"
            ) from error
        try:
            try:
                yield True
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError as error:
            raise DistStoreError(
                f"cannot use the store's file {self.path}: {error.strerror}"
            ) from error

    def lock_holders(self) -> frozenset[int]:
        """Return the processes of this host that hold the lock, as Linux lists them; else an empty set."""
        inode = str(os.fstat(self._fd).st_ino)
        found: set[int] = set()
        with suppress(OSError), open("/proc/locks", encoding="utf-8") as locks:
            for line in locks:
                fields = line.split()  # number, kind, ADVISORY, mode, process, device:inode, range
                if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                    found.add(int(fields[4]))
        return frozenset(found)

    def is_current(self) -> bool:
        """Return whether the path still names the open file: its last user may have removed it."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def begin(self) -> None:
        """Make the file an empty store, whatever it held. Call it under the exclusive lock."""
        os.ftruncate(self._fd, 0)
        self._epoch = os.urandom(_HEADER - len(_MAGIC))
        self._end = 0
        self._write(_MAGIC + self._epoch)
        self.table.clear()
        self.present.clear()
        self.wills.clear()

    def read_header(self) -> bool:
        """Return whether the file has a store; False if it is empty or its header is incomplete.

        Raises DistStoreError for another program's file, which is left as it is.
        """
        header = os.pread(self._fd, _HEADER, 0)
        if not header.startswith(_MAGIC[: len(header)]):
            raise DistStoreError(
                f"{self.path} is no file of an aiodist store; name another one, or delete it if "
                "it is not needed (a file of torch's FileStore cannot be shared with aiodist)"
            )
        if len(header) < _HEADER:
            return False
        self._epoch = header[len(_MAGIC) :]
        self._end = _HEADER
        return True

    def refresh(self, *, exclusive: bool) -> None:
        """Replay the records that others have appended. Call it under the lock.

        An incomplete record, whose writer was killed, is removed if the lock is ``exclusive``.
        Raises DistStoreError if the file is no longer the one that was joined.
        """
        if os.pread(self._fd, _HEADER, 0)[len(_MAGIC) :] != self._epoch:
            raise DistStoreError(
                f"{self.path} was started afresh by another job, or damaged, while this one "
                "used it; give each job a file of its own"
            )
        size = os.fstat(self._fd).st_size
        data = memoryview(self._read(size - self._end))
        at = 0
        while len(data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > MAX_RECORD:
                raise self._damaged()
            if len(data) - at - _LENGTH.size < length:
                break
            self._replay(data[at + _LENGTH.size : at + _LENGTH.size + length])
            at += _LENGTH.size + length
        self._end += at
        if exclusive and at < len(data):
            os.ftruncate(self._fd, self._end)

    def append(self, *record: Any) -> None:
        """Append one record and replay it. Call it under the exclusive lock, after `refresh`."""
        body: bytes = msgpack.packb(record)
        if len(body) > MAX_RECORD:
            raise DistStoreError(
                f"a record of {len(body)} bytes is longer than the store takes ({MAX_RECORD} "
                "bytes): pass large data between ranks with send and recv"
            )
        self._write(_LENGTH.pack(len(body)) + body)
        self._replay(memoryview(body))

    def remove(self) -> None:
        """Remove the file. Call it under the exclusive lock."""
        os.unlink(self.path)

    def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            part = os.pread(self._fd, count - len(data), self._end + len(data))
            if not part:
                break
            data += part
        return data

    def _write(self, data: bytes) -> None:
        # The next exclusive refresh of any handle removes a partial record.
        at, view = self._end, memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            at += written
            view = view[written:]
        self._end = at

    def _replay(self, body: memoryview) -> None:
        try:
            kind, *fields = msgpack.unpackb(body)
            if kind == "set":
                self.table.set(*fields)
            elif kind == "delete":
                self.table.delete(*fields)
            elif kind == "join":
                participant = Participant(*fields)
                self.present[participant.token] = participant
            elif kind == "left":
                self.present.pop(fields[0], None)
                self.wills.pop(fields[0], None)
            elif kind == "will":
                token, key, value = fields
                self.wills.setdefault(token, {})[key] = value
            elif kind == "clear_will":
                token, key = fields
                self.wills.get(token, {}).pop(key, None)
            else:
                raise ValueError(kind)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise self._damaged() from error

    def _damaged(self) -> DistStoreError:
        return DistStoreError(f"the store's file {self.path} is damaged; delete it and start again")
