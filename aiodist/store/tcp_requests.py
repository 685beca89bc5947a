"""Answer the requests of one client of the TCP store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from aiodist.errors import DistStoreError
from aiodist.procfs import host_name
from aiodist.store.table import KeyTable, Watch
from aiodist.store.tcp_wire import FAREWELL, pack


class Client:
    """One client's requests, answered from the table. Belongs to the server's loop."""

    def __init__(self, table: KeyTable, writer: asyncio.StreamWriter, max_frame: int) -> None:
        self._table = table
        self._writer = writer
        self._max_frame = max_frame
        self._watches: dict[int, Watch] = {}
        self._wills: dict[str, bytes] = {}
        self._dismissed = False
        self._operations: dict[str, tuple[Callable[..., Any], tuple[type, ...]]] = {
            "set": (table.set, (str, bytes)),
            "add": (table.add, (str, int)),
            "compare_set": (table.compare_set, (str, bytes, bytes)),
            "missing": (table.missing, (list,)),
            "delete": (table.delete, (str,)),
            "count": (table.__len__, ()),
            "cancel": (self._cancel, (int,)),
            "set_will": (self._set_will, (str, bytes)),
            "clear_will": (self._clear_will, (str,)),
        }

    def handle(self, message: list[Any]) -> None:
        """Answer one request, now or when its keys are set."""
        number, operation, *arguments = message
        if operation in ("get", "wait"):
            _check(operation, arguments, (list,))
            self._wait(number, arguments[0], with_value=operation == "get")
            return
        if not isinstance(operation, str) or operation not in self._operations:
            raise DistStoreError(f"it asks for the operation {operation!r}, which is not known")
        method, types = self._operations[operation]
        _check(operation, arguments, types)
        try:
            value = method(*arguments)
        except DistStoreError as error:
            self._answer(number, False, str(error))
        else:
            self._answer(number, True, value)

    def drop(self) -> None:
        """Cancel the waits of a client that is gone, and carry out its wills."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        wills, self._wills = self._wills, {}
        for key, value in wills.items():
            if self._table.get(key) is None:
                self._table.set(key, value)

    def close_with_goodbye(self) -> None:
        """Send the goodbye of the server, and drop the client's wills."""
        self._wills.clear()
        self._dismissed = True
        self._answer(FAREWELL, True, None)

    def _wait(self, number: int, keys: list[str], *, with_value: bool) -> None:
        fired = False

        def ready() -> None:
            nonlocal fired
            fired = True
            self._watches.pop(number, None)
            self._answer(number, True, self._table.get(keys[0]) if with_value else None)

        watch = self._table.watch(keys, ready)
        if not fired:
            self._watches[number] = watch

    def _cancel(self, number: int) -> list[str]:
        watch = self._watches.pop(number, None)
        if watch is None:
            return []
        missing = watch.missing()
        watch.cancel()
        return missing

    def _set_will(self, key: str, value: bytes) -> list[Any]:
        if not self._dismissed:
            self._wills[key] = value
        return [host_name(), os.getpid()]

    def _clear_will(self, key: str) -> None:
        self._wills.pop(key, None)

    def _answer(self, number: int, ok: bool, value: Any) -> None:
        if self._writer.is_closing():
            return
        try:
            frame = pack((number, ok, value), self._max_frame)
        except DistStoreError as error:
            frame = pack((number, False, str(error)), self._max_frame)
        self._writer.write(frame)


def _check(operation: str, arguments: list[Any], types: tuple[type, ...]) -> None:
    good = len(arguments) == len(types) and all(map(isinstance, arguments, types))
    if good and types == (list,):
        good = all(isinstance(key, str) for key in arguments[0])
        good = good and (operation != "get" or len(arguments[0]) == 1)
    if not good:
        raise DistStoreError(f"its request {operation!r} has the wrong arguments")
