"""The client of the TCP store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any, Self

from aiodist.credentials import Certificates, secret_and_certificates
from aiodist.deadline import Deadline, to_seconds
from aiodist.errors import DistStoreError, InvalidUsageError
from aiodist.store.addresses import show
from aiodist.store.base_store import (
    Store,
    Timeout,
    deadline_of,
    list_of_keys,
    text_key,
    whole_amount,
)
from aiodist.store.tcp_connect import Stream, connect
from aiodist.store.tcp_greeting import Learn
from aiodist.store.tcp_wire import FAREWELL, MAX_FRAME, close_inherited, pack, read_message
from aiodist.store.waiting import check_value, closed, limit, timed_out
from aiodist.unpicklable import Unpicklable

CALL_SECONDS = 300.0
_CANCEL_SECONDS = 5.0

_Reply = tuple[bool, Any]
"""Whether the call succeeded, and its value or its error (a text if the server sent it)."""


class TcpStore(Unpicklable, Store):
    """A connection to a `TcpStoreServer`. Make it with `connect`.

    Calls are pipelined: many can be in progress at once. Waiting happens in the server. When the
    connection breaks, every call in progress and every later one raises DistStoreError; connect
    again to go on. In another event loop than that of `connect` calls raise InvalidUsageError.
    """

    def __init__(self, *_: object, **__: object) -> None:
        """Raise TypeError: `connect` makes a store."""
        raise TypeError(
            "a TcpStore needs a connection: make it with `await TcpStore.connect(host, port)`"
        )

    def _begin(self, name: str, stream: Stream, call_timeout: float, max_frame: int) -> Self:
        """Initialize this store on an open stream, and return it."""
        self._name = name
        self._reader, self._writer = stream
        self._call_timeout = call_timeout
        self._max_frame = max_frame
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[_Reply]] = {}
        self._closed = False
        self._cause: Exception | None = None
        self._dismissed = False  # the server has said that it ends
        self._keeper = ("", 0)
        self._task = asyncio.get_running_loop().create_task(self._read())
        return self

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        timeout: Timeout = None,
        *,
        secret: bytes | None = None,
        call_timeout: float = CALL_SECONDS,
        max_frame: int = MAX_FRAME,
        certificates: Certificates | None = None,
        once: bool = False,
        learn: Learn | None = None,
    ) -> TcpStore:
        """Connect to a server, again and again until ``timeout`` has passed if none listens yet.

        Args:
            host: The server's address or name.
            port: The server's port.
            timeout: Seconds or a timedelta; None is 5 minutes, ``math.inf`` no limit.
            secret: The job's, equal to the server's. None is that of AIODIST_SECRET or
                AIODIST_SECRET_FILE, with the certificates of AIODIST_TLS_CERT and its like.
            call_timeout: Seconds after which a call that does not wait for keys counts as failed.
            max_frame: Bytes of the longest message.
            certificates: Connect by TLS; the server has certificates too.
            once: Whether to try only once.
            learn: Ask the server for its credential, and use what this returns instead of
                ``secret``. Its DistStoreError ends the attempts.

        Returns:
            The store.

        Raises:
            DistStoreError: The name does not resolve, or another program answers there.
            StoreTimeoutError: The time has passed. It has the last attempt's reason, and that as
                its cause where there was an answer.
        """
        seconds = to_seconds(call_timeout) or CALL_SECONDS
        deadline = deadline_of(timeout, cls.timeout)
        secret, certificates = secret_and_certificates(secret, certificates, os.environ)
        stream = await connect(host, port, deadline, secret, certificates, once=once, learn=learn)
        return cls.__new__(cls)._begin(show(host, port), stream, seconds, max_frame)

    async def set(self, key: str, value: bytes) -> None:
        await self._call("set", text_key(key), check_value(value))

    async def get_until(self, key: str, deadline: Deadline) -> bytes:
        value: bytes = await self._wait("get", [key], deadline)
        return value

    async def wait_until(self, keys: Sequence[str], deadline: Deadline) -> None:
        await self._wait("wait", list(keys), deadline)

    async def add(self, key: str, amount: int) -> int:
        total: int = await self._call("add", text_key(key), whole_amount(amount))
        return total

    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        value: bytes = await self._call(
            "compare_set", text_key(key), check_value(expected), check_value(desired)
        )
        return value

    async def check(self, keys: Sequence[str]) -> bool:
        return not await self._call("missing", list_of_keys(keys))

    async def delete_key(self, key: str) -> bool:
        deleted: bool = await self._call("delete", text_key(key))
        return deleted

    async def num_keys(self) -> int:
        count: int = await self._call("count")
        return count

    async def set_will(self, key: str, value: bytes) -> bool:
        host, pid = await self._call("set_will", text_key(key), check_value(value))
        self._keeper = (host, pid)
        return True

    async def clear_will(self, key: str) -> None:
        await self._call("clear_will", text_key(key))

    @property
    def lost_server(self) -> tuple[str, int] | None:
        """Return the server's host name and process id if it is gone without a goodbye, else None.

        It has died in that case, or the connection was cut. The result is empty and 0 if no will
        was ever set.
        """
        cut = isinstance(self._cause, asyncio.IncompleteReadError | OSError)
        return self._keeper if cut and not self._dismissed and not self._closed else None

    async def close(self) -> None:
        """Drop the connection; calls in progress raise DistStoreError. Idempotent; never raises.

        In another event loop it returns at once, and the store's own loop drops the connection.
        """
        loop = self._task.get_loop()
        if loop is not asyncio.get_running_loop():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(self._end)
            return
        self._end()
        await asyncio.wait({self._task})
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    def close_in_child(self) -> None:
        self._closed = True
        close_inherited([self._writer])

    async def _call(self, operation: str, *arguments: Any, within: float | None = None) -> Any:
        seconds = self._call_timeout if within is None else within
        number, future = self._send(operation, arguments)
        try:
            await asyncio.wait({future}, timeout=seconds)
            if future.done():
                return self._value(future)
        finally:
            self._calls.pop(number, None)
        raise DistStoreError(
            f"the store at {self._name} did not answer {operation!r} within {seconds:g} s; see "
            "whether the process that hosts it still runs"
        )

    async def _wait(self, operation: str, keys: list[str], deadline: Deadline) -> Any:
        number, future = self._send(operation, (keys,))
        # The deadline limits the wait for keys. The round trip needs time even if it has passed.
        left = limit(deadline)
        try:
            await asyncio.wait({future}, timeout=left)
            if future.done():
                return self._value(future)
            try:
                missing = await self._call("cancel", number, within=_CANCEL_SECONDS)
            except DistStoreError as error:
                raise timed_out(keys, deadline) from error
            # Answers come in order: a value that was set in time has arrived before this one.
            if future.done():
                return self._value(future)
            raise timed_out(missing, deadline)
        except asyncio.CancelledError:
            if number in self._calls and self._cause is None and not self._closed:
                self._send("cancel", (number,))
            raise
        finally:
            self._calls.pop(number, None)

    def _send(
        self, operation: str, arguments: tuple[Any, ...]
    ) -> tuple[int, asyncio.Future[_Reply]]:
        if self._closed or self._cause is not None:
            raise self._failure()
        loop = self._task.get_loop()
        if asyncio.get_running_loop() is not loop:
            raise InvalidUsageError(
                f"the connection to the store at {self._name} belongs to another event loop: call it there "
                "(by asyncio.run_coroutine_threadsafe from other threads), or connect again in this one"
            )
        number = next(self._numbers)
        frame = pack((number, operation, *arguments), self._max_frame)
        future: asyncio.Future[_Reply] = loop.create_future()
        self._calls[number] = future
        self._writer.write(frame)
        return number, future

    def _value(self, future: asyncio.Future[_Reply]) -> Any:
        ok, value = future.result()
        if ok:
            return value
        if isinstance(value, DistStoreError):
            raise value
        raise DistStoreError(value)

    async def _read(self) -> None:
        try:
            while True:
                number, ok, value = await read_message(self._reader, self._max_frame)
                self._dismissed = self._dismissed or number == FAREWELL
                future = self._calls.pop(number, None)
                if future is not None and not future.done():
                    future.set_result((ok, value))
        except (asyncio.IncompleteReadError, OSError, DistStoreError, ValueError) as error:
            self._cause = error
        except asyncio.CancelledError:
            # By `close`, or by the end of the loop: no answer is read any more.
            self._closed = True
            raise
        finally:
            self._drop()

    def _end(self) -> None:
        self._closed = True
        self._drop()
        self._task.cancel()

    def _drop(self) -> None:
        # Do not call close(), which would first wait for a server that reads no more.
        self._writer.transport.abort()
        for future in self._calls.values():
            if not future.done():
                future.set_result((False, self._failure()))

    def _failure(self) -> DistStoreError:
        if self._closed or self._cause is None:
            return closed(f"the connection to the store at {self._name}")
        if isinstance(self._cause, asyncio.IncompleteReadError):
            why = "the other side closed it; the process that hosts the store has left or ended"
        else:
            why = str(self._cause)
        error = DistStoreError(f"the connection to the store at {self._name} was lost: {why}")
        error.__cause__ = self._cause
        return error
