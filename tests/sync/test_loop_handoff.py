"""A blocked thread drives the engine while the loop's thread sleeps."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from aiodist.errors import DistError, InvalidUsageError
from aiodist.sync import loop_handoff
from aiodist.sync.loop_handoff import LONGEST_LINGER, HandoffLoop, Interrupts, LoopHandoff
from aiodist.sync.portal import Portal
from tests.limits import scaled


@pytest.fixture
def handoff(request: pytest.FixtureRequest) -> Iterator[LoopHandoff]:
    """That of a loop that runs in a thread, in the attribute ``loop``. Parameter: whether it lingers."""
    lingers = getattr(request, "param", False)
    with running(LoopHandoff(lambda: LONGEST_LINGER if lingers else 0.0)) as handoff:
        yield handoff


@contextmanager
def lingering() -> Iterator[Any]:
    """Run a loop whose thread sleeps beside its selector, not in it. With `sleeps_long`.

    It does so for as long as the attribute ``pause`` says, which may change, or another thread runs it.
    """
    handoff: Any = LoopHandoff(lambda: handoff.pause)
    handoff.pause = 1000.0
    handoff.loop_lock.acquire()
    handoff.give_back()  # it lingers after a thread has driven
    with running(handoff):
        until(lambda: handoff._lingers)
        yield handoff


@contextmanager
def running(handoff: LoopHandoff) -> Iterator[Any]:
    loop = HandoffLoop(handoff)
    thread = threading.Thread(target=handoff.run, args=(loop, loop.run_forever))
    thread.start()
    handoff.loop = loop  # type: ignore[attr-defined]  # for these tests
    try:
        yield handoff
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        handoff.close(loop)
    assert not is_locked(handoff.loop_lock)


def is_locked(lock: Any) -> bool:
    if lock._is_owned() or not lock.acquire(False):
        return True
    lock.release()
    return False


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0)


def test_an_interrupt_while_a_coroutine_is_handed_over_cancels_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, cancelled = threading.Event(), threading.Event()

    def interrupted(loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(start)
        assert started.wait(10)
        signal.raise_signal(signal.SIGINT)

    async def sleep() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cancelled.set()
            raise

    monkeypatch.setattr("aiodist.sync.portal._hand_over", interrupted)
    portal = Portal()
    portal.enter()
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(sleep)
        assert cancelled.is_set()  # the next call finds it ended
    finally:
        portal.leave()


def test_an_interrupt_before_a_coroutine_is_handed_over_drops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(loop: asyncio.AbstractEventLoop, start: Callable[[], None]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aiodist.sync.portal._hand_over", interrupted)
    monkeypatch.setattr("aiodist.sync.portal.JOIN_SECONDS", 3600.0)  # as good as for ever
    with pytest.raises(KeyboardInterrupt):
        Portal().run(asyncio.sleep, 60)


def test_a_coroutine_is_awaited_by_no_lock_of_pythons_that_an_interrupt_leaves_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A `threading.Condition` that was just entered stays held, and the loop would wait for it."""
    caller, enter = threading.current_thread(), threading.Condition.__enter__

    def struck(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        return entered

    portal = Portal()
    portal.enter()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Condition, "__enter__", struck)
            assert portal.run(asyncio.sleep, 0, "result") == "result"
    finally:
        portal.leave()


def test_a_posted_function_runs_before_the_next_call_of_its_thread() -> None:
    """Also where the thread drives the loop, whose own thread has not woken up yet."""
    portal, ran = Portal(), []
    portal.enter()
    try:
        for step in range(100):
            time.sleep(0.001 * (step % 3))
            portal.post(partial(ran.append, ("posted", step)))
            portal.call(ran.append, False, ("called", step))
    finally:
        portal.leave()
    assert ran == [(how, step) for step in range(100) for how in ("posted", "called")]


