"""Strictness for every test: a scaled time limit, and nothing left running or open afterwards."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.limits import timeout_scale

GRACE_SECONDS = 2.0
"""How long a thread, child or descriptor that is on its way out may take to be gone."""

PROC = Path("/proc")
SELF_FD = PROC / "self" / "fd"

# The same examples in every run, and no limit of time for one of them: what ``make test`` says of a
# commit holds the next time, too. ``make fuzz`` looks for others.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("steady")

# A shell ignores Ctrl-C for what it starts in the background, nohup ignores the end of the terminal,
# and children inherit both.
for ignored, default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, default)


BY_REQUEST = (
    *("extended", "matrix", "soak", "slurm", "benchmarks", "examples"),
    *("compiler", "ecosystem", "engines", "hosts", "site"),
)
"""Marks of tests that run only where ``-m`` names them: they take minutes, or need other programs."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop tests that run by request and are not asked for; scale the limits of the others."""
    _drop_unasked(config, items)
    _scale_limits(config, items)


def _drop_unasked(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.option.markexpr
    unasked = [mark for mark in BY_REQUEST if mark not in asked]
    dropped = {item for item in items if any(item.get_closest_marker(mark) for mark in unasked)}
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def _scale_limits(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scale each test's limit: its own ``timeout`` mark, else the one of pyproject.toml."""
    scale = timeout_scale()
    if scale == 1:
        return
    given = config.getoption("timeout")
    usual = float(config.getini("timeout") if given is None else given)
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is None:
            item.add_marker(pytest.mark.timeout(usual * scale), append=False)
        else:
            kwargs = dict(mark.kwargs)
            seconds = mark.args[0] if mark.args else kwargs.pop("timeout", usual)
            scaled_mark = pytest.mark.timeout(seconds * scale, *mark.args[1:], **kwargs)
            item.add_marker(scaled_mark, append=False)


def pytest_collection_finish() -> None:
    """Take what has been imported and collected out of the garbage collector's rounds.

    Thousands of tests are objects that stay: to look at them again and again was half of the time of
    tests that make many objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scaled() -> Callable[[float], float]:
    """For limits inside a test: ``asyncio.timeout(scaled(5))``."""
    scale = timeout_scale()
    return lambda seconds: seconds * scale


@dataclass(frozen=True)
class Running:
    """What a test could leave behind, as sets that can be subtracted."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> Running:
        return cls(frozenset(threading.enumerate()), _children(), _descriptors())

    def since(self, before: Running) -> list[str]:
        """One line for each thing that is here now and was not ``before``."""
        threads = [f"thread {t.name!r}" for t in self.threads - before.threads if t.is_alive()]
        children = [
            f"child process {pid} ({_command(pid)})" for pid in self.children - before.children
        ]
        descriptors = [
            f"file descriptor {fd} ({target})"
            for fd, target in self.descriptors - before.descriptors
        ]
        return sorted(threads) + sorted(children) + sorted(descriptors)


@pytest.fixture
async def eager_tasks() -> None:
    """The tasks of the test's loop take their first step inside ``create_task``."""
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.11 has no eager tasks")
    loop, nothing = asyncio.get_running_loop(), asyncio.sleep(0)
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        await loop.create_task(nothing)
    except TypeError:
        nothing.close()
        loop.set_task_factory(None)
        pytest.skip("this uvloop gives the factory an argument that Python 3.13.0's does not take")


@pytest.fixture
def segment_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the length of each rank's shared memory, for ranks in one process over "shm"."""
    from aiodist.testing import in_process  # not above: this file is tried apart, too

    return partial(monkeypatch.setattr, in_process, "_SHARED_BYTES")


def _children() -> frozenset[int]:
    """Pids of this process's children, zombies too; without /proc those multiprocessing knows."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()  # the usual case, and cheap
    if not PROC.is_dir():
        return frozenset(
            child.pid for child in multiprocessing.active_children() if child.pid is not None
        )
    me = os.getpid()
    pids = (int(name) for name in os.listdir(PROC) if name.isdecimal())
    return frozenset(pid for pid in pids if _parent(pid) == me) - _services(
        "_pid", "_forkserver_pid"
    )


def _parent(pid: int) -> int | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None  # it ended while we looked
    # "pid (name) state parent ...", and the name may hold spaces and parentheses itself.
    return int(stat.rpartition(")")[2].split()[1])


def _services(*names: str) -> frozenset[int]:
    """Pids or descriptors of what multiprocessing starts once and keeps until Python ends."""
    services = (resource_tracker._resource_tracker, forkserver._forkserver)
    values = (getattr(service, name, None) for service in services for name in names)
    return frozenset(value for value in values if isinstance(value, int))


def _descriptors() -> frozenset[tuple[int, str]]:
    """Open descriptors and what they are; the target tells a reused number from an old one."""
    if not SELF_FD.is_dir():
        return frozenset()
    found: set[tuple[int, str]] = set()
    folder = str(SELF_FD)  # a Path for each descriptor took longer than all the rest
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
        # Devices (/dev/null, /dev/urandom) are opened once by libraries and kept.
        if not target.startswith("/dev/"):
            found.add((int(name), target))
    services = _services("_fd", "_forkserver_alive_fd")
    return frozenset(entry for entry in found if entry[0] not in services)


def _command(pid: int) -> str:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "gone"
    return command or "a zombie: it ended and its parent has not waited for it"


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an open descriptor.

    Set up before the test's event loop and its other function-scoped fixtures, and torn down
    after them; what a module or session fixture holds open was there before.
    """
    before = Running.now()
    yield
    if not Running.now().since(before):
        return
    limit = time.monotonic() + GRACE_SECONDS * timeout_scale()
    gc.collect()
    while leftovers := Running.now().since(before):
        if time.monotonic() > limit:
            pytest.fail("the test left behind:\n  " + "\n  ".join(leftovers), pytrace=False)
        time.sleep(0.01)
        gc.collect()  # a thread that was on its way out may have held what a circle holds


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Any]:
    """A `WarmPython`, which runs scripts in forks of itself."""
    from tests.warm_python import WarmPython  # not above: this file is tried apart, too

    with WarmPython() as python:
        yield python
