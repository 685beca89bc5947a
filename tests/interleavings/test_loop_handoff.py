"""Threads that drive the blocking API's loop, and its own thread, in drawn orders of their accesses.

Each callback, timer and event that a thread leaves to the loop has to be handled: no thread may sleep for
ever while one waits. The real `LoopHandoff` runs over a model of its loop, its locks and its selector.
"""

from __future__ import annotations

import inspect
import random
import textwrap
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import pytest

from aiodist.sync import loop_handoff
from aiodist.sync.loop_handoff import LoopHandoff
from tests.interleavings.clock import Clock
from tests.interleavings.scheduler import Scheduler, Stuck, greenlet
from tests.interleavings.seeds import BLOCKS, fails, seeds

PATIENCE = 0.1
"""Seconds: what comes right by a timer of the handoff comes right much sooner."""

SHARED = frozenset(
    name for name in vars(LoopHandoff()) if not name.endswith(("lock", "interrupts"))
)
"""Attributes of which each access is a point at which another thread may go on."""


class Lock:
    """A lock of one thread at a time. ``knows_owner``: as `threading.RLock`."""

    def __init__(self, threads: Threads, *, knows_owner: bool) -> None:
        self._threads = threads
        self._knows_owner = knows_owner
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        threads = self._threads
        threads.point()
        me = greenlet.getcurrent()
        if not (self._knows_owner and self._owner is me):
            if self._owner is not None and not (
                blocking and threads.wait(lambda: self._owner is None, timeout)
            ):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        self._threads.point()
        if self._owner is None or (self._knows_owner and not self._is_owned()):
            raise RuntimeError("not acquired")
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        self._threads.point()
        return self._owner is not None

    def _is_owned(self) -> bool:
        return self._owner is greenlet.getcurrent()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Threads:
    """The threads of one process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.point = scheduler.point
        self._scheduler = scheduler
        self._loops: dict[object, object] = {}  # which run, by thread

    def wait(self, condition: Callable[[], object], seconds: float = -1) -> bool:
        """Return whether ``condition()`` holds within ``seconds``; no limit if they are negative."""
        if seconds < 0:
            self._scheduler.sleep_until(condition)
            return True
        timer = self._scheduler.call_later(seconds, lambda: None)
        self._scheduler.sleep_until(lambda: condition() or timer.is_over)
        timer.cancel()
        return bool(condition())

    def running_loop(self) -> object:
        return self._loops.get(greenlet.getcurrent())

    def set_running_loop(self, loop: object) -> None:
        self._loops[greenlet.getcurrent()] = loop


class Loop:
    """A `HandoffLoop`: callbacks, timers, and events of streams that its selector has."""

    def __init__(self, threads: Threads, handoff: LoopHandoff, clock: Clock) -> None:
        self.events: list[Callable[[], object]] = []
        self.stops = False
        self._threads = threads
        self._handoff = handoff
        self._clock = clock
        self._ready: list[Callable[[], object]] = []
        self._timers: list[tuple[float, Callable[[], object]]] = []
        self._is_woken = False

    def run_once(self) -> None:
        timeout: float | None = None
        if self._ready:
            timeout = 0.0
        elif self._timers:
            timeout = max(0.0, min(when for when, _ in self._timers) - self._clock.now)
        for event in self._handoff.sleep(self._select, timeout):
            if event in self.events:  # type: ignore[comparison-overlap]  # of `_select`
                self.events.remove(event)  # type: ignore[arg-type]
                self._ready.append(event)  # type: ignore[arg-type]
        due = [timer for timer in self._timers if timer[0] <= self._clock.now]
        self._timers = [timer for timer in self._timers if timer not in due]
        ready, self._ready = [*self._ready, *(callback for _, callback in due)], []
        for callback in ready:
            assert self._handoff.loop_lock._is_owned(), "two threads use the loop"  # type: ignore[attr-defined]
            callback()
            self._threads.point()

    def _select(self, timeout: float | None) -> Any:
        self._threads.point()
        if timeout is None or timeout > 0:
            self._threads.wait(lambda: self.events, -1 if timeout is None else timeout)
        return self.events[:]

    def has_callbacks(self) -> bool:
        return bool(self._ready)

    def may_pause(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        self._threads.wait(lambda: self.events or self._is_woken, seconds)
        self._is_woken = False

    def end_pause(self) -> None:
        self._is_woken = True

    def stop(self) -> None:
        self.stops = True

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._handoff.note_callback()
        self._ready.append(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self._handoff.note_callback()
        self._threads.point()
        self._ready.append(callback)
        self._threads.point()
        self.events.append(lambda: None)  # a byte in the loop's own pipe
        self._threads.point()
        self._handoff.wake_idle()

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        self._handoff.note_timer(when)
        self._timers.append((when, callback))


@pytest.fixture
def handoff_of(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[..., LoopHandoff]:
    """Makes a `LoopHandoff` for ``threads``."""
    threads: Threads

    class Watched(LoopHandoff):
        def __getattribute__(self, name: str) -> Any:
            if name in SHARED:
                threads.point()
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: object) -> None:
            if name in SHARED:
                threads.point()
            object.__setattr__(self, name, value)

    def make(its_threads: Threads, longest_pause: Callable[[], float]) -> LoopHandoff:
        nonlocal threads
        threads = its_threads
        locks = SimpleNamespace(
            RLock=partial(Lock, threads, knows_owner=True),
            Lock=partial(Lock, threads, knows_owner=False),
            main_thread=lambda: SimpleNamespace(ident=-1),
        )
        loops = SimpleNamespace(
            _get_running_loop=threads.running_loop,
            _set_running_loop=threads.set_running_loop,
            current_task=lambda loop: None,
        )
        monkeypatch.setattr(loop_handoff, "threading", locks)
        monkeypatch.setattr(loop_handoff, "asyncio", loops)
        monkeypatch.setattr(loop_handoff, "monotonic", clock)
        monkeypatch.setattr(loop_handoff, "_get_ident", lambda: id(greenlet.getcurrent()))
        monkeypatch.setattr(loop_handoff, "HandoffLoop", Loop)
        return Watched(longest_pause)

    return make


class Process:
    """A loop's thread, and threads that call."""

    def __init__(self, seed: int, clock: Clock, handoff_of: Callable[..., LoopHandoff]) -> None:
        self.scheduler = Scheduler(seed, 1, clock, PATIENCE)
        self.threads = Threads(self.scheduler)
        draw = self.scheduler.random
        lingers = draw.choice([lambda: False, lambda: True, lambda: not self._under_way])
        self._under_way = 0
        self.handoff = handoff_of(self.threads, lambda: 1.0 if lingers() else 0.0)
        self.loop: Any = Loop(self.threads, self.handoff, clock)
        self._clock = clock
        self._callers = draw.randint(1, 3)
        self.scheduler.spawn(partial(self.handoff.run, self.loop, self._run))
        for number in range(self._callers):
            self.scheduler.spawn(
                partial(self._call, random.Random(seed * 4 + number), draw.randint(1, 7))
            )

    def _run(self) -> None:
        while not self.loop.stops:
            self.loop.run_once()

    def _call(self, draw: random.Random, times: int) -> None:
        for _ in range(times):
            left: list[object] = []  # to the loop
            if draw.random() < 0.3:
                self.threads.wait(lambda: False, draw.choice([1e-4, 3e-3, 0.02, 0.09]))
            self._call_once(draw, left)
            if draw.random() < 0.7:
                self.threads.wait(lambda left=left: not left)
        self._callers -= 1
        if not self._callers:
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _call_once(self, draw: random.Random, left: list[object]) -> None:
        """Do what `Portal` does for one call. ``left``: what it leaves to the loop, until that is done."""

        def leave() -> Callable[[], None]:
            mark = object()
            left.append(mark)
            return lambda: left.remove(mark)

        what = draw.choice(["drive", "drive", "post", "sleep"])
        if what == "post" or not self.handoff.acquire():
            self.loop.call_soon_threadsafe(leave())
            return
        for _ in range(draw.randrange(3)):
            if draw.random() < 0.5:
                self.loop.call_soon(leave())
            else:
                pause = draw.choice([0.0, 1e-3, 0.01, 0.09])
                self.loop.call_at(self._clock.now + pause, leave())
        if what == "drive":
            self.threads.point()
            draw.choice([self.handoff.give_back, self.handoff.resume])()
        else:
            self._sleep(draw)

    def _sleep(self, draw: random.Random) -> None:
        """Run the loop until an operation has ended, or let its thread do so, as `Portal` does."""
        ended: Any = Lock(self.threads, knows_owner=False)
        ended.acquire()
        self._under_way += 1

        def end() -> None:
            self._under_way -= 1
            self.handoff.end(self.loop, ended)

        match draw.choice(["callback", "timer", "event"]):
            case "callback":
                self.loop.call_soon(end)
            case "timer":
                self.loop.call_at(self._clock.now + draw.choice([1e-3, 0.03]), end)
            case "event":
                seconds = draw.choice([1e-5, 1e-3, 0.05])
                self.scheduler.call_later(seconds, partial(self.loop.events.append, end))
        if self.handoff.run_until(self.loop, ended, False):
            self.handoff.hand_on(self.loop)
        else:
            self.handoff.resume()
            ended.acquire()


