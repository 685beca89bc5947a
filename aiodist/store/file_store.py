"""A store in one file, for processes of one host or of hosts that share a file system."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.store.base_store import (
    Store,
    Timeout,
    deadline_of,
    list_of_keys,
    text_key,
    whole_amount,
)
from aiodist.store.filelog import FileLog
from aiodist.store.participants import Participant, check_admission, neighbours
from aiodist.store.waiting import check_value, closed, pauses, timed_out
from aiodist.unpicklable import Unpicklable

_log = logging.getLogger("aiodist.store")
T = TypeVar("T")

_LOCK_SECONDS = 60.0
"""Timeout in seconds for the lock, which is normally held for microseconds."""
_LEAVE_SECONDS = 1.0
_LOOK_SECONDS = 0.2
"""Interval at which a waiting handle checks for dead participants that left a will."""


class FileStore(Unpicklable, Store):
    """A handle on the store in a file. Make it with `open`.

    Writers append under a file lock. Readers poll with growing pauses of at most 20 ms. No call
    blocks the loop for longer than it takes to read or write its own bytes. The file (mode 0600)
    grows by each write, and is removed when its last handle is closed: keep values that change
    often for days in a TcpStore. Do not use a handle in a forked child: open the file there.
    """

    def __init__(self, *_: object, **__: object) -> None:
        """Raise TypeError: `open` makes a store."""
        raise TypeError("a FileStore needs an open file: make it with `await FileStore.open(path)`")

    def _begin(self, log: FileLog, me: Participant) -> Self:
        """Initialize this store on the open file ``log``, where ``me`` is this process; return it."""
        self._log = log
        self._me = me
        self._closed = False
        self._looked = -math.inf
        return self

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], rank: int | None = None, timeout: Timeout = None
    ) -> FileStore:
        """Join the store in a file, which is made if it does not exist.

        If all users of a file have died, the file is started afresh, with one warning in the log
        ``aiodist.store``. Cancelled, it leaves nothing open.

        Args:
            path: The file, on a file system that all ranks share.
            rank: Recorded with this process's id, so that later ranks can tell which ranks are
                present. None joins without a rank.
            timeout: How long to wait for the file's lock: seconds or a timedelta. None is a minute,
                ``math.inf`` no limit.

        Returns:
            The store.

        Raises:
            DistStoreError: Another running process holds the rank; the rank was recorded on
                another host or boot; the file belongs to no store, or cannot be opened.
        """
        log = FileLog(os.fspath(path))
        limit = deadline_of(timeout, _LOCK_SECONDS)
        try:
            for pause in pauses():
                log.open()
                with log.locked(exclusive=True) as held:
                    # The last user may have removed the file since: then open the present one.
                    if held and log.is_current():
                        me = Participant.current(rank)
                        _join(log, me)
                        return cls.__new__(cls)._begin(log, me)
                await _pause_for_lock(log.path, pause, limit)
            raise AssertionError("unreachable: pauses never end")
        except BaseException:
            log.close()
            raise

    async def set(self, key: str, value: bytes) -> None:
        name, data = text_key(key), check_value(value)
        await self._under_lock(lambda: self._log.append("set", name, data), exclusive=True)

    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        return (await self._values([key], deadline))[0]

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        await self._values(keys, deadline)

    async def add(self, key: str, amount: int) -> int:
        name, checked = text_key(key), whole_amount(amount)

        def change() -> int:
            total = self._log.table.sum(name, checked)
            self._log.append("set", name, b"%d" % total)
            return total

        return await self._under_lock(change, exclusive=True)

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        name, expected, desired = text_key(key), check_value(expected), check_value(desired)

        def change() -> bytes:
            if self._log.table.matches(name, expected):
                self._log.append("set", name, desired)
            value = self._log.table.get(name)
            return expected if value is None else value

        return await self._under_lock(change, exclusive=True)

    async def check(self, keys: Sequence[str]) -> bool:
        checked = list_of_keys(keys)
        return not await self._under_lock(lambda: self._log.table.missing(checked))

    async def delete_key(self, key: str) -> bool:
        name = text_key(key)

        def change() -> bool:
            there = self._log.table.get(name) is not None
            if there:
                self._log.append("delete", name)
            return there

        return await self._under_lock(change, exclusive=True)

    async def num_keys(self) -> int:
        return await self._under_lock(lambda: len(self._log.table))

    async def set_will(self, key: str, value: bytes) -> bool:
        # Other handles of this host that wait for keys carry the will out: they see this process end.
        name, data = text_key(key), check_value(value)
        await self._under_lock(
            lambda: self._log.append("will", self._me.token, name, data), exclusive=True
        )
        return True

    async def clear_will(self, key: str) -> None:
        name = text_key(key)
        await self._under_lock(
            lambda: self._log.append("clear_will", self._me.token, name), exclusive=True
        )

    def lock_holders(self) -> list[Participant]:
        """Return the participants of this host that hold the file's lock now, if the system tells.

        Raises DistStoreError as other operations do.
        """
        pids = self._log.lock_holders()
        if pids:
            self._log.refresh(exclusive=False)  # a process that holds the lock lets no other write
        here = self._me.host
        return [
            each for each in self._log.present.values() if each.host == here and each.pid in pids
        ]

    async def close(self) -> None:
        """Record that this handle has left; the last one removes the file. Idempotent.

        Calls that wait on this handle raise DistStoreError. Never raises. If cancelled, the handle
        is closed, and counts as present until this process ends.
        """
        if self._closed:
            return
        try:
            await self._under_lock(
                lambda: _leave(self._log, self._me), exclusive=True, within=_LEAVE_SECONDS
            )
        except DistStoreError as error:
            _log.debug("%s: left without a record: %s", self._log.path, error)
        finally:
            self._closed = True
            self._log.close()

    def close_in_child(self) -> None:
        self._closed = True
        self._log.close()

    async def _values(self, keys: Sequence[str], deadline: Deadline) -> list[bytes]:
        """Return the values of ``keys`` at a moment when all were set."""
        table = self._log.table

        def look() -> tuple[list[str], list[bytes]]:
            return table.missing(keys), [table.get(key) or b"" for key in keys]

        for pause in pauses():
            left = deadline.remaining()
            # One poll is made even if the deadline has passed.
            within = min(_LOCK_SECONDS, max(left, _LEAVE_SECONDS))
            missing, values = await self._under_lock(look, within=within)
            if not missing:
                return values
            if left <= 0:
                raise timed_out(missing, deadline)
            self._carry_out_wills()
            await asyncio.sleep(min(pause, left))
        raise AssertionError("unreachable: pauses never end")

    def _carry_out_wills(self) -> None:
        """Carry out the wills of dead participants from time to time, if the lock is free just then."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if any(other.is_dead() for other in neighbours(self._me, self._with_wills())):
            with self._log.locked(exclusive=True) as held:
                if held:
                    self._log.refresh(exclusive=True)
                    for other in self._with_wills():
                        if other.is_dead():
                            _leave_a_will(self._log, other)

    def _with_wills(self) -> list[Participant]:
        """Return the participants with a will, in an order on which all handles agree."""
        log = self._log
        return [
            log.present[token] for token, will in log.wills.items() if will and token in log.present
        ]

    async def _under_lock(
        self, action: Callable[[], T], *, exclusive: bool = False, within: float = _LOCK_SECONDS
    ) -> T:
        """Call ``action`` on the up-to-date table under the lock: no other handle writes meanwhile."""
        limit = Deadline(within)
        for pause in pauses():
            if self._closed:
                raise closed(f"the store in {self._log.path}")
            with self._log.locked(exclusive=exclusive) as held:
                if held:
                    self._log.refresh(exclusive=exclusive)
                    return action()
            await _pause_for_lock(self._log.path, pause, limit)
        raise AssertionError("unreachable: pauses never end")


