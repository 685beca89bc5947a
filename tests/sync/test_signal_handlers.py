"""Handlers of signals that raise, as those of a program's own time limits."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_server
from types import FrameType
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist
from aiodist.groups.world import current_world
from aiodist.sync import portal as portal_module
from aiodist.sync.loop_handoff import LoopHandoff
from aiodist.sync.portal import portal
from tests.limits import scaled

STRUCK = """
    import signal, sys, threading, time
    import numpy as np
    import aiodist.sync as dist

    class Late(Exception): pass

    def strike(number, frame):
        raise Late

    def struck_call(after):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, after, 0.02)
                while True:
                    dist.all_reduce(x)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            return 1

    def call():
        dist.all_reduce(x, timeout=5)
        ended.append(True)

    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    x, ended = np.ones(4), []
    dist.all_reduce(x)
    signal.signal(signal.SIGALRM, strike)
    end, strikes = time.monotonic() + 0.5, 0
    while time.monotonic() < end:
        strikes += struck_call(0.0001 + strikes % 97 * 3e-6)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    print(strikes > 20, ended)
    sys.stdout.flush()
"""


def test_a_handler_that_raises_in_a_call_leaves_the_engine_free(
    script: Callable[..., subprocess.Popen[str]],
) -> None:
    # Python tells of what a handler raised in a finalizer, and of operations struck in their midst.
    process = script(STRUCK, PYTHONWARNINGS="ignore")
    out, told = process.communicate(timeout=scaled(30))
    assert out == "True [True]\n", told


ENDED_BY_A_HANDLER = """
    import signal, sys, time
    import numpy as np
    import aiodist.sync as dist

    # Rank 0 is struck in a wait.
    path, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
    x = np.ones(1)

    def end(number, frame):
        before = time.monotonic()
        dist.abort_process_group()
        print(time.monotonic() - before < 3)
        sys.exit(7)

    if rank == 0:
        signal.signal(signal.SIGALRM, end)
        dist.barrier()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        dist.recv(x, 1) if how == "message" else dist.all_reduce(x)
    else:
        dist.barrier()
        sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["message", "collective"])
def test_a_handler_may_abort_the_group_and_end_the_program(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: str
) -> None:
    ending, other = (script(ENDED_BY_A_HANDLER, tmp_path / "store", rank, how) for rank in range(2))
    out, told = ending.communicate(timeout=scaled(30))
    assert (ending.returncode, out, told) == (7, "True\n", "")
    other.communicate(timeout=scaled(30))


class LateError(Exception):
    pass


class Strikes:
    """Raises at one place of a call in `aiodist.sync`, as a signal's handler may: at the n-th, for each n.

    Python runs handlers as a function begins, and after a call of a function in C. What the engine calls
    in turn is left out: an operation that is struck in its midst may be lost.
    """

    def __init__(self) -> None:
        self._left = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return") or not _is_of_the_api(frame):
            return
        below = frame.f_back
        while below is not None and below.f_code is not Strikes.strike.__code__:
            if below.f_code.co_name == "_run_once" or not _is_of_the_api(below, otherwise=True):
                return
            below = below.f_back
        self._left -= 1
        if self._left == 0:
            raise LateError

    def strike(self, number: int, call: Callable[[], None]) -> bool:
        """Make ``call``, and raise at its place ``number``. Returns False if it has not so many."""
        self._left = number
        sys.setprofile(self.profile)
        try:
            call()
        except LateError:
            pass
        except (TypeError, dist.CollectiveError):
            pass  # of the operation, which was not struck
        finally:
            sys.setprofile(None)
        return self._left <= 0


def _is_of_the_api(frame: FrameType, otherwise: bool = False) -> bool:
    """Return whether ``frame`` is of `aiodist.sync`; ``otherwise`` if it is not of aiodist."""
    name = frame.f_globals.get("__name__", "")
    return name.startswith("aiodist.sync") if name.startswith("aiodist.") else otherwise


def check_is_free(handoff: LoopHandoff) -> None:
    locks: list[Any] = [handoff.loop_lock, handoff._iteration, handoff._running]
    assert not any(lock._is_owned() for lock in locks)
    assert handoff.sleeper is None
    assert handoff._driver != threading.get_ident()
    assert asyncio._get_running_loop() is None
    assert not handoff.interrupts._held
    assert handoff.interrupts._previous is None


@pytest.mark.parametrize("tensor", [np.ones(1), "no tensor"], ids=["succeeds", "fails"])
@pytest.mark.parametrize("handler", [signal.default_int_handler, lambda *_: None])
@pytest.mark.usefixtures("alone")
def test_a_handler_that_raises_anywhere_in_a_call_leaves_nothing_held(
    tensor: Any, handler: Any
) -> None:
    number, strikes = 1, Strikes()
    dist.barrier()
    signal.signal(signal.SIGINT, handler)
    while strikes.strike(number, lambda: dist.all_reduce(tensor)):
        number += 1
        check_is_free(portal().handoff)
    assert number > 10
    assert signal.getsignal(signal.SIGINT) in (handler, portal().handoff.interrupts._ours)


@pytest.fixture
def _struck_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A handler raises once, as the calling thread learns that its coroutine has ended."""
    wait = portal_module._wait_for

    def struck(*args: Any) -> None:
        monkeypatch.setattr(portal_module, "_wait_for", wait)
        wait(*args)
        raise LateError

    monkeypatch.setattr(portal_module, "_wait_for", struck)
    monkeypatch.setattr(portal_module, "JOIN_SECONDS", 3600.0)  # as good as for ever
    yield
    assert portal_module._wait_for is wait


@pytest.mark.usefixtures("_struck_at_the_end")
def test_an_init_that_is_interrupted_at_its_end_leaves_no_group(tmp_path: Path) -> None:
    meeting = f"file://{tmp_path}/store"
    with pytest.raises(LateError):
        dist.init_process_group(init_method=meeting, rank=0, world_size=1)
    assert not dist.is_initialized()
    assert portal()._loop is None
    dist.init_process_group(init_method=meeting, rank=0, world_size=1)
    dist.destroy_process_group()


@pytest.mark.usefixtures("_struck_at_the_end")
def test_a_store_that_is_interrupted_as_it_opens_is_closed() -> None:
    with create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(LateError):
        dist.TCPStore("127.0.0.1", port, is_master=True)
    dist.TCPStore("127.0.0.1", port, is_master=True).close()
    assert portal()._loop is None


def test_a_handler_that_raises_in_a_call_that_sleeps_leaves_nothing_held(
    run_apart: Callable[..., list[Any]],
) -> None:
    def main(rank: int) -> None:
        x, number, strikes = np.ones(1), 1, Strikes()
        dist.barrier()
        loop = portal()._loop
        assert loop is not None
        loop.may_pause()  # which opens a pipe, once: a handler that raises just then loses it
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            if rank:
                time.sleep(0.001)
                with suppress(dist.CollectiveError):
                    dist.all_reduce(x)
                continue
            number = number + 1 if strikes.strike(number, lambda: dist.all_reduce(x)) else 1
            check_is_free(portal().handoff)
        current_world().default_group().abort()

    run_apart(2, main)
