"""From ``init_process_group`` on, a rank answers questions and heeds SIGUSR1."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

from aiodist.deadline import Deadline
from aiodist.links.interfaces import is_loopback
from aiodist.observe.observer import Observer
from aiodist.observe.server import Server
from aiodist.store import Store, exchange

log = logging.getLogger("aiodist")


async def answer_questions(
    observer: Observer | None, store: Store, host: str, deadline: Deadline
) -> None:
    """Start to answer; ranks that are reached by TCP learn each other's addresses.

    ``host``: this rank's own address. All ranks call it. Where this one cannot listen the log says
    so, and it goes on without. Raises what `exchange` does, and leaves nothing open then.
    """
    if observer is None:
        return
    who = observer.identity
    server = _listening(observer, None if who.size == 1 or is_loopback(host) else host)
    addresses: dict[int, str] = {}
    try:
        if who.size > 1:
            mine = b"" if server is None else server.address.encode()
            told = await exchange(store, who.rank, who.size, mine, deadline, name="observers")
            addresses = {
                rank: address.decode()
                for rank, address in enumerate(told)
                if address and rank != who.rank
            }
    except BaseException:
        if server is not None:
            server.close()
        raise
    _begin(observer, server, addresses)


def answer_here(observer: Observer | None) -> None:
    """As `answer_questions`, for a rank that comes later than the others: on this host only."""
    if observer is not None:
        _begin(observer, _listening(observer, None), {})


def _listening(observer: Observer, host: str | None) -> Server | None:
    try:
        return Server(observer, host)
    except OSError as error:
        log.warning("`aiodist why` will not hear of this rank: it cannot listen (%s)", error)
        return None


def _begin(observer: Observer, server: Server | None, addresses: Mapping[int, str]) -> None:
    if server is not None:
        server.start(addresses)
        observer.serves(server)
        heed_signal(observer)


class SignalHandler:
    """A handler of SIGUSR1 that makes ranks tell what they do. Handlers may follow each other."""

    def __init__(self, observer: Observer, before: Any) -> None:
        self._weak = weakref.ref(observer)  # a handler stays for ever
        self.before = before

    @property
    def observer(self) -> Observer | None:
        """Who tells; None once it is closed, and in a forked child."""
        observer = self._weak()
        return None if observer is None or observer.is_closed else observer

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between any two steps of the program: it only wakes threads."""
        heeded = False
        each: Any = self
        while isinstance(each, SignalHandler):
            observer = each.observer
            if observer is not None:
                observer.signalled()
                heeded = True
            each = each.before
        if not heeded:  # as if it had never been there
            signal.signal(number, each)
            os.kill(os.getpid(), number)


def heed_signal(observer: Observer | None) -> None:
    """Let SIGUSR1 make this rank tell what it does, where the program has no use for it.

    Only the main thread may set handlers; elsewhere, and where there is one, this does nothing.
    """
    if observer is None or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGUSR1)
    while isinstance(before, SignalHandler) and before.observer is None:
        before = before.before
    if before is signal.SIG_DFL or isinstance(before, SignalHandler):
        signal.signal(signal.SIGUSR1, SignalHandler(observer, before))