async def _pause_for_lock(path: str, pause: float, limit: Deadline) -> None:
    if limit.expired():
        raise DistStoreError(
            f"could not lock the store's file {path} within {limit.timeout:g} s; a process that "
            "uses it may be stopped, or the file system's lock service may be down"
        )
    # A random pause, so that processes which met at the lock do not meet again.
    await asyncio.sleep(pause * random.uniform(0.5, 1.0))


def _join(log: FileLog, me: Participant) -> None:
    """Enter the file, afresh if no living process uses it. Call it under the exclusive lock."""
    if log.read_header():
        log.refresh(exclusive=True)
        present = list(log.present.values())
        if all(participant.is_dead() for participant in present):
            if present:
                _log.warning(
                    "%s was left over by a job that is dead: %s; starting the file afresh",
                    log.path,
                    ", ".join(participant.describe() for participant in present),
                )
            log.begin()
        else:
            check_admission(log.path, me, present)
    else:
        log.begin()
    log.append("join", me.token, me.rank, me.pid, me.host, me.started)


def _leave_a_will(log: FileLog, who: Participant) -> None:
    """Record that ``who`` leaves, and write its will. Call it under the exclusive lock."""
    wills = log.wills.get(who.token, {})
    log.append("left", who.token)
    for key, value in wills.items():
        if log.table.get(key) is None:
            log.append("set", key, value)


def _leave(log: FileLog, me: Participant) -> None:
    """Leave the file, and remove it if no living process uses it. Call it under the exclusive lock."""
    _leave_a_will(log, me)
    if all(other.is_dead() for other in log.present.values()) and log.is_current():
        log.remove()