def test_a_loop_that_runs_a_callback_cannot_be_acquired(handoff: Any) -> None:
    runs, ends = threading.Event(), threading.Event()
    handoff.loop.call_soon_threadsafe(lambda: (runs.set(), ends.wait(10)))
    assert runs.wait(10)
    assert not handoff.acquire()
    ends.set()
    until(handoff.acquire)
    handoff.give_back()


def test_the_loop_waits_for_the_thread_that_drives(handoff: Any) -> None:
    until(handoff.acquire)
    went_on = threading.Event()
    handoff.loop.call_soon_threadsafe(went_on.set)
    until(lambda: handoff._wanted)
    assert not went_on.is_set()
    handoff.give_back()
    assert went_on.wait(10)


def test_one_thread_drives_at_a_time(handoff: Any) -> None:
    until(handoff.acquire)
    assert not handoff.acquire()
    handoff.give_back()


@pytest.mark.parametrize("leave", ["call_soon", "call_later", "call_soon_threadsafe"])
@pytest.mark.parametrize("deep", [False, True], ids=["just used", "long unused"])
@pytest.mark.parametrize("handoff", [False, True], indirect=True)
def test_callbacks_that_a_call_schedules_are_called(handoff: Any, leave: str, deep: bool) -> None:
    until(handoff.acquire)
    handoff.give_back()
    if deep:
        until(lambda: handoff._deep)
    until(handoff.acquire)
    done = threading.Event()
    getattr(handoff.loop, leave)(*([1e-3] if leave == "call_later" else []), done.set)
    handoff.give_back()
    assert done.wait(10)


def test_a_call_that_leaves_nothing_wakes_no_thread(handoff: Any) -> None:
    until(lambda: handoff._deep)
    woken: list[None] = []
    handoff._wake = lambda: woken.append(None)
    until(handoff.acquire)
    handoff.give_back()
    assert not woken


def test_a_timer_of_later_wakes_no_thread_and_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_handoff, "_LONGEST", 0.05)
    with running(LoopHandoff()) as handoff:
        until(lambda: handoff._deep)
        woken: list[None] = []
        handoff._wake = lambda: woken.append(None)
        until(handoff.acquire)
        done = threading.Event()
        handoff.loop.call_later(0.3, done.set)
        handoff.give_back()
        assert not woken
        assert done.wait(10)


def test_the_loops_thread_sleeps_not_for_long_as_another_begins_to_run_the_loop() -> None:
    """The other one has looked at ``_deep`` before that is stored."""

    class Begins(LoopHandoff):
        looks = 0

        @property
        def _runner(self) -> int:
            self.looks += 1
            return self.looks - 1  # 0 at the first look

        @_runner.setter
        def _runner(self, ident: int) -> None:
            pass

    def select(seconds: float | None) -> NoReturn:
        raise AssertionError(f"sleeps for up to {seconds} s")

    Begins()._sleep(select)


def test_while_calls_go_on_the_loops_thread_wakes_up_seldom() -> None:
    handoff = LoopHandoff(lambda: LONGEST_LINGER)
    looks: list[float] = []

    def select(seconds: float | None) -> list[Any]:
        if handoff.acquire():  # a call
            handoff.give_back()
        if seconds:  # none came for a while
            looks.clear()
        else:
            looks.append(time.monotonic())
        return ["an event"] if len(looks) >= 5 else []

    handoff.run(SimpleNamespace(), lambda: handoff.sleep(select, None))  # type: ignore[arg-type]
    first, second, third = (after - look for look, after in pairwise(looks[:4]))
    assert first >= 10e-3
    assert second >= 20e-3
    assert third >= 40e-3


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    interrupts = Interrupts(threading.main_thread().ident)
    yield interrupts
    interrupts.restore()
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
        interrupts.restore()
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
        interrupts.restore()
        done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [False, ours]


