"""A blocked thread drives the engine while the loop's thread stands still."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from aiodist.sync.loop_handoff import Interrupts, LoopHandoff
from aiodist.sync.portal import Portal


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0)


def acquired(loop: asyncio.AbstractEventLoop, handoff: LoopHandoff) -> None:
    """The loop stands still, and this thread drives."""
    until(
        lambda: (loop.call_soon_threadsafe(handoff.park), time.sleep(1e-4), handoff.acquire())[-1]
    )


def test_a_loop_that_runs_cannot_be_acquired(loop: asyncio.AbstractEventLoop) -> None:
    assert not LoopHandoff().acquire()


def test_the_loop_waits_for_the_thread_that_drives(loop: asyncio.AbstractEventLoop) -> None:
    handoff = LoopHandoff()
    acquired(loop, handoff)
    went_on = threading.Event()
    loop.call_soon_threadsafe(went_on.set)
    assert not went_on.wait(0.02)  # longer than it would linger
    assert not handoff.acquire()  # one thread at a time
    handoff.give_back()
    assert went_on.wait(10)
    until(lambda: not handoff.acquire())


class Turn:
    """A lock that knows which threads have asked for it, and how often one has only looked."""

    def __init__(self) -> None:
        self.askers: set[int] = set()
        self.looks = 0
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        self.askers.add(threading.get_ident())
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        self.looks += 1
        return self._lock.locked()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_the_loop_does_not_interrupt_the_thread_that_drives_it(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """The loop would be handed over between two calls, and the second would find it taken."""
    handoff = LoopHandoff()
    turn = Turn()
    handoff._turn = turn  # type: ignore[assignment]  # as much of a lock as a loop handoff uses
    acquired(loop, handoff)
    turn.askers.clear()
    until(lambda: turn.looks > 2)  # so often it has wondered whether to go on
    assert turn.askers == set()
    handoff.resume()


def test_a_recalled_loop_continues_at_once_and_cannot_be_acquired_again(
    loop: asyncio.AbstractEventLoop,
) -> None:
    handoff = LoopHandoff()
    acquired(loop, handoff)
    handoff.resume()
    assert not handoff.acquire()


def test_the_loop_does_not_park_while_a_call_arrives(loop: asyncio.AbstractEventLoop) -> None:
    handoff = LoopHandoff()
    handoff.expect()
    stood = threading.Event()
    loop.call_soon_threadsafe(lambda: (handoff.park(), stood.set()))
    assert stood.wait(10)
    assert not handoff.acquire()
    handoff.arrived()
    acquired(loop, handoff)
    handoff.resume()


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    interrupts = Interrupts(threading.main_thread().ident)
    yield interrupts
    interrupts.retire()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_waits_until_the_engine_is_left(interrupts: Interrupts) -> None:
    steps = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # where it is raised is the point
            assert interrupts.hold()
            signal.raise_signal(signal.SIGINT)
            steps.append("driven to the end")
            interrupts.release()
            steps.append("never reached")
    assert steps == ["driven to the end"] * 2
    assert interrupts.hold()
    interrupts.release()  # nothing has come this time


def test_ctrl_c_strikes_at_once_between_calls(interrupts: Interrupts) -> None:
    for _ in range(2):
        assert interrupts.hold()
        interrupts.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_is_held_already_is_let_once(interrupts: Interrupts) -> None:
    """By a call that another signal's handler makes while the engine is driven."""
    assert interrupts.hold()
    try:
        assert not interrupts.hold()
    finally:
        interrupts.release()
    assert interrupts.hold()
    interrupts.release()


@pytest.mark.parametrize("before", [False, True], ids=["set later", "set before"])
def test_a_handler_of_the_program_stays_and_is_deferred_too(
    interrupts: Interrupts, before: bool
) -> None:
    came = []

    def own(number: int, frame: object) -> None:
        came.append(number)

    if not before:
        assert interrupts.hold()
        interrupts.release()
    replaced = signal.signal(signal.SIGINT, own)
    try:
        for n_calls in (1, 2):
            assert interrupts.hold()
            assert not interrupts.hold()
            signal.raise_signal(signal.SIGINT)
            assert len(came) == n_calls - 1
            interrupts.release()
            assert len(came) == n_calls
            assert signal.getsignal(signal.SIGINT) is own
        interrupts.retire()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, replaced)
    assert interrupts.hold()
    interrupts.release()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert came == [signal.SIGINT] * 2


def test_an_ignored_ctrl_c_stays_ignored(interrupts: Interrupts) -> None:
    replaced = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        interrupts.release()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, replaced)


def test_in_other_threads_there_is_nothing_to_hold(interrupts: Interrupts) -> None:
    assert interrupts.hold()
    interrupts.release()
    ours = signal.getsignal(signal.SIGINT)
    done = []

    def run() -> None:
        done.append(interrupts.hold())
        interrupts.retire()
        done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [False, ours]


def test_a_forked_child_has_pythons_own_handler() -> None:
    portal = Portal()
    portal.enter()
    assert portal._handoff.interrupts.hold()
    portal._handoff.interrupts.release()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    child = get_context("fork").Process(target=_exit_by_handler)
    child.start()
    child.join()
    portal.leave()
    assert child.exitcode == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _exit_by_handler() -> None:
    raise SystemExit(7 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 8)


def test_ctrl_c_leaves_no_loop_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes in the very moment in which a call has borrowed the loop."""
    portal = Portal()
    handoff, loop = portal._handoff, portal.enter()
    acquire = handoff.acquire

    def struck() -> bool:
        acquired = acquire()
        signal.raise_signal(signal.SIGINT)
        return acquired

    ended = SimpleNamespace(is_completed=lambda: True, result=lambda: None)
    try:
        until(
            lambda: (loop.call_soon_threadsafe(handoff.park), time.sleep(1e-4), handoff._parked)[-1]
        )
        monkeypatch.setattr(handoff, "acquire", struck)
        with pytest.raises(KeyboardInterrupt):
            portal.call(lambda: ended, True)
        assert not handoff._turn.locked()
    finally:
        portal.leave()