@pytest.fixture
def run(clock: Clock, handoff_of: Callable[..., LoopHandoff]) -> Callable[[int], None]:
    def run(seed: int) -> None:
        try:
            Process(seed, clock, handoff_of).scheduler.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

    return run


@pytest.mark.parametrize("block", BLOCKS)
def test_all_that_is_left_to_the_loop_is_done(block: int, run: Callable[[int], None]) -> None:
    for seed in seeds(block, 400):
        run(seed)


@pytest.mark.parametrize(
    ("method", "step", "without"),
    [
        ("_sleep", "if self._deep and (self._scheduled or self._runner):", "if False:"),
        ("give_back", "if wakes:", "if False:"),
        ("note_timer", "self._scheduled = True", "pass"),
        ("_sleep_driving", "if not self._deep:", "if True:"),
    ],
)
def test_without_one_step_something_is_left_undone(
    method: str,
    step: str,
    without: str,
    run: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = textwrap.dedent(inspect.getsource(getattr(LoopHandoff, method)))
    assert source.count(step) == 1
    made: dict[str, Any] = {}
    code = compile(source.replace(step, without), "changed", "exec", dont_inherit=True)
    exec(code, loop_handoff.__dict__, made)
    monkeypatch.setattr(LoopHandoff, method, made[method])
    assert fails(run, range(3000), Stuck)