def test_a_forked_child_has_pythons_own_handler() -> None:
    portal = Portal()
    portal.enter()
    assert portal.handoff.interrupts.hold()
    portal.handoff.interrupts.release()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    child = get_context("fork").Process(target=_exit_by_handler)
    child.start()
    child.join()
    portal.leave()
    assert child.exitcode == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _exit_by_handler() -> None:
    raise SystemExit(7 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 8)


def test_a_loop_whose_thread_cannot_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[HandoffLoop] = []

    def make(handoff: LoopHandoff) -> HandoffLoop:
        loops.append(HandoffLoop(handoff))
        return loops[-1]

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    portal = Portal()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        patch.setattr("aiodist.sync.portal.HandoffLoop", make)
        with pytest.raises(DistError, match=r"can't start new thread; raise the limit.*ulimit -u"):
            portal.enter()
    assert loops[0].is_closed()
    portal.enter()
    portal.leave()


def test_a_loop_for_which_there_are_no_descriptors_says_to_raise_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(handoff: LoopHandoff) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("aiodist.sync.portal.HandoffLoop", refuse)
    with pytest.raises(DistError, match=r"cannot make its event loop: Too many open.*ulimit -n$"):
        Portal().enter()


def test_ctrl_c_as_the_loops_thread_starts_leaves_no_thread_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next call would start a second thread, which uses the same locks."""
    start, started, portal = threading.Thread.start, [], Portal()

    def struck(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", struck)
        with pytest.raises(KeyboardInterrupt):
            portal.enter()
    portal.enter()
    assert [portal._thread] == started
    portal.leave()


@pytest.mark.parametrize("end", [SystemExit(5), KeyboardInterrupt()], ids=repr)
def test_a_callback_that_raises_as_the_loop_is_stopped_does_not_keep_it(end: BaseException) -> None:
    def raising() -> None:
        raise end

    def leaving() -> None:
        portal.leave()  # the loop stops in its next turn
        loop.call_soon(raising)

    portal = Portal()
    loop: Any = portal.enter()
    loop.set_exception_handler(lambda *_: None)
    thread: Any = portal._thread
    loop.call_soon_threadsafe(leaving)
    thread.join(2)
    is_alive = thread.is_alive()
    if is_alive:
        loop.call_soon_threadsafe(loop.stop)
    assert not is_alive


def test_ctrl_c_leaves_no_loop_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes in the very moment in which a call has borrowed the loop."""
    portal = Portal()
    handoff = portal.handoff
    portal.enter()
    acquire = handoff.acquire

    def struck() -> bool:
        acquired = acquire()
        signal.raise_signal(signal.SIGINT)
        return acquired

    ended = SimpleNamespace(is_completed=lambda: True, result=lambda: None)
    try:
        until(lambda: handoff._lent)
        monkeypatch.setattr(handoff, "acquire", struck)
        with pytest.raises(KeyboardInterrupt):
            portal.call(lambda: ended, True)
        until(lambda: not is_locked(handoff.loop_lock))  # the loop's thread has it for a moment
    finally:
        portal.leave()


def test_ctrl_c_cancels_what_was_handed_to_the_loop_a_moment_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receive that stayed behind would take the message of the next one."""
    portal, cancelled = Portal(), threading.Event()
    work = SimpleNamespace(
        cancel=cancelled.set,
        is_completed=lambda: False,
        _spin=bool,
        _stay_awake=bool,
        _when_done=lambda _: None,
    )

    def struck(loop: Any, start: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(start)
        raise KeyboardInterrupt

    portal.enter()
    try:
        monkeypatch.setattr(portal.handoff, "acquire", lambda: False)
        monkeypatch.setattr("aiodist.sync.portal._hand_over", struck)
        with pytest.raises(KeyboardInterrupt):
            portal.call(lambda: work, True)
        assert cancelled.wait(scaled(5))
    finally:
        portal.leave()


def test_events_are_read_with_the_loop_lock_held() -> None:
    """What was read while another thread could drive may belong to a reader that is replaced by now."""
    handoff = LoopHandoff()
    stale, fresh = [("stale", 1)], [("fresh", 1)]

    def select(timeout: float | None) -> Any:
        return fresh if timeout == 0 and is_locked(handoff.loop_lock) else stale

    found = []
    handoff.run(SimpleNamespace(), lambda: found.append(handoff.sleep(select, None)))
    assert found == [fresh]


def test_the_thread_that_drives_may_not_wait_for_the_loop(handoff: Any) -> None:
    until(handoff.acquire)
    with pytest.raises(InvalidUsageError, match="signal's handler"):
        handoff.check_may_wait()
    other = threading.Thread(target=handoff.check_may_wait)
    other.start()
    other.join()
    handoff.give_back()
    handoff.check_may_wait()


INTERRUPTED = """
import contextlib
import sys
import time
import numpy as np
import aiodist.sync as dist
from aiodist.sync.loop_handoff import Interrupts
from aiodist.sync.portal import portal

