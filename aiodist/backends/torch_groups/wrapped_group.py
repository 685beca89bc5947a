"""One of torch's process groups beside one of ours: its thread, its life, its operations."""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from aiodist.backends.torch_groups.kinds import Here, Lanes, TorchKind
from aiodist.backends.torch_groups.store import BlockingStore
from aiodist.completion import Pending
from aiodist.errors import DistBackendError, DistError
from aiodist.groups.group_engine import GroupEngine
from aiodist.store.prefix import PrefixStore
from aiodist.worker_thread import Worker

OPEN_SECONDS = 300.0
"""How long a rank looks for the others where the group has no timeout of its own."""

_LAST_SECONDS = 5.0
_LOOK_SECONDS = 1e-3

_MARGIN = 30.0
"""Seconds by which torch's own timeout is longer than aiodist's, which names the missing ranks and
tells the others."""

_LONGEST = timedelta(days=365).total_seconds()
"""torch knows no operation without a limit."""


class Running:
    """A started operation of torch. ``over`` completes when it has ended."""

    def __init__(self, group: WrappedGroup, what: str) -> None:
        self.over: Pending[None] = Pending()
        self._group = group
        self._what = what
        self._turn = threading.Lock()  # held while the end is written, so that leaving waits for it
        self._left = False

    def unless_left(self, finish: Callable[[], None]) -> Callable[[], None]:
        """Return ``finish``, which does nothing once the operation was abandoned. Any thread."""

        def once() -> None:
            with self._turn:
                if not self._left:
                    finish()

        return once

    def ended(self, error: BaseException | None) -> None:
        """Complete ``over``: torch has ended the operation."""
        self._group.under_way -= 1
        if error is None:
            self.over.complete(None)
        elif isinstance(error, DistError):
            self.over.fail(error)
        else:
            text = f"{self._what} failed in {self._group.name}: {error}"
            self.over.fail(DistBackendError(self._group.explain(text)))

    def leave(self) -> None:
        """Write nothing any more, and give the torch group up: the operation ended without torch."""
        with self._turn:
            self._left = True
        self._group.give_up()


