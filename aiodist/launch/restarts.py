"""Restart ranks: how often, which of them, and the store where replacements meet the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aiodist.credentials import Certificates
from aiodist.errors import DistStoreError
from aiodist.store import PrefixStore, TcpStoreServer

T = TypeVar("T")

ADDRESS = "127.0.0.1"
_ANSWER_SECONDS = 10.0


class Restarts:
    """The restarts that ``--max-restarts`` allows. A context manager, in which the store serves.

    The store lives in the launcher, so that it outlives every rank; without restarts there is no
    store. One thread runs it; the methods are for the launcher's own thread.
    """

    def __init__(self, limit: int, secret: bytes, certificates: Certificates | None = None) -> None:
        """Create a counter. ``secret``, ``certificates``: what the job's ranks show to the store."""
        self.limit = limit
        self.used = 0
        self._secret = secret
        self._certificates = certificates
        self._counts: dict[int, int] = {}
        self._elastic: set[int] = set()  # ranks whose script has registered, now or before
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: TcpStoreServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def left(self) -> int:
        """Return how many more starts are allowed."""
        return self.limit - self.used

    def variables(self, rank: int, *, replacement: bool) -> dict[str, str]:
        """Return the environment variables about restarts for ``rank``."""
        if self._server is None:
            return {}
        count = str(self._counts.get(rank, 0))
        found = {
            "AIODIST_REJOIN_STORE": f"{ADDRESS}:{self._server.port}",
            "AIODIST_RESTART_COUNT": count,
            # The names that scripts for torchrun read.
            "TORCHELASTIC_RESTART_COUNT": count,
            "TORCHELASTIC_MAX_RESTARTS": str(self.limit),
        }
        return found | ({"AIODIST_REPLACEMENT": "1"} if replacement else {})

    def may_replace(self, rank: int, others: Sequence[int]) -> bool:
        """Return whether ``rank`` alone can be restarted: all have registered that they support it.

        ``others``: the ranks that run. One of them must be a member that can take the new one in.
        Processes that wait to be taken in themselves cannot.
        """
        if self.left <= 0 or not others:
            return False
        members = self._do(self._registered([rank, *others]))
        self._elastic.update(members)
        return self._elastic.issuperset([rank, *others]) and not members.isdisjoint(others)

    def all_wait(self, ranks: Sequence[int]) -> bool:
        """Return whether all ``ranks`` wait in ``rejoin()`` to be taken in. False for no ranks."""
        if not ranks or not self.used:
            return False
        # The engine, which few launchers need: the thread of the store answers ranks meanwhile.
        from aiodist.api.rejoining import waiting_at

        return len(self._do(waiting_at(self._store(), ranks))) == len(ranks)

    def replace(self, rank: int) -> None:
        """Count a restart of ``rank``."""
        self.used += 1
        self._counts[rank] = self._counts.get(rank, 0) + 1
        self._do(self._forget([rank]))

    def start_over(self, ranks: Sequence[int]) -> None:
        """Count a restart of all ``ranks``."""
        self.used += 1
        self._elastic.clear()
        for rank in ranks:
            self._counts[rank] = self._counts.get(rank, 0) + 1
        self._do(self._forget(ranks))

    # -- the store

    def __enter__(self) -> Restarts:
        if self.limit:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="aiodist store")
            try:
                thread.start()
            except RuntimeError as error:
                loop.close()
                raise DistStoreError(
                    f"the launcher's own store, where ranks meet after a restart, has no thread: {error}; "
                    "raise the limit on processes and threads: ulimit -u"
                ) from error
            self._loop, self._thread = loop, thread
            try:
                serving = TcpStoreServer.start(
                    ADDRESS, secret=self._secret, certificates=self._certificates
                )
                self._server = self._do(serving)
            except BaseException:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(self, *error: object) -> None:
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(loop), loop)
        self._thread.join()
        loop.close()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._server is not None:
                await self._server.close()
        finally:
            loop.stop()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        """Return what the thread of the store returns. Raises DistStoreError if it does not answer."""
        assert self._loop is not None  # the callers have looked whether anything is left
        doing = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return doing.result(_ANSWER_SECONDS)
        except TimeoutError:
            doing.cancel()
            raise DistStoreError(
                "the launcher's own store, where ranks meet after a restart, did not answer within "
                f"{_ANSWER_SECONDS:g} s; see whether this host has memory and processors left"
            ) from None

    def _store(self) -> PrefixStore:
        assert self._server is not None  # as above
        return PrefixStore("rejoin", self._server.store())

    async def _registered(self, ranks: Sequence[int]) -> set[int]:
        """Return the ranks whose present process has registered."""
        store = self._store()
        return {rank for rank in ranks if await store.check([f"elastic/{rank}"])}

    async def _forget(self, ranks: Sequence[int]) -> None:
        """Delete the keys that ended processes have written."""
        store = self._store()
        for rank in ranks:
            await store.delete_key(f"elastic/{rank}")
            await store.delete_key(f"waits/{rank}")