rank = int(sys.argv[2])
dist.init_process_group("aiodist", "file://" + sys.argv[1], rank=rank, world_size=2, timeout=60)
x = np.zeros(1)
for _ in range(3):
    dist.all_reduce(x)
if rank == 0:
    release = Interrupts.release

    def struck(interrupts):
        Interrupts.release = release
        release(interrupts)
        raise KeyboardInterrupt  # as by a Ctrl-C that came while the thread drove

    handoff = portal().handoff
    acquire = handoff.acquire

    def drive():  # the call drives: where the loop's thread is busy it would be struck before it has begun
        while not acquire():
            time.sleep(0.001)
        return True

    Interrupts.release, handoff.acquire = struck, drive
    try:
        dist.barrier()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    handoff.acquire = acquire
    assert handoff.sleeper is None
else:
    sys.stdin.readline()
    with contextlib.suppress(dist.CollectiveCancelledError):  # or it ended before the news came
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
"""


def test_an_interrupt_before_the_thread_sleeps_cancels_the_operation(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    ranks = [script(INTERRUPTED, tmp_path / "store", rank) for rank in range(2)]
    assert ranks[0].stdout is not None
    assert ranks[0].stdout.readline() == "interrupted\n"
    ended = [rank.communicate("\n", timeout=scaled(30)) for rank in reversed(ranks)]
    assert [rank.returncode for rank in ranks] == [0, 0], ended


# -- a thread that has to sleep runs the loop


def locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def run_in_thread(handoff: Any, ended: threading.Lock) -> tuple[threading.Thread, list[bool]]:
    """Run the loop in a thread until ``ended`` is released; that thread, and what came of it."""
    found: list[bool] = []

    def main() -> None:
        until(handoff.acquire)
        try:
            found.append(handoff.run_until(handoff.loop, ended, False))
        finally:
            handoff.hand_on(handoff.loop)

    thread = threading.Thread(target=main)
    thread.start()
    until(lambda: bool(handoff._runner and not is_locked(handoff.loop_lock)))  # it falls asleep
    return thread, found


@pytest.fixture
def sleeps_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that should be woken wakes up by chance."""
    for name in ("SIGNAL_SECONDS", "LINGER", "LONGEST_LINGER"):
        monkeypatch.setattr(loop_handoff, name, 1000.0)


def test_a_thread_that_sleeps_runs_what_is_due(sleeps_long: None, handoff: Any) -> None:
    ended, ran = locked(), []

    def due() -> None:
        ran.append(threading.get_ident())
        ended.release()

    until(handoff.acquire)
    handoff.loop.call_later(0.01, due)
    assert handoff.run_until(handoff.loop, ended, False)
    handoff.hand_on(handoff.loop)
    assert ran == [threading.get_ident()]


def test_an_end_in_another_thread_wakes_the_one_that_sleeps(
    sleeps_long: None, handoff: Any
) -> None:
    ended = locked()
    thread, found = run_in_thread(handoff, ended)
    until(handoff.acquire)
    handoff.end(handoff.loop, ended)
    handoff.give_back()
    thread.join()
    assert found == [True]