class WrappedGroup:
    """A torch group of the same ranks, or of some of them. Everything here is called on the loop.

    torch's calls are made by one thread, in the order of ours: to build the group and to start
    NCCL's first operation takes as long as the slowest rank. Made, it begins to build.
    """

    def __init__(
        self, kind: TorchKind, group: GroupEngine, members: Sequence[int] | None = None
    ) -> None:
        """``members``: their numbers in ``group``, this rank's among them; None for all."""
        self.name = kind.name
        self.explain = kind.explain
        self._kind = kind
        self._group = group
        self._loop = group.world.loop
        self._caller = Worker(f"aiodist-{kind.name}")
        self._waiter = Worker(f"aiodist-{kind.name}-waiter")
        self._torch: Any = None
        self._lanes: Lanes = {}
        # Collectives that may not begin yet, and those behind them.
        self._waiting: deque[tuple[Pending[bool], Callable[[], None]]] = deque()
        # Operations of which a part did not start. Their tensors are kept until torch has given the group
        # up: a device may use them.
        self._remains: list[Any] = []
        self._error: DistError | None = None
        self._closed = False
        self._turn = threading.Lock()
        self._endings: list[Callable[[], bool]] = []
        group.world.on_close(self.gone, self._leave_to_parent, self._is_over)
        self.under_way = 0
        self.opened: Pending[None] = Pending()
        """Done when the group is built, or cannot be: `check` tells which."""
        seconds = OPEN_SECONDS if group.timeout is None else group.timeout
        store = group.world.store
        assert store is not None  # the world is open
        prefix = f"torch/{group.id:016x}"
        if members is None:
            members = range(group.size)
        else:
            prefix += f"/{'-'.join(map(str, members))}"
        ranks = [group.ranks[number] for number in members]
        rank, size = members.index(group.rank), len(members)
        place = BlockingStore(PrefixStore(prefix, store), self._loop, seconds)
        # torch keeps the C++ half alone, and asks it again later: NCCL at the first operation.
        self._place = place
        options = group.spec.options
        self._longest = seconds
        """The longest timeout of an operation so far, after which torch's own comes."""

        def build() -> None:
            try:
                kind.meet(place, ranks, rank, group.spec.device)
                made = kind.build(place, rank, size, seconds + _MARGIN, options)
                with self._turn:
                    self._torch = None if self._closed else made
                del made  # given back here, if it comes too late
            except DistError as error:
                self._error = error
            except Exception as error:  # noqa: BLE001  # torch's classes say nothing; its text does
                text = f"{self.name} could not be started: {error}"
                self._error = DistBackendError(text)
            self._post(self.opened.complete, None)

        self._caller.put(build)

    def check(self) -> None:
        """Raise why the torch group could not be built, if that is so."""
        if self._error is not None:
            raise self._error.again()

    def start(
        self,
        stage: Callable[[], None],
        issue: Callable[[Any], Any],
        finish: Callable[[], None],
        here: Callable[[Lanes], Here],
        what: str,
        timeout: float | None,
        may_begin: Pending[bool] | None = None,
    ) -> Running:
        """Have ``stage()``, torch's work ``issue(torch group)`` and ``finish()`` follow each other.

        They run in other threads, the first two inside ``here`` (of `TorchKind.here`), after all
        that was started before; the third where the kind follows the work. ``what``: the operation's
        name. ``timeout``: the operation's in seconds, the group's where None. ``may_begin``: what a
        collective waits for, and with it the collectives behind it; None for a message.
        """
        seconds = self._group.timeout if timeout is None else timeout
        running = Running(self, what)
        self.under_way += 1
        # The device uses the tensors of these functions until the end. If they were dropped before, the
        # caller could use the memory again, and the caller's stream does not wait for this operation.
        kept = [stage, issue, finish]

        def done(error: BaseException | None) -> None:
            nonlocal kept
            kept = []
            self._post(running.ended, error)

        def job() -> None:
            try:
                if self._torch is None:
                    self.check()
                    raise DistBackendError(f"{self.name} is not there any more")
                if may_begin is not None and not may_begin.value:
                    raise DistBackendError("it was given up before it began")
                self._let_last(math.inf if seconds is None else seconds)
                with here(self._lanes):
                    try:
                        stage()
                        work = issue(self._torch)
                        follow = running.unless_left(finish)
                        self._kind.follow(work, follow, self._loop, self._waiter, done)
                    except Exception:
                        self._remains.append(kept)
                        raise
            except Exception as error:  # noqa: BLE001  # torch's: handed on
                done(error)

        if may_begin is None:
            self._caller.put(job)
        else:
            self._waiting.append((may_begin, job))
            may_begin.callback = self._put_waiting
            self._put_waiting()
        return running

    def _put_waiting(self) -> None:
        while self._waiting and self._waiting[0][0].done:
            self._caller.put(self._waiting.popleft()[1])

    def _let_last(self, seconds: float) -> None:
        """Have torch's timeout, which is one for all collectives, come after ``seconds``, that of one.

        Messages of Gloo keep the timeout with which the group was made.
        """
        if seconds > self._longest:
            limit = min(seconds + _MARGIN, _LONGEST)
            self._torch._set_default_timeout(timedelta(seconds=limit))
            self._longest = seconds

    def give_up(self) -> None:
        """Fail what is under way in the torch group, and write nothing to tensors any more.

        An operation failed or was cancelled half way, and torch cannot take it back.
        """
        self._end(abort=True)

    def close(self) -> None:
        """Give the torch group back. Idempotent; does not wait."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._end(abort=self.under_way > 0)
            self._caller.close()
            self._waiter.close()

    def _end(self, *, abort: bool) -> None:
        with self._turn:
            group, self._torch = self._torch, None
        if group is None:
            return
        place: Any = self._place

        def end() -> None:
            nonlocal group, place
            with suppress(Exception):  # it is released in any case, without a caller
                group.abort() if abort else group.shutdown()
            self._remains.clear()
            group = None  # here, since torch joins its own threads then
            place = None  # after them: they ask it

        # Not in the caller's thread, which may be the one that is stuck.
        ending = threading.Thread(target=end, name=f"aiodist-{self.name}-end", daemon=True)
        self._endings.append(ending.is_alive)
        ending.start()

    async def gone(self) -> None:
        """Return when torch's threads have ended, or after some seconds.

        A process that ends before them may crash: torch's destructors wait for the interpreter.
        """
        end = self._loop.time() + _LAST_SECONDS
        while self._loop.time() < end and self._has_threads():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)  # threads have no event to await

    def _has_threads(self) -> bool:
        alive = [self._caller.is_alive, self._waiter.is_alive, *self._endings]
        return any(is_alive() for is_alive in alive)

    def _is_over(self) -> bool:
        return self._closed and not self._has_threads()

    def _leave_to_parent(self) -> None:
        # In a forked child. torch's destructor would wait for threads that only the parent has,
        # so the group stays for as long as the child lives.
        if self._torch is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._torch))

    def _post(self, function: Callable[[Any], object], value: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it all waiting tasks
            self._loop.call_soon_threadsafe(function, value)
