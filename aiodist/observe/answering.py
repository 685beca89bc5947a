"""Answer questions about a rank and handle SIGUSR1, from ``init_process_group`` on."""

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
from aiodist.observe.server import DEAF, Server
from aiodist.store import Store, exchange

log = logging.getLogger("aiodist")


async def answer_questions(
    observer: Observer | None, store: Store, host: str, deadline: Deadline
) -> None:
    """Start to answer. Ranks that are reached by TCP learn each other's addresses. All ranks must call it.

    ``host``: this rank's own address. If this rank cannot listen, the log says so, and it continues
    without. Raises what `exchange` raises, and then leaves nothing open.
    """
    if observer is None:
        return
    identity = observer.identity
    server = _listening(observer, None if identity.size == 1 or is_loopback(host) else host)
    addresses: dict[int, str] = {}
    try:
        if identity.size > 1:
            mine = b"" if server is None else server.address.encode()
            told = await exchange(
                store, identity.rank, identity.size, mine, deadline, name="observers"
            )
            addresses = {
                rank: address.decode()
                for rank, address in enumerate(told)
                if address and rank != identity.rank
            }
    except BaseException:
        if server is not None:
            server.close()
        raise
    _begin(observer, server, addresses)


def answer_here(observer: Observer | None) -> None:
    """Start to answer on this host only, for a rank that joins later. See `answer_questions`."""
    if observer is not None:
        _begin(observer, _listening(observer, None), {})


def _listening(observer: Observer, host: str | None) -> Server | None:
    try:
        return Server(observer, host)
    except OSError as error:
        log.warning(DEAF, error)
        return None


def _begin(observer: Observer, server: Server | None, addresses: Mapping[int, str]) -> None:
    if server is None:
        return
    try:
        server.start(addresses)
    except RuntimeError as error:
        log.warning(DEAF, error)
        server.close()
    else:
        observer.serves(server)
        heed_signal(observer)


class SignalHandler:
    """A handler of SIGUSR1 that makes ranks report what they do. Handlers may be chained."""

    def __init__(self, observer: Observer, before: Any) -> None:
        self._weak = weakref.ref(observer)  # a handler stays for ever
        self.before = before

    @property
    def observer(self) -> Observer | None:
        """Return the observer, or None once it is closed and in a forked child."""
        observer = self._weak()
        return None if observer is None or observer.is_closed else observer

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Wake the answering thread. Runs in the main thread, between any two steps of the program."""
        heeded = False
        each: Any = self
        while isinstance(each, SignalHandler):
            observer = each.observer
            if observer is not None:
                observer.signalled()
                heeded = True
            each = each.before
        if not heeded:  # restore the handler that was there before
            signal.signal(number, each)
            os.kill(os.getpid(), number)


def heed_signal(observer: Observer | None) -> None:
    """Handle SIGUSR1 in this process, if the program has no handler for it.

    Only the main thread may set handlers. In another thread this does nothing.
    """
    if observer is None or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGUSR1)
    while isinstance(before, SignalHandler) and before.observer is None:
        before = before.before
    if before is signal.SIG_DFL or isinstance(before, SignalHandler):
        signal.signal(signal.SIGUSR1, SignalHandler(observer, before))