def test_a_timer_of_another_thread_wakes_the_one_that_sleeps(sleeps_long: None) -> None:
    ended = locked()
    with lingering() as handoff:
        thread, found = run_in_thread(handoff, ended)
        until(handoff.acquire)
        handoff.loop.call_later(0.01, handoff.end, handoff.loop, ended)
        handoff.give_back()
        thread.join()
    assert found == [True]


def test_one_thread_sleeps_by_itself(handoff: Any) -> None:
    ended = locked()
    thread, found = run_in_thread(handoff, ended)
    until(handoff.acquire)
    assert not handoff.run_until(handoff.loop, ended, False)
    handoff.end(handoff.loop, ended)
    handoff.resume()
    thread.join()
    assert found == [True]


def test_the_loops_thread_goes_on_with_what_other_threads_wait_for(sleeps_long: None) -> None:
    ended, came = locked(), threading.Event()
    reader, writer = socketpair()
    with lingering() as handoff, reader, writer:
        until(handoff.acquire)
        handoff.loop.add_reader(reader, lambda: (handoff.loop.remove_reader(reader), came.set()))
        handoff.give_back()
        thread, _ = run_in_thread(handoff, ended)
        handoff.pause = 0.0  # an operation is under way
        until(handoff.acquire)
        handoff.end(handoff.loop, ended)
        handoff.give_back()
        thread.join()
        writer.send(b"!")
        assert came.wait(scaled(10))


class LateError(Exception):
    """Raised by the handler of a signal, as of a time limit."""


class Limit:
    """Handlers of many a kind."""

    def strike(self, number: int, frame: Any) -> None:
        raise LateError

    __call__ = strike


