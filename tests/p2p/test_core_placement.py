"""Ranks on one core: who sees it, and who moves."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from aiodist.p2p.core_placement import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    CorePlacement,
    move_from,
    running_on,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores and a system that says who runs where",
)

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""


@pytest.fixture
def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.fixture
def spinner(core: int) -> Iterator[int]:
    """A process that never sleeps, on ``core``."""
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.fixture
def on_core(core: int) -> Iterator[set[int]]:
    """This thread is kept on ``core``. Gives where it might go before."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    yield allowed
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What this thread's cores were set to."""
    seen: list[set[int]] = []
    real = os.sched_setaffinity

    def note(pid: int, cores: set[int]) -> None:
        seen.append(set(cores))
        real(pid, cores)

    monkeypatch.setattr(os, "sched_setaffinity", note)
    return seen


def test_a_process_that_runs_has_a_core(spinner: int, core: int) -> None:
    assert running_on(spinner) == core


def test_any_thread_of_it_counts(core: int) -> None:
    program = f"import threading\nthreading.Thread(target=lambda: exec({SPIN!r})).start()\n"
    command = [sys.executable, "-c", program, str(core)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while running_on(process.pid) != core:  # until the main thread waits for the other's end
            time.sleep(0.001)
        process.kill()


def test_one_that_sleeps_or_is_gone_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as sleeper:
        while running_on(sleeper.pid) != -1:
            time.sleep(0.001)
        sleeper.kill()
    assert running_on(sleeper.pid) == -1


def test_a_rank_moves_to_a_free_core_and_keeps_its_affinity(
    core: int, moves: list[set[int]]
) -> None:
    allowed = os.sched_getaffinity(0)
    assert move_from(core, [])
    assert moves == [allowed - {core}, allowed]
    assert os.sched_getaffinity(0) == allowed


def test_a_rank_stays_where_all_cores_are_taken(moves: list[set[int]]) -> None:
    allowed = os.sched_getaffinity(0)
    assert not move_from(min(allowed), list(allowed))
    assert moves == []


def test_a_handler_that_raises_as_it_moves_leaves_all_cores_to_the_rank(
    core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, real = os.sched_getaffinity(0), os.sched_setaffinity

    def struck(pid: int, cores: set[int]) -> None:
        real(pid, cores)
        if cores != allowed:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "sched_setaffinity", struck)
    try:
        with pytest.raises(KeyboardInterrupt):
            move_from(core, [])
        assert os.sched_getaffinity(0) == allowed
    finally:
        real(0, allowed)


@pytest.mark.usefixtures("on_core")
def test_a_pinned_rank_stays_beside_its_neighbour(spinner: int, moves: list[set[int]]) -> None:
    neighbours = CorePlacement()
    neighbours.meet([spinner, os.getpid()])
    neighbours.move_to_idle_core(1.0)
    assert moves == []


def test_a_pinned_rank_does_not_look_where_its_neighbours_run(
    spinner: int, core: int, on_core: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = os.open

    def note(path: str, flags: int) -> int:
        opened.append(path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", note)
    neighbours = CorePlacement()
    neighbours.meet([spinner])
    for now in (1.0, 1.0 + FIRST_PAUSE):
        neighbours.move_to_idle_core(now)
    assert opened == []
    os.sched_setaffinity(0, on_core)
    neighbours.move_to_idle_core(1.0 + LONGEST_PAUSE)
    assert opened == [f"/proc/{spinner}/stat"]


def test_a_rank_whose_cores_the_system_does_not_tell_stays(
    spinner: int, moves: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> set[int]:
        raise PermissionError

    neighbours = CorePlacement()
    neighbours.meet([spinner])
    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    neighbours.move_to_idle_core(1.0)
    assert moves == []


def test_a_rank_moves_less_often_where_it_does_not_help(
    spinner: int,
    core: int,
    on_core: set[int],
    moves: list[set[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system puts it back each time, as it may where all cores are busy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(on_core))
    neighbours = CorePlacement()
    neighbours.meet([spinner])
    step, moved = 0, []
    while len(moved) < 9:
        before = len(moves)
        neighbours.move_to_idle_core(1.0 + step * FIRST_PAUSE / 4)
        if len(moves) > before:
            moved.append(step)
            os.sched_setaffinity(0, {core})
        step += 1
    pauses = [later - sooner for sooner, later in itertools.pairwise(moved)]
    longest = round(4 * LONGEST_PAUSE / FIRST_PAUSE)
    expected = [min(8 << number, longest) for number in range(8)]
    assert all(pause - wait in (0, 1) for pause, wait in zip(pauses, expected, strict=True))


def test_many_neighbours_are_not_looked_after(moves: list[set[int]]) -> None:
    neighbours = CorePlacement()
    neighbours.meet([os.getpid() + number for number in range(1, 20)])
    neighbours.move_to_idle_core(1.0)
    assert moves == []
