"""Answer questions about one rank in a separate thread, also while the rank's loop is busy.

The thread sleeps in a selector. Its work for a question is bounded in time, and it answers one
question after the other, so strangers can only delay an answer. On Linux it listens at a name in
the abstract namespace, which vanishes with the process. If the ranks are on several hosts, it also
listens on TCP, on the interface by which the others reach this rank.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import selectors
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic, monotonic_ns, sleep
from typing import Any

from aiodist.accept_loop import PAUSE_SECONDS
from aiodist.errors import DistError, ProtocolError
from aiodist.links.interfaces import family_of
from aiodist.observe.clock import estimate
from aiodist.observe.code_location import TURN_SECONDS
from aiodist.observe.observer import Observer
from aiodist.observe.query_protocol import (
    LONGEST_QUESTION,
    Line,
    ask_all,
    ask_here,
    ask_there,
    connected,
    is_trusted,
    peer_of,
)
from aiodist.observe.rank_report import ClockSample
from aiodist.transport.tcp import on_own_link

log = logging.getLogger("aiodist")

DEAF = "`aiodist why` will not hear of this rank: it cannot listen (%s)"
"""The warning of a rank for which no thread answers. It takes the reason."""

PREFIX = "aiodist-why"
RECENT = 32
"""Finished operations in an answer."""

QUESTION_SECONDS = 2.0
"""The most seconds for one question."""

RELAY_SECONDS = 30.0
"""The most seconds to wait for ranks on other hosts, whatever the question asks for."""

RELAYED = frozenset({"part", "usage"})
"""Questions that a rank passes on to ranks of other hosts."""

KEEP_SECONDS = 1.0
"""Interval at which a traced rank writes what would be left if it were killed."""

_PING_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


def socket_name(uid: int, job: str, rank: int, pid: int) -> str:
    """Return the name in the abstract namespace at which that rank answers."""
    return f"{PREFIX}/{uid}/{job}/{rank}-{pid}"


class Server:
    """The answering thread and its sockets. Every method may be called in any thread."""

    def __init__(self, observer: Observer, host: str | None) -> None:
        """Listen; with ``host`` also on TCP at this own address. Raises OSError."""
        # A weak reference, so that a world that was dropped without being closed can be collected.
        self._weak = weakref.ref(observer)
        self._addresses: Mapping[int, str] = {}
        self._pid = os.getpid()
        self._listeners: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._open: Line | None = None
        self._signalled: deque[str] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._tellers: list[threading.Thread] = []
        """Threads that ask the other ranks to dump: a rank that is asked may ask this one meanwhile."""
        self._host = ""
        self.address = ""
        weakref.finalize(observer, self._orphaned).atexit = False
        try:
            if sys.platform == "linux":
                here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._listeners.append(here)
                mine = observer.identity
                here.bind("\0" + socket_name(os.geteuid(), mine.job, mine.rank, mine.pid))
            if host is not None:
                family = family_of(host)
                # With the number of its interface.
                place = socket.getaddrinfo(host, 0, family)[0][4]
                there = socket.create_server(place, family=family)
                self._listeners.append(there)
                self._host = host
                self.address = f"{host.partition('%')[0]}:{there.getsockname()[1]}"
            for listener in self._listeners:
                listener.listen(16)
        except BaseException:
            self._close_sockets()
            raise

    def start(self, addresses: Mapping[int, str]) -> None:
        """Begin to answer. ``addresses``: of the ranks that are reached by TCP.

        Raises RuntimeError if no thread can start.
        """
        places = {rank: address.rpartition(":") for rank, address in addresses.items()}
        self._addresses = {
            rank: f"{on_own_link(host, self._host)}:{port}"
            for rank, (host, _, port) in places.items()
        }
        name = f"aiodist answers for rank {self._observer.identity.rank}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        self._thread = thread

    def signalled(self) -> None:
        """Handle SIGUSR1. May be called in a signal handler."""
        self._signalled.append("SIGUSR1")
        self._notify()

    def notify_others(self, reason: str) -> None:
        """Make the other ranks dump as well, including those that do not learn of the failure."""
        self._signalled.append(reason)
        self._notify()

    def close(self) -> None:
        """Stop answering; the thread ends. In a forked child, only release the sockets."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid() and self._thread is not None:
            self._notify()
            current = self._open
            if current is not None:
                current.cut()
            end = monotonic() + QUESTION_SECONDS
            self._thread.join(QUESTION_SECONDS)
            for teller in self._tellers:
                teller.join(max(0.0, end - monotonic()))
        self._close_sockets()

    @property
    def _observer(self) -> Observer:
        observer = self._weak()
        if observer is None:
            raise EOFError("the world that this speaks for is gone")
        return observer

    def _orphaned(self) -> None:
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        try:
            self._wake.send(b"!", socket.MSG_DONTWAIT)
        except OSError:
            pass  # full of wake-ups already, or closed

    def _close_sockets(self) -> None:
        for sock in (*self._listeners, self._wake, self._woken):
            sock.close()

    # -- the thread

    def _run(self) -> None:
        try:
            self._answer_all()
        except EOFError:
            pass  # orphaned
        except OSError as error:
            log.warning(DEAF, error)
        finally:
            self._close_sockets()

    def _answer_all(self) -> None:
        pause = _FIRST_PAUSE
        due = 0.0 if self._far_from_rank_0() else math.inf
        keep = monotonic() + KEEP_SECONDS if self._observer.keeps_a_trace else math.inf
        with selectors.DefaultSelector() as selector:
            for sock in (*self._listeners, self._woken):
                selector.register(sock, selectors.EVENT_READ)
            while not self._closed:
                if monotonic() >= due:
                    self._look_at_the_clock()
                    due, pause = monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)
                if monotonic() >= keep:
                    self._observer.keep_trace()
                    keep = monotonic() + KEEP_SECONDS
                left = min(due, keep) - monotonic()
                for key, _ in selector.select(None if math.isinf(left) else max(0.0, left)):
                    if key.fileobj is self._woken:
                        self._woken.recv(4096)
                        self._handle_safely()
                    elif not self._closed:
                        assert isinstance(key.fileobj, socket.socket)
                        self._serve(key.fileobj)

    def _serve(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            # Without a free descriptor the connection stays in the backlog: do not spin.
            sleep(PAUSE_SECONDS)
            return
        with Line(sock, QUESTION_SECONDS) as line:
            self._open = line
            try:
                if listener.family == socket.AF_UNIX:
                    if not is_trusted(peer_of(sock)[1]):
                        return
                else:
                    line.authenticate_as_server(self._observer.credentials)
                while not self._closed:
                    answer = self._answer(json.loads(line.receive(LONGEST_QUESTION)))
                    line.renew(QUESTION_SECONDS)
                    line.tell(answer)
            except (OSError, EOFError, ValueError, DistError):
                return  # the asker has gone, or does not belong to this job
            except Exception:  # the next question is answered all the same
                log.warning("a question about this rank has no answer", exc_info=True)
            finally:
                self._open = None

    def _answer(self, question: Any) -> bytes:
        """Return the answer. Raises ProtocolError for a question that this version does not know."""
        match question:
            case {"ask": "part"}:
                return self._observer.part("asked", self._stuck(), RECENT).encode()
            case {"ask": "usage", "seconds": float(seconds)}:
                return self._observer.usage(seconds).encode()
            case {"ask": "clock"}:
                return json.dumps(monotonic_ns()).encode()
            case {"ask": "ranks"}:
                return json.dumps([vars(each) for each in self._observer.all_ranks]).encode()
            case {"ask": "dump", "reason": str(reason)}:
                if self._observer.dumps_by_itself:
                    self._observer.dump_quietly(reason, self._stuck())
                return b"null"
            case {"ask": "relay", "ranks": [*ranks], "seconds": float(seconds), "to": {**question}}:
                return self._relay(ranks, seconds, question)
            case _:
                raise ProtocolError(f"a question that this version does not know: {question!r}")

    def _relay(self, ranks: list[int], seconds: float, question: dict[Any, Any]) -> bytes:
        """Put ``question`` to ranks on other hosts. Raises ProtocolError for one that is not passed on."""
        if question.get("ask") not in RELAYED:
            raise ProtocolError(f"a question that is not passed on: {question!r}")
        limit = min(seconds, RELAY_SECONDS)
        credentials = self._observer.credentials
        answers = ask_all(
            {
                rank: partial(ask_there, self._addresses[rank], credentials, question)
                for rank in ranks
                if rank in self._addresses
            },
            limit,
        )
        told = {
            rank: {"error": str(answer)}
            if isinstance(answer, BaseException)
            else json.loads(answer)
            for rank, answer in answers.items()
        }
        return json.dumps(told).encode()

    def _stuck(self) -> float:
        """Return for how many seconds, at least, the loop has not turned; 0.0 if it turns."""
        turned = threading.Event()
        try:
            self._observer.loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return 0.0  # it has ended
        return 0.0 if turned.wait(TURN_SECONDS) else TURN_SECONDS

    def _handle_safely(self) -> None:
        """Handle signals, and log an error: questions are answered all the same."""
        try:
            self._handle_signals()
        except EOFError:
            raise  # orphaned
        except Exception:  # as of a stderr that has no reader
            log.warning("a signal to this rank has no effect", exc_info=True)

    def _handle_signals(self) -> None:
        # One by one: another thread, or a handler, may append meanwhile.
        reasons = [self._signalled.popleft() for _ in range(len(self._signalled))]
        for reason in dict.fromkeys(reasons):
            here = reason == "SIGUSR1"
            if here:
                reason = f"SIGUSR1 came to rank {self._observer.identity.rank}"
                self._observer.asked(reason, self._stuck())
            if self._observer.dumps_by_itself:
                self._ask_others_to_dump(reason)

    def _ask_others_to_dump(self, reason: str) -> None:
        question = {"ask": "dump", "reason": reason}
        mine = self._observer.identity
        calls: dict[int, Callable[[float], bytes]] = {}
        for other in self._observer.all_ranks:
            rank = other.rank
            if rank in self._addresses:
                address, credentials = self._addresses[rank], self._observer.credentials
                calls[rank] = partial(ask_there, address, credentials, question)
            elif rank != mine.rank:
                name = socket_name(os.geteuid(), mine.job, rank, other.pid)
                calls[rank] = partial(ask_here, name, question)

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # no thread starts while the interpreter ends
                ask_all(calls, QUESTION_SECONDS)

        teller = threading.Thread(
            target=ask, name=f"aiodist asks for rank {mine.rank}", daemon=True
        )
        teller.start()
        self._tellers = [*(each for each in self._tellers if each.is_alive()), teller]

    # -- the clock

    def _far_from_rank_0(self) -> bool:
        mine = self._observer.identity
        if any(
            each.rank == 0 and each.host_id == mine.host_id for each in self._observer.all_ranks
        ):
            self._observer.samples.append(ClockSample(monotonic_ns(), 0, 0))
            return False
        return 0 in self._addresses

    def _look_at_the_clock(self) -> None:
        """Estimate the offset of rank 0's clock. The first and the last estimate are kept."""
        question = json.dumps({"ask": "clock"}).encode()
        try:
            with connected(self._addresses[0], self._observer.credentials, _PING_SECONDS) as line:

                def ask() -> int:
                    line.tell(question)
                    return int(line.receive(64))

                sample = estimate(ask)
        except (OSError, EOFError, ValueError, DistError):
            return
        self._observer.samples[1:] = [sample]