@pytest.mark.parametrize(
    "handler",
    [Limit().strike, Limit(), partial(Limit().strike)],
    ids=["method", "object", "partial"],
)
def test_an_error_of_a_signals_handler_in_a_callback_reaches_the_call(
    handler: Any, handoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        until(handoff.acquire)
        handoff.loop.call_soon(signal.raise_signal, signal.SIGUSR2)
        with pytest.raises(LateError):
            handoff.run_until(handoff.loop, locked(), False)
        handoff.abandon(False)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_an_error_of_a_callback_is_told_by_the_loop(handoff: Any) -> None:
    ended, told = locked(), []
    handoff.loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    until(handoff.acquire)
    handoff.loop.call_soon(Limit().strike, 0, None)
    handoff.loop.call_soon(ended.release)
    assert handoff.run_until(handoff.loop, ended, False)
    handoff.hand_on(handoff.loop)
    assert [type(error) for error in told] == [LateError]


def test_a_thread_without_descriptors_to_sleep_over_leaves_the_loop_to_its_thread(
    handoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(loop_handoff.os, "pipe", refuse)
    ended = locked()
    until(handoff.acquire)
    handoff.loop.call_later(0.01, ended.release)
    assert not handoff.run_until(handoff.loop, ended, False)
    handoff.resume()
    assert ended.acquire(timeout=scaled(10))


def test_a_thread_whose_selector_has_no_descriptor_leaves_the_loop_to_its_thread(
    handoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where the system refuses epoll, and Python selects by poll."""
    monkeypatch.delattr(type(handoff.loop._selector).__mro__[1], "fileno")
    ended = locked()
    until(handoff.acquire)
    handoff.loop.call_later(0.01, ended.release)
    assert not handoff.run_until(handoff.loop, ended, False)
    handoff.resume()
    assert ended.acquire(timeout=scaled(10))


def test_a_loop_is_closed_once_no_thread_sleeps_in_its_selector() -> None:
    handoff, calls = LoopHandoff(), []
    loop: Any = SimpleNamespace(
        end_pause=lambda: calls.append("end_pause"), close=lambda: calls.append("close")
    )
    closing = threading.Thread(target=handoff.close, args=(loop,))
    with handoff._running:
        closing.start()
        closing.join(0.05)
        assert calls == ["end_pause"]
    closing.join()
    assert calls == ["end_pause", "close"]


def test_a_thread_that_was_struck_while_the_loop_has_its_turn_lets_the_loop_go_on() -> None:
    came = threading.Event()
    with running(LoopHandoff()) as handoff:
        until(partial(handoff._iteration.acquire, False))  # a handler raises as `acquire` gets it
        handoff.abandon(False)
        handoff.loop.call_soon_threadsafe(came.set)
        goes_on = came.wait(scaled(3))
        if not goes_on:
            handoff._iteration.release()
    assert goes_on


def test_a_loop_that_ends_is_run_no_longer() -> None:
    ended = locked()
    with running(LoopHandoff()) as handoff:
        thread, found = run_in_thread(handoff, ended)
    thread.join()
    assert found == [False]


def test_ctrl_c_strikes_a_thread_that_runs_the_loop() -> None:
    ended = locked()
    with running(LoopHandoff()) as handoff:
        assert handoff.interrupts.hold()
        until(handoff.acquire)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                handoff.run_until(handoff.loop, ended, True)
        finally:
            timer.join()
            handoff.abandon(False)
            handoff.interrupts.release()
            handoff.interrupts.restore()
        until(handoff.acquire)
        handoff.give_back()
        assert handoff.sleeper is None


def under_way(ends: list[Callable[[], None]]) -> SimpleNamespace:
    """An operation that ends when the one of ``ends`` is called."""
    return SimpleNamespace(
        is_completed=lambda: False,
        result=lambda: "ended",
        _spin=lambda _: False,
        _sleeper=lambda: None,
        _stay_awake=lambda: None,
        _when_done=ends.append,
    )


@pytest.mark.parametrize("kind", ["coroutine", "operation"])
def test_a_signals_handler_may_call_the_api_while_a_call_sleeps(
    sleeps_long: None, kind: str
) -> None:
    """What the handler waits for arrives on a stream: the loop's thread has to read it."""
    portal, called = Portal(), []
    ends: list[Callable[[], None]] = []
    reader, writer = socketpair()
    reader.setblocking(False)

    async def coroutine() -> str:
        await asyncio.get_running_loop().sock_recv(reader, 1)
        return "called"

    def start() -> SimpleNamespace:
        inner: list[Callable[[], None]] = []

        def came() -> None:
            loop.remove_reader(reader)
            inner[0]()

        loop.add_reader(reader, came)
        return under_way(inner)

    def handler(number: int, frame: object) -> None:
        sender.start()
        called.append(portal.run(coroutine) if kind == "coroutine" else portal.call(start, True))
        ends[0]()

    previous = signal.signal(signal.SIGUSR1, handler)
    struck = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    sender = threading.Timer(0.1, writer.send, (b"!",))
    loop = portal.enter()
    with reader, writer:
        try:
            until(lambda: portal.handoff._lent)
            struck.start()
            assert portal.call(lambda: under_way(ends), True) == "ended"
        finally:
            portal.leave()
            signal.signal(signal.SIGUSR1, previous)
            struck.join()
            sender.join()
    assert called == ["called" if kind == "coroutine" else "ended"]


def test_callbacks_of_the_last_turn_are_called_before_the_call_returns(
    sleeps_long: None, handoff: Any
) -> None:
    ended, done = locked(), threading.Event()
    until(handoff.acquire)

    def ends() -> None:
        ended.release()
        handoff.loop.call_soon(done.set)

    handoff.loop.call_soon(ends)
    assert handoff.run_until(handoff.loop, ended, False)
    assert done.is_set()
    handoff.hand_on(handoff.loop)


def test_a_callback_that_is_left_wakes_the_loops_thread(sleeps_long: None) -> None:
    """Although no operation is under way."""
    ended, done = locked(), threading.Event()

    def later(turns: int) -> None:
        done.set() if turns == 0 else handoff.loop.call_soon(later, turns - 1)

    def ends() -> None:
        ended.release()
        handoff.loop.call_soon(later, 3)

    with lingering() as handoff:
        until(handoff.acquire)
        handoff.loop.call_soon(ends)
        handoff.run_until(handoff.loop, ended, False)
        assert not done.is_set()
        handoff.hand_on(handoff.loop)
        assert done.wait(scaled(10))


@pytest.mark.parametrize("handoff", [True], indirect=True)
def test_a_timer_that_is_left_wakes_the_loops_thread_in_its_selector(handoff: Any) -> None:
    """The thread sleeps for an hour there. It fell asleep before the timer was there."""
    ended, done = locked(), threading.Event()
    until(lambda: handoff._deep)
    until(handoff.acquire)
    handoff.loop.call_later(0.2, done.set)
    handoff.loop.call_later(0.02, ended.release)
    assert handoff.run_until(handoff.loop, ended, False)
    assert handoff._deep
    handoff.hand_on(handoff.loop)
    assert done.wait(scaled(10))


@pytest.mark.parametrize("way", ["apply", "start"])
def test_a_call_that_does_not_drive_leaves_alone_what_another_thread_sleeps_over(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no loop lock, so the other thread may begin to sleep between a look and a write."""
    written: list[object] = []

    class Watched(LoopHandoff):
        sleeper = property(lambda self: None, lambda self, value: written.append(value))

        def acquire(self) -> bool:
            return False

    monkeypatch.setattr("aiodist.sync.portal.LoopHandoff", Watched)
    portal = Portal()
    portal.enter()
    work = SimpleNamespace(result=lambda: "ended", is_completed=lambda: True, _spin=lambda: None)
    group: Any = SimpleNamespace(
        world=SimpleNamespace(its_loop=portal._loop), start=lambda *_: work
    )
    try:
        written.clear()
        if way == "apply":
            answer = portal.call(lambda: work, True)
        else:
            answer = portal.start(False, group, SimpleNamespace(kind="barrier"), None)  # type: ignore[arg-type]
    finally:
        portal.leave()
    assert (answer, written) == ("ended", [])


def test_a_loop_that_is_to_stop_is_left_to_its_own_thread(handoff: Any) -> None:
    """Its turns would not sleep, and keep that thread from ending it."""
    until(handoff.acquire)
    handoff.loop.stop()
    assert not handoff.run_until(handoff.loop, locked(), False)
    handoff.resume()


def test_a_thread_in_a_task_does_not_run_the_loop(
    handoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook's cell is from Python 3.14 on, where a thread has one task, whatever the loop."""
    until(handoff.acquire)
    monkeypatch.setattr(asyncio, "current_task", lambda loop: "of the kernel's loop")
    assert not handoff.run_until(handoff.loop, locked(), False)
    handoff.resume()
    assert handoff.sleeper is None


def test_an_interrupt_before_a_thread_drives_again_leaves_the_loop_to_others(
    handoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def struck(interrupts: Interrupts) -> bool:
        raise KeyboardInterrupt

    until(handoff.acquire)
    handoff.loop.call_later(0.01, int)
    monkeypatch.setattr(Interrupts, "hold", struck)
    with pytest.raises(KeyboardInterrupt):
        handoff.run_until(handoff.loop, locked(), True)
    handoff.abandon(False)
    until(handoff.acquire)
    handoff.give_back()


def test_the_end_of_a_run_leaves_alone_the_thread_that_runs_next() -> None:
    """It is done twice, and after the first time another thread may run the loop."""
    handoff = LoopHandoff()
    mine, others = threading.Lock(), threading.Lock()
    handoff.sleeper, handoff._runner = others, 1
    handoff._stop_running(mine)
    assert (handoff.sleeper, handoff._runner) == (others, 1)
    handoff._stop_running(others)
    assert (handoff.sleeper, handoff._runner) == (None, 0)
